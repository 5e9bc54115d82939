"""Files in the data directory are never wider than what the mount lets users do."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.mounting import Mount, kafkafs, mounted, needs_root

pytestmark = needs_root

ALICE = 54321


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Mount]:
    """A mount of a directory that all may look into."""
    with mounted(tmp_path, "allow_other") as mount:
        yield mount


def open_to_others(mount: Mount, pattern: str) -> dict[str, int]:
    """The modes of directories and files that somebody else than root may use."""
    found = {}
    for directory in mount.data.glob(pattern):
        for path in (directory, *directory.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o600 == 0o600, path
            if mode & 0o077:
                found[str(path.relative_to(mount.data))] = mode
    return found


def use(mount: Mount, topic: str) -> None:
    """Whatever makes files: appends, rolls, views, compaction, retention, checkpoints."""
    mount.run(
        """
        for turn in 1 2 3; do
            printf 'a\\t%s\\nb\\t%s\\n' $turn $turn >> "$T/.kv/append"
            echo run > "$T/.control/roll"
            cat "$T"/0 "$T"/.kv/0 "$T"/.jsonl/0 "$T"/.follow/0@-1 > /dev/null
        done
        echo cleanup.policy=compact,delete >> "$T/.config"
        echo run > "$T/.control/compaction"
        """,
        T=topic,
    )
    assert kafkafs("wait", mount / topic / ".control/compaction").returncode == 0
    mount.run(
        """
        echo 0 1 > "$T/.control/delete-records"
        echo run > "$T/.control/retention"
        printf 'c\tlast\n' >> "$T/.kv/0"
        echo run > "$T/.control/flush"
        """,
        T=topic,
    )


def test_nothing_of_a_private_topic_is_readable(private: Mount) -> None:
    private.run("mkdir -m 700 secret; touch secret/1; mkdir plain; umask 077; touch plain/1")
    use(private, "secret")
    use(private, "plain")
    private.restart()
    use(private, "secret")
    assert len(list((private.data / "secret-0").iterdir())) > 8
    assert open_to_others(private, "secret-*") == {}
    assert open_to_others(private, "plain-1") == {}
    shown = open_to_others(private, "plain-0")
    assert shown.pop("plain-0") == 0o755
    assert {*shown.values()} == {0o644}


def test_a_chmod_reaches_the_files_that_are_there_and_later_ones(private: Mount) -> None:
    private.run("mkdir t")
    use(private, "t")
    assert open_to_others(private, "t-0")["t-0"] == 0o755
    private.run("chmod 600 t/0")
    assert open_to_others(private, "t-0") == {}
    use(private, "t")
    assert open_to_others(private, "t-0") == {}
    private.run("chmod 644 t/0; chmod 750 t")
    # Members of the topic's group can reach it, other users cannot.
    assert {*open_to_others(private, "t-0").values()} == {0o750, 0o640}
    os.chown(private / "t", ALICE, ALICE)
    assert open_to_others(private, "t-0") == {}, "root's group is not the topic's"
    private.run("chmod 755 t")
    use(private, "t")
    shown = open_to_others(private, "t-0")
    assert shown.pop("t-0") == 0o755
    assert {*shown.values()} == {0o644}


def test_a_new_partition_is_private_before_it_has_a_file(private: Mount) -> None:
    private.run("mkdir t; umask 077; touch t/1")
    assert open_to_others(private, "t-1") == {}
    private.run("chmod 700 t; umask 022; touch t/2")
    assert open_to_others(private, "t-*") == {}


def test_files_are_not_wider_than_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o750)
    with mounted(tmp_path) as mount:
        mount.run("mkdir t; echo x >> t/0; chmod 700 t; chmod 755 t; chmod 644 t/0; echo x >> t/0")
        mount.restart()
        for path in mount.data.rglob("*"):
            if path.name != "kafkafs.properties":
                assert path.stat().st_mode & 0o007 == 0, path


def test_what_is_cut_and_kept_stays_private(private: Mount) -> None:
    private.run("mkdir -m 700 t; seq 1000 >> t/0")
    private.kill()
    log = next((private.data / "t-0").glob("*.log"))
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)
    private.start()
    assert any(path.name.endswith(".cut") for path in (private.data / "t-0").iterdir())
    assert open_to_others(private, "t-0") == {}


def test_commands_without_a_mount_keep_it(private: Mount) -> None:
    private.run("mkdir -m 700 t; seq 1000 >> t/0; echo run > t/.control/roll; seq 1000 >> t/0")
    private.run("echo cleanup.policy=compact >> t/.config")
    private.stop()
    for command in (["compact"], ["prune"], ["repair", "--indexes", "--apply"], ["config"]):
        rest = ["t", "retention.ms=1d"] if command == ["config"] else []
        done = kafkafs(*command, private.data, *rest)
        assert done.returncode == 0, done.stderr
        assert open_to_others(private, "t-0") == {}, command
    private.start()


def test_a_private_topic_in_open_files_is_named(private: Mount) -> None:
    private.run("mkdir -m 700 t; mkdir u; touch t/1; echo x >> t/0; echo x >> u/0")
    assert "users without access in the mount" not in private.events()
    private.stop()
    (private.data / "t-0").chmod(0o755)
    (private.data / "u-0").chmod(0o755)
    private.start()
    assert "users without access in the mount" not in private.events(), (
        "only the names of files can"
    )
    private.stop()
    log = next((private.data / "t-0").glob("*.log"))
    log.chmod(0o644)
    done = kafkafs("mount", private.data, private.path)
    command = f"chmod go= {private.data}/t-0"
    assert done.stderr.count("\n") == 1
    assert f"can read the files of private partitions (1). To close them: {command}\n" in (
        done.stderr
    )
    assert kafkafs("umount", private.path).returncode == 0
    private.start("ro")
    assert command in private.events()
    private.restart()
    private.run("chmod 700 t")
    assert open_to_others(private, "t-0") == {}
    private.restart()
    assert "users without access in the mount" not in private.events()


def test_many_private_partitions_are_counted(private: Mount) -> None:
    private.run("mkdir -m 700 t; touch t/{1..10}")
    private.stop()
    for path in (*private.data.glob("t-*"), *private.data.glob("t-*/*")):
        path.chmod(0o755)
    private.start()
    assert f"private partitions (11). To close them: chmod go= {private.data}" in (private.events())
    private.stop()
    settings = private.data / "t-0/kafkafs-topic.properties"
    kept = settings.read_bytes()
    settings.write_bytes(b"\xff")
    private.start("ro,allow_other")
    assert (private / "t").stat().st_mode & 0o077 == 0
    assert "users without access in the mount" not in private.events(), "whose it is is not known"
    private.stop()
    settings.write_bytes(kept)
    private.start()


def test_what_a_mount_hides_is_hidden_on_the_disk(private: Mount) -> None:
    private.restart("allow_other,umask=027")
    private.run("umask 0; mkdir t; echo x >> t/0; touch t/1; chmod 777 t; chmod 666 t/0")
    assert (private / "t/0").stat().st_mode & 0o777 == 0o640
    assert {*open_to_others(private, "t-*").values()} == {0o750, 0o640}


def test_a_chmod_of_a_topic_that_nobody_made_here_changes_no_partition(private: Mount) -> None:
    private.run("mkdir t")
    private.stop()
    (private.data / "t-0/kafkafs-topic.properties").unlink()
    private.data.chmod(0o777)
    private.start()
    assert (private / "t/0").stat().st_mode & 0o777 == 0o644
    private.run("chmod 1777 t")
    private.restart()
    assert (private / "t/0").stat().st_mode & 0o777 == 0o644


def test_what_root_writes_belongs_to_the_daemon_s_user(private: Mount) -> None:
    """All files belong to the owner of the data directory, so no mode locks the daemon out."""
    private.run("mkdir -m 700 t; seq 100 >> t/0; echo run > t/.control/roll; seq 100 >> t/0")
    private.run("echo cleanup.policy=compact >> t/.config")
    private.stop()
    for path in (private.data, *private.data.rglob("*")):
        os.chown(path, ALICE, ALICE)
    for command in (["compact"], ["repair", "--indexes", "--apply"], ["prune"], ["config"]):
        rest = ["t", "retention.ms=1d"] if command == ["config"] else []
        done = kafkafs(*command, private.data, *rest)
        assert done.returncode == 0, done.stderr
    private.start()
    private.run(
        "echo run > t/.control/roll; printf 'a\\tb\\n' >> t/.kv/0; chmod 750 t; chmod 700 t"
    )
    private.stop()
    assert {path.stat().st_uid for path in private.data.rglob("*")} == {ALICE}
    assert open_to_others(private, "t-0") == {}


def test_a_root_who_may_give_nothing_away_writes_all_the_same(tmp_path: Path) -> None:
    """As in a container without the capability, in a directory that everybody may write."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    os.chown(tmp_path / "theirs", ALICE, ALICE)
    script = f"""
import os
from storage.files import Files
Files().close(Files().open({str(tmp_path / "theirs/new")!r}, os.O_WRONLY | os.O_CREAT))
"""
    command = ["setpriv", "--bounding-set=-chown", sys.executable, "-c", script]
    subprocess.run(command, check=True)
    assert (tmp_path / "theirs/new").stat().st_uid == 0


def test_a_broker_s_files_keep_their_modes(private: Mount) -> None:
    private.run("mkdir t; echo x >> t/0")
    private.stop()
    (private.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for path in (private.data, *private.data.rglob("*")):
        os.chown(path, ALICE, ALICE)
    before = open_to_others(private, "t-0")
    private.start()
    private.run("chmod 700 t; echo run > t/.control/roll; echo x >> t/0")
    assert private.events().count("modes of a broker's files were not changed") == 1
    found = open_to_others(private, "t-0")
    kept = [name for name in before if (private.data / name).exists()]
    assert len(kept) > 5
    assert {name: found.get(name) for name in kept} == {name: before[name] for name in kept}
    new = [
        path for path in (private.data / "t-0").iterdir() if path.name.startswith("0" * 19 + "1")
    ]
    assert len(new) > 2
    # The broker reads and writes them as its own.
    assert {path.stat().st_uid for path in new} == {ALICE}
    private.restart()
    assert "users without access in the mount" in private.events()
    with LogManager.open(str(private.data), read_only=True) as manager:
        assert manager.settings.is_brokers
