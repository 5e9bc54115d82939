"""Permissions: two users on one mount try each line of the table in the reference.

The users are uids without an account on the system. Root mounts. Everybody may write the root of
the mount, so that only the modes of topics and partitions decide.
"""

from __future__ import annotations

import os
import random
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mount.modes_matrix import any_rights, matrix
from tests.mount.mounting import Mount, let_others_in, mounted, needs_root
from tests.mount.programs import program

OWNER, OTHER = 54321, 65432
GROUP = 43210
REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference/permissions.md"
ROW = re.compile(r"\| (`.+`) \| ([0-7]{4}) \| ([0-7]{4}) \| (yes|no) \| (yes|no) \|")
TABLE = [
    match.groups() for match in map(ROW.fullmatch, REFERENCE.read_text().splitlines()) if match
]
ROWS = [
    (topic, partition, command, owner, other)
    for commands, topic, partition, owner, other in TABLE
    for command in commands.strip("`").split("` · `")
]

pytestmark = needs_root


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount in which everybody may make topics."""
    base = tmp_path_factory.mktemp("users")
    let_others_in(base)
    with mounted(base, "allow_other") as mount:
        mount.path.chmod(0o777)
        yield mount


def as_user(uid: int, groups: Sequence[int] = ()) -> list[str]:
    """The words before a command for a user. (Popen's `user` forks, which takes longer.)"""
    gid, *others = groups or [uid]
    given = f"--groups={','.join(map(str, others))}" if others else "--clear-groups"
    return [program("setpriv"), f"--reuid={uid}", f"--regid={gid}", given]


def run_as(
    uid: int, script: str, mount: Mount, groups: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a shell script in the mount point as a user of these groups, the first of them his own,
    under the usual umask.
    """
    return subprocess.run(
        [*as_user(uid, groups), "sh", "-c", script],
        cwd=mount.path,
        umask=0o022,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def may(
    uid: int, script: str, mount: Mount, groups: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """The same, which must succeed."""
    done = run_as(uid, script, mount, groups)
    assert done.returncode == 0, f"{script}: {done.stderr}"
    return done


def may_not(uid: int, script: str, mount: Mount, groups: Sequence[int] = ()) -> None:
    """The same, which must be refused for its rights."""
    done = run_as(uid, script, mount, groups)
    assert done.returncode != 0, f"{script} is not refused"
    assert "ermission denied" in done.stderr or "not permitted" in done.stderr, done.stderr


def owned(mount: Mount, mode: int, partition_mode: int) -> Path:
    """A topic `t` of the owner with one record in its partition."""
    topic = mount / "t"
    topic.mkdir()
    with (topic / "0").open("ab") as file:
        file.write(b"kept\n")
    os.chown(topic / "0", OWNER, OWNER)
    (topic / "0").chmod(partition_mode)
    os.chown(topic, OWNER, OWNER)
    topic.chmod(mode)
    return topic


def remove_topics(mount: Mount) -> None:
    for name in os.listdir(mount.path):
        (mount / name).rmdir()


@pytest.fixture(autouse=True)
def _nothing_is_left(shared: Mount) -> Iterator[None]:
    yield
    remove_topics(shared)


@pytest.mark.parametrize(("topic", "partition", "script", "owner", "other"), ROWS)
def test_a_line_of_the_table(
    shared: Mount, topic: str, partition: str, script: str, owner: str, other: str
) -> None:
    made = owned(shared, int(topic, 8), int(partition, 8))
    for uid, answer in ((OTHER, other), (OWNER, owner)):
        if answer == "yes":
            may(uid, script, shared)
            remove_topics(shared)
            made = owned(shared, int(topic, 8), int(partition, 8))
        else:
            may_not(uid, script, shared)
            assert (made / "0").read_bytes() == b"kept\n"
            assert os.listdir(made) == ["0"]
            assert "retention.ms=1\n" not in (made / ".config").read_text()


def test_the_table_is_there() -> None:
    appendix = REFERENCE.read_text().partition("\n## Appendix")[2]
    assert len(TABLE) == appendix.count("\n| `")
    assert len(ROWS) == len(re.findall(r"`[^`]+`(?= (?:·|\| [0-7]))", appendix))
    assert len(ROWS) > 50


def test_any_modes_let_through_what_posix_says(shared: Mount) -> None:
    draw = random.Random(15)
    with matrix(shared) as tried:
        for _ in range(8):
            assert tried.try_all(any_rights(draw)) == []
        assert tried.checks > 2000


# -- chmod and what is open or cached ------------------------------------------------------------


def test_the_chmod_of_a_topic_changes_no_partition(shared: Mount) -> None:
    made = may(OWNER, "mkdir here && touch here/1 && chmod 1777 here && touch here/2", shared)
    assert made.stderr == ""
    modes = [stat.S_IMODE((shared / "here" / name).stat().st_mode) for name in "012"]
    assert modes == [0o644, 0o644, 0o644]
    os.chown(shared / "here", OTHER, OTHER)
    assert [(shared / "here" / name).stat().st_uid for name in "012"] == [OWNER] * 3


def test_a_sticky_topic_is_shared_and_its_partitions_are_not(shared: Mount) -> None:
    may(OWNER, "mkdir -m 1777 shared && echo mine >> shared/0", shared)
    may_not(OTHER, "echo x >> shared/0", shared)
    may(OTHER, "umask 077; echo theirs >> shared/1", shared)
    may_not(OWNER, "cat shared/1", shared)
    may_not(OWNER, "echo x >> shared/.append", shared)


def test_names_that_are_known_obey_a_chmod_at_once(shared: Mount) -> None:
    """The kernel has seen them all before; a working directory stays where it was."""
    made = owned(shared, 0o755, 0o644)
    names = ("0", ".kv/0", ".follow/0", "0@0", ".raw/0/00000000000000000000.log", ".meta/0/offsets")
    look = f"cat {' '.join(f't/{name}' for name in names)} && ls t/.raw/0 t/.meta/0"
    may(OTHER, look, shared)
    (made / "0").chmod(0o600)
    for name in names:
        may_not(OTHER, f"cat t/{name}", shared)
    for name in (".raw/0", ".meta/0"):
        may_not(OTHER, f"ls t/{name}", shared)
    (made / "0").chmod(0o644)
    may(OTHER, look, shared)
    inside = (made / ".kv", made / ".raw", made / ".control")
    for directory in inside:
        may(OTHER, f"ls t/{directory.name}", shared)
    standing = [os.open(directory, os.O_PATH) for directory in inside]
    made.chmod(0o700)
    for fd in standing:
        found = os.stat(f"/proc/self/fd/{fd}")
        assert stat.S_IMODE(found.st_mode) == 0o500
        os.close(fd)


def test_open_files_do_not_reach_what_is_made_later(shared: Mount) -> None:
    """A user opens `.append`, `.config` and `.control` of a topic that everybody may write; what
    another makes there afterwards, for himself alone, is out of their reach.
    """
    owned(shared, 0o777, 0o666)
    # By relative names: pytest, started by another test, closes /tmp/pytest-of-root for others.
    command = """
        umask 0
        exec 3>> t/.append 4> t/.control/delete-records 5>> t/.config 6> t/.control/roll
        echo x >&3 && echo 0 0 >&4 && echo run >&6 && echo retention.bytes=-1 >&5 || exit 1
        touch t/1 && echo x >&3 && echo x >&3 && echo run >&6 || exit 2
        echo made; read line
        for fd in 3 4 5 6; do
            echo "1 1" >&$fd && echo "$fd" reaches it
        done
        true
    """
    with subprocess.Popen(
        [*as_user(OTHER), "bash", "-c", command],
        cwd=shared.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        made = other.stdout.readline()
        assert made == "made\n", other.communicate()
        may(OWNER, "umask 077; echo secret >> t/2", shared)
        said, errors = other.communicate("on\n")
    assert said == ""
    assert errors.count("ermission denied") == 4, errors
    assert (shared / "t" / "2").read_bytes() == b"secret\n"


def test_a_partition_of_another_group_closes_what_acts_on_all(shared: Mount) -> None:
    """Where topic and partition have different owners, nobody gets more than both let him."""
    made = owned(shared, 0o775, 0o664)
    os.chown(made, OWNER, GROUP)
    for group, answer in ((GROUP, may), (OWNER, may_not)):
        os.chown(made / "0", OWNER, group)
        answer(OTHER, "echo x >> t/.append", shared, [OTHER, GROUP])
    may(OTHER, "touch t/1", shared, [OTHER, GROUP])
    os.chown(made / "0", OWNER, GROUP)
    may_not(OTHER, "echo x >> t/.append && echo x >> t/.append", shared, [OTHER])


def test_a_user_of_the_group_removes_a_topic(shared: Mount) -> None:
    """By a supplementary group, which only /proc tells."""
    made = owned(shared, 0o775, 0o664)
    os.chown(made, OWNER, GROUP)
    may_not(OTHER, "rmdir t", shared)
    may(OTHER, "rmdir t", shared, [OTHER, GROUP])


def test_a_setgid_directory_hands_its_group_on(shared: Mount) -> None:
    may(OWNER, "mkdir -m 2775 t && echo x >> t/0", shared)
    os.chown(shared / "t", -1, GROUP)
    (shared / "t").chmod(0o2775)
    may(OTHER, "touch t/1", shared, [OTHER, GROUP])
    assert (shared / "t" / "1").stat().st_gid == GROUP
    assert (shared / "t" / "0").stat().st_gid == OWNER
