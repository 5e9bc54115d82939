"""The wrong command at the wrong place: each command that takes a data directory says what is
wrong, in one line, and changes nothing.

The commands are those that click knows, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kafkafs.cli import main
from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.kafkafs.cli.mounting.test_mount_mistakes import fill, tree
from tests.storage.directory.test_mirror import make_mirror, mirrored_line

Arguments = Callable[[str], list[str]]

#: The arguments of each command, for a data directory.
TAKE_A_DIRECTORY: dict[str, Arguments] = {
    "append": lambda data: [data, "orders:0"],
    "append --view batches": lambda data: [data, "orders:0"],
    "cat": lambda data: [data],
    "create": lambda data: [data, "made"],
    "delete": lambda data: [data, "orders"],
    "delete --dry-run": lambda data: [data, "orders"],
    "undelete": lambda data: [data, "orders"],
    "compact": lambda data: [data],
    "compact --dry-run": lambda data: [data],
    "config": lambda data: [data],
    "config --broker-config x": lambda data: [data],
    "convert": lambda data: [data],
    "convert --dry-run": lambda data: [data],
    "detach": lambda data: [data],
    "detach --dry-run": lambda data: [data],
    "detach --undo": lambda data: [data],
    "fetch": lambda data: [data, "orders:0:0:100"],
    "grep": lambda data: ["order", data],
    "ls": lambda data: [data],
    "describe": lambda data: [data],
    "groups ls": lambda data: [data],
    "groups reset": lambda data: [data, "-g", "report", "--to", "earliest"],
    "handover": lambda data: [data, data],
    "handover --dry-run": lambda data: [data, data],
    "points": lambda data: [data],
    "repair": lambda data: [data],
    "repair --apply": lambda data: [data],
    "repair --salvage": lambda data: [data],
    "repair --purge --apply": lambda data: [data],
    "repair --indexes": lambda data: [data],
    "repair --indexes --apply": lambda data: [data],
    "prune": lambda data: [data],
    "prune --dry-run": lambda data: [data],
    "spark compact": lambda data: [data],
    "spark export --dry-run": lambda data: [data, "/nowhere/out"],
    "spark import": lambda data: [data, "orders", os.devnull],
    "spark stats --dry-run": lambda data: [data],
    "spark verify --dry-run": lambda data: [data],
    "verify": lambda data: [data],
    "words": lambda data: [data],
}
#: Those that take none; `mirror`, `mount` and `top`, whose mistakes are in tests of their own; and
#: `doctor`, which says what is wrong with what it is given.
OTHERS = {
    "consume",
    "doctor",
    "dump",
    "mirror",
    "mount",
    "mounts",
    "tail",
    "top",
    "umount",
    "version",
    "wait",
}
#: Those that read one partition's directory, too.
OF_A_PARTITION = {"verify", "repair --indexes", "repair --indexes --apply"}
#: Those that make a topic, or look at what is beside the topics, in a directory without any.
WITHOUT_TOPICS = {"create", "spark import", "undelete"}
TAKES_EMPTY = {
    name
    for name in TAKE_A_DIRECTORY
    if name.split()[0] not in ("detach", "fetch", "handover", "points")
    and name != "groups reset"
    # These would start Spark.
    and name not in ("spark compact", "spark import")
}

#: Those that do not work on what is mounted.
NOT_WHILE_MOUNTED = {
    *("config --broker-config x", "convert", "detach", "detach --undo"),
    *("repair", "repair --apply", "repair --purge --apply", "repair --indexes --apply"),
}

#: Those that change logs or settings: in a mirror, only `kafkafs mirror` may.
CHANGE_LOGS = {
    *("append", "append --view batches", "create", "delete", "undelete", "groups reset"),
    *("compact", "prune", "config --broker-config x", "convert", "detach --undo"),
    *("handover", "handover --dry-run", "spark compact", "spark import"),
}

#: Those that accept the address of a cluster.
ON_CLUSTERS = {"append", "cat", "describe", "grep", "ls"}

#: The exit statuses of commands that have failed; the others have 3.
FAILED = {"dump": 1, "grep": 2, "mount": os.EX_CONFIG}

each_command = pytest.mark.parametrize("command", TAKE_A_DIRECTORY)


def all_commands() -> set[str]:
    """Return the commands that `kafkafs --help` lists, and for a group its subcommands instead."""

    def names(group: click.Group, prefix: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from names(command, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}"

    return set(names(main, ""))


def words_of(command: str, *arguments: str) -> list[str]:
    words = command.split()
    cut = 2 if words[0] in ("groups", "spark") else 1
    return [*words[:cut], *arguments, *words[cut:]]


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, words_of(command, *arguments), prog_name="kafkafs")


def refused(command: str, directory: str) -> str:
    """Why a command does not take a directory: one line."""
    done = run(command, *TAKE_A_DIRECTORY[command](directory))
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == FAILED.get(command, 3), done.output
    assert done.stdout == ""
    assert done.stderr.startswith(f"kafkafs: {directory}: "), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix(f"kafkafs: {directory}: ").removesuffix("\n")


def logs(data: Path) -> dict[Path, tuple[int, int]]:
    """The files of segments, which the daemon leaves alone, unlike the small files beside them."""
    found = tree(data / "orders-0")
    return {path: state for path, state in found.items() if path.suffix in (".log", ".index")}


def test_every_command_is_here() -> None:
    base = {" ".join(word for word in name.split("--")[0].split()) for name in TAKE_A_DIRECTORY}
    assert base | OTHERS == all_commands()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A data directory with a topic, mounted."""
    place = Place(tmp_path_factory.mktemp("mistakes"))
    fill(place.data)
    place.mount()
    yield place
    place.umount()
    place.end()


@each_command
@pytest.mark.programs
def test_in_a_mount_but_no_log(mounted: Place, command: str) -> None:
    """… the line says what to type."""
    before = logs(mounted.data)
    a_range = () if command in ("cat", "grep") else ("orders/0@start",)
    for name in ("orders/.raw/0", ".kafkafs", *a_range):
        topic = "" if name.startswith(".") else "/orders"
        line = refused(command, f"{mounted.path}/{name}")
        assert line.startswith("not a topic or partition. Try: kafkafs ")
        assert line.endswith(f" {mounted.path}{topic}")
    assert logs(mounted.data) == before


@pytest.mark.parametrize("command", sorted(NOT_WHILE_MOUNTED))
@pytest.mark.programs
def test_a_mount_of_what_must_not_be_mounted(mounted: Place, command: str) -> None:
    """… is named, with what ends it."""
    before = logs(mounted.data)
    words = TAKE_A_DIRECTORY[command](str(mounted.data))
    for given in (mounted.data, mounted.path):
        done = run(command, str(given), *words[1:])
        assert done.exit_code == 3
        if command != "config --broker-config x":
            assert f"in use by process {mounted.pid}" in done.stderr
            assert (
                f"mounted at {mounted.path}. To unmount it: kafkafs umount {mounted.path}"
                in done.stderr
            )
    assert logs(mounted.data) == before


@pytest.mark.parametrize(
    "command",
    sorted(
        {*(NOT_WHILE_MOUNTED - {"repair"}), "append --view batches", "compact", "handover", "prune"}
    ),
)
@pytest.mark.programs
def test_a_read_only_mount(tmp_path: Path, command: str) -> None:
    """… changes nothing, and the line says how to do without it."""
    place = Place(tmp_path)
    fill(place.data)
    try:
        place.mount("-o", "ro")
        before = tree(place.data)
        words = TAKE_A_DIRECTORY[command](str(place.path))
        line = refused(command, str(place.path)) if len(words) == 1 else run(command, *words).stderr
        assert "mounted read-only. Try: kafkafs " in line
        assert f"{place.data}" in line
        assert tree(place.data) == before
    finally:
        place.umount()
        place.end()


@pytest.fixture
def mirror(place: Place) -> Place:
    """A mirror, which is mounted read-only by itself."""
    fill(place.data)
    make_mirror(place.data)
    done = kafkafs("mount", place.data, place.path)
    assert done.returncode == 0
    assert done.stdout == f"mounted {place.data} on {place.path}, 1 topic, read-only\n"
    assert done.stderr == f"kafkafs: {mirrored_line(place.data)}. The mount is read-only\n"
    return place


@pytest.mark.parametrize(
    "command",
    sorted(
        TAKE_A_DIRECTORY.keys()
        - {"detach", "fetch", "words", "repair --apply", "repair --purge --apply"}
    ),
)
def test_a_mirror(tmp_path: Path, command: str) -> None:
    """… is changed by no command; one line says what ends it."""
    fill(tmp_path)
    make_mirror(tmp_path)
    before = tree(tmp_path)
    done = run(command, *TAKE_A_DIRECTORY[command](str(tmp_path)))
    is_refused = done.stderr == f"kafkafs: {mirrored_line(tmp_path)}\n"
    assert is_refused == (command in CHANGE_LOGS), done
    assert done.exit_code == 3 or not is_refused
    assert tree(tmp_path) == before


@pytest.mark.parametrize("option", ["", "--purge", "--log-start=first", "--indexes"])
def test_a_repair_of_a_mirror(tmp_path: Path, option: str) -> None:
    """… brings no record back, and hides none."""
    fill(tmp_path)
    make_mirror(tmp_path)
    before = logs(tmp_path)
    for refused_option in ("--salvage", "--accept-loss"):
        done = run("repair --apply", str(tmp_path), refused_option)
        assert (done.exit_code, done.stderr) == (3, f"kafkafs: {mirrored_line(tmp_path)}\n")
    done = run("repair --apply", str(tmp_path), *option.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert logs(tmp_path) == before


@pytest.mark.parametrize(
    "words",
    [["config", "orders", "retention.ms=1"], ["append", "orders"], ["prune"]],
    ids=" ".join,
)
@pytest.mark.programs
def test_a_read_only_mount_of_a_mirror(mirror: Place, words: list[str]) -> None:
    """… and the directory itself: the line does not say to try the other."""
    before = tree(mirror.data)
    for given in (mirror.data, mirror.path):
        done = kafkafs(words[0], given, *words[1:])
        assert (done.returncode, done.stderr) == (3, f"kafkafs: {mirrored_line(mirror.data)}\n")
    assert tree(mirror.data) == before


@pytest.mark.programs
def test_a_read_only_mount_beside_one_that_writes(tmp_path: Path) -> None:
    """The lines to type are those that would not be refused."""
    place = Place(tmp_path)
    fill(place.data)
    writes = tmp_path / "writes"
    writes.mkdir()
    try:
        place.mount("-o", "ro")
        assert kafkafs("mount", place.data, writes).returncode == 0
        what = f"kafkafs: {place.path}: mounted read-only"
        done = run("append", str(place.path), "orders")
        assert done.stderr == f"{what}. Try: kafkafs append {writes} orders\n"
        done = run("append", str(place.path), "nope")
        assert done.stderr == f"kafkafs: {place.data}: there is no topic 'nope'\n"
        done = run("repair --apply", str(place.path))
        assert done.stderr.startswith(f"{what}; the data directory is in use by process")
        assert done.stderr.endswith(f"To unmount it: kafkafs umount {writes}\n")
    finally:
        kafkafs("umount", writes)
        place.umount()
        place.end()


@each_command
def test_no_data_directory(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """… but an empty one, another program's, one that is missing, or a file."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "others" / "release-17").mkdir(parents=True)
    (tmp_path / "others" / "release-17" / "notes").write_text("mine\n")
    (tmp_path / "file").write_text("mine\n")
    before = tree(tmp_path)
    if command not in WITHOUT_TOPICS:
        assert "not a Kafka data directory" in refused(command, str(tmp_path / "empty"))
        monkeypatch.chdir(tmp_path / "empty")
        if not command.startswith("spark"):
            assert "not a Kafka data directory" in refused(command, ".")
    assert "not a Kafka data directory" in refused(command, str(tmp_path / "others"))
    assert "no such data directory" in refused(command, str(tmp_path / "missing"))
    assert "a file" in refused(command, str(tmp_path / "file"))
    addresses = ["localhost:9092", "b1.example.com:9092,[::1]:9093"]
    if command.split()[0] not in ON_CLUSTERS and command != "groups ls":
        addresses += ["kafka://localhost:9092", "kafka://localhost:9092/orders"]
    for address in addresses:
        assert "this is the address of a broker" in refused(command, address)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", sorted(TAKES_EMPTY))
def test_what_is_allowed_to_be_empty(tmp_path: Path, command: str) -> None:
    """A directory without partitions is an error unless `--allow-empty`."""
    done = run(command, *TAKE_A_DIRECTORY[command](str(tmp_path)), "--allow-empty")
    assert "not a Kafka data directory" not in done.output


def test_verify_of_a_directory_without_topics(tmp_path: Path) -> None:
    LogManager.open(str(tmp_path)).close()
    assert refused("verify", str(tmp_path)) == (
        "not a Kafka data directory (no partitions found). To create a topic in it: "
        f"kafkafs create {tmp_path} TOPIC; to use it without partitions: --allow-empty"
    )
    assert "not a Kafka data directory" in refused("verify", "/etc")
    done = run("verify", str(tmp_path), "--allow-empty")
    assert (done.exit_code, done.output) == (0, "0 partitions with 0 records, 0B: whole\n")
    assert run("config", str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("command", sorted(TAKE_A_DIRECTORY.keys() - OF_A_PARTITION))
def test_one_partitions_directory(tmp_path: Path, command: str) -> None:
    fill(tmp_path)
    before = tree(tmp_path)
    line = refused(command, str(tmp_path / "orders-0"))
    assert line.startswith("this is the directory of one partition, not a data directory: kafkafs ")
    assert line.endswith(f" {tmp_path}")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", sorted(OF_A_PARTITION))
def test_one_partitions_directory_is_read(tmp_path: Path, command: str) -> None:
    fill(tmp_path)
    assert run(command, str(tmp_path / "orders-0")).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "DATA", "order"],
        ["compact", "DATA", "order:0"],
        ["compact", "DATA", "DATA"],
        ["prune", "DATA", "orders:7"],
        ["prune", "--dry-run", "DATA", "order"],
        ["config", "DATA", "order"],
        ["config", "DATA", "order", "retention.ms=1"],
        ["convert", "DATA", "order"],
        ["handover", "DATA", "DATA", "order"],
        ["fetch", "DATA", "order:0:0:9"],
        ["append", "DATA", "order:0", "--view", "batches"],
        ["spark", "stats", "DATA", "order", "--dry-run"],
        ["umount", "DATA"],
        ["wait", "DATA"],
        ["wait", "DATA/orders-0/00000000000000000000.log"],
        ["wait", ""],
        ["verify", ""],
    ],
    ids=" ".join,
)
def test_a_name_that_is_not_there(tmp_path: Path, words: list[str]) -> None:
    """… or a data directory where something else is wanted."""
    fill(tmp_path)
    before = tree(tmp_path / "orders-0")
    done = CliRunner().invoke(main, [word.replace("DATA", str(tmp_path)) for word in words])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 3
    assert done.stderr.count("\n") == 1, done.stderr
    assert "(file" not in done.stderr
    assert "Errno" not in done.stderr
    assert tree(tmp_path / "orders-0") == before


@pytest.mark.programs
def test_umount_of_what_is_no_mount_point(mounted: Place) -> None:
    for path in (mounted.data, mounted.path / "orders", mounted.path / "orders" / "0"):
        done = kafkafs("umount", path)
        assert done.returncode == 3
        assert done.stderr == (
            f"kafkafs: {path}: not a kafkafs mount. Try: kafkafs umount {mounted.path}\n"
        )
    assert os.path.ismount(mounted.path)


def test_a_copy_of_one_partition_under_any_name(tmp_path: Path) -> None:
    fill(tmp_path)
    shutil.copytree(tmp_path / "orders-0", tmp_path / "copy")
    assert "the directory of one partition" in refused("prune", str(tmp_path / "copy"))


@pytest.mark.parametrize("given", ["", "/orders", "/.kafkafs", "/orders/0"])
@pytest.mark.programs
def test_wait_for_what_is_no_job(mounted: Place, given: str) -> None:
    done = run("wait", f"{mounted.path}{given}")
    assert (done.exit_code, done.stderr) == (
        3,
        f"kafkafs: {mounted.path}{given}: not the control file of a job, "
        "such as TOPIC/.control/compaction\n",
    )


def test_dump_of_what_is_no_file_of_a_log(tmp_path: Path) -> None:
    """The lines are those of DumpLogSegments; where nothing was printed it is an error."""
    fill(tmp_path)
    for name in ("", "orders-0", "missing", "orders-0/partition.metadata"):
        done = run("dump", str(tmp_path / name))
        assert done.exit_code == 1
        assert "Ignoring unknown file" in done.stderr
        known = ".txnindex, .snapshot, .checkpoint)"
        # A partition that is named as one leads to its segments.
        leads = f". Try: kafkafs dump {tmp_path}/{name}/*.log" if name == "orders-0" else ""
        assert done.stderr.endswith(f"{known}{leads}\n")
    names = [str(path) for path in (tmp_path / "orders-0").iterdir()]
    assert run("dump", *names).exit_code == 0


@pytest.mark.programs
def test_umount_from_inside(tmp_path: Path) -> None:
    """The command itself does not keep the mount busy."""
    place = Place(tmp_path)
    try:
        place.mount()
        done = subprocess.run([*KAFKAFS, "umount", "."], cwd=place.path, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
    finally:
        place.end()


@pytest.mark.programs
def test_umount_by_another_user(mounted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1000)
    for options in ("", " --lazy", " --force"):
        done = run(f"umount{options}", str(mounted.path))
        assert (done.exit_code, done.stderr) == (
            3,
            f"kafkafs: {mounted.path}: mounted by user {user}; only that user and root "
            "may unmount it\n",
        )
    assert os.path.ismount(mounted.path)


@pytest.mark.parametrize(
    "command",
    [
        *(name for name in TAKE_A_DIRECTORY if not name.startswith("spark")),
        *("consume", "mount", "tail", "top --once", "umount", "wait"),
    ],
)
def test_an_empty_name(command: str) -> None:
    """… of a variable that is not set, say, does not mean the working directory."""
    words = TAKE_A_DIRECTORY[command]("") if command in TAKE_A_DIRECTORY else [""]
    done = run(command, *words, *(["mnt"] if command == "mount" else []))
    assert done.exit_code == FAILED.get(command, 3)
    assert done.stdout == ""
    what = "DATA is empty" if command == "mount" else "empty path"
    assert done.stderr == f"kafkafs: {what} (is a shell variable unset?)\n"


@pytest.mark.parametrize("command", ["append", "append --view batches"])
def test_a_topic_that_can_be_created(tmp_path: Path, command: str) -> None:
    """… is proposed to be: in an empty directory, in one without topics, beside other topics."""
    for given in (tmp_path / "empty", tmp_path / "a log"):
        given.mkdir()
    create = f"To create a topic in it: kafkafs create {tmp_path}/empty orders"
    assert create in refused(command, str(tmp_path / "empty"))
    data = str(tmp_path / "a log")
    LogManager.open(data).close()
    assert f"To create a topic in it: kafkafs create '{data}' orders" in refused(command, data)
    fill(tmp_path / "a log")
    assert run(command, data, "nope:0").stderr == (
        f"kafkafs: there is no topic 'nope'. To create it: kafkafs create '{data}' nope\n"
    )
    assert run(command, data, "order:0").stderr == (
        f"kafkafs: there is no topic 'order': did you mean 'orders'? "
        f"To create it: kafkafs create '{data}' order\n"
    )


@pytest.mark.parametrize("command", ["config", "create"])
def test_settings_of_which_several_are_wrong(tmp_path: Path, command: str) -> None:
    """… are named, all of them."""
    fill(tmp_path)
    topic = "orders" if command == "config" else "made"
    done = run(command, str(tmp_path), topic, "a=b", "retention.ms=7d", "segment.ms=x", "c=d")
    assert (done.exit_code, done.stdout) == (3, "")
    first, second, third = done.stderr.removeprefix("kafkafs: ").split("; ")
    assert (first, third) == ("there is no setting 'a'", "there is no setting 'c'\n")
    assert second.startswith("segment.ms=x is not ")
