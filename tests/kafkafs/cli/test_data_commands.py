"""Commands for whole logs, as processes: `fetch`, `verify`, `convert`; batches and indexes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from storage import LogManager
from storage.state.gaps_file import FILE_NAME as GAPS
from storage.state.gaps_file import Gap
from tests import fetch_responses
from tests.fetch_responses import Response, decode_multi_response, decode_response
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, kafkafs
from tests.storage.logs import append, batch, values
from tests.storage.old_logs import content, old_file, write_legacy, write_old
from tests.waits import HANG_S

pytestmark = pytest.mark.programs


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A closed data directory: `orders` with two partitions, the first of three records."""
    path = tmp_path / "data"
    path.mkdir()
    with LogManager.open(str(path)) as manager:
        topic = manager.create_topic("orders", 2)
        for value in (b"one", b"two", b"three"):
            append(topic.partitions[0], value)
    return path


def run(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command whose output is binary."""
    return subprocess.run(
        [*KAFKAFS, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        timeout=HANG_S,
    )


def payloads(response: Response) -> list[bytes]:
    assert response.error == 0
    return fetch_responses.payloads(response.messages)


def stored(data: Path, partition: int = 0) -> list[bytes | None]:
    with LogManager.open(str(data)) as manager:
        return values(manager.log("orders", partition))


# -- fetch ---------------------------------------------------------------------------------------


def test_one_request_is_a_message_set_send(data: Path) -> None:
    done = run("fetch", data, "orders:0:1:1000")
    assert (done.returncode, done.stderr) == (0, b"orders:0: 2 messages, next offset 3\n")
    assert payloads(decode_response(done.stdout)) == [b"two", b"three"]


def test_several_requests_are_a_multi_message_set_send(data: Path) -> None:
    done = run("fetch", data, "orders:0:earliest:12", "orders:1:0:9", "orders:0:latest:9")
    assert done.returncode == 0
    found = [payloads(response) for response in decode_multi_response(done.stdout)]
    assert found == [[b"one"], [], []]


def test_an_offset_outside_of_the_log(data: Path) -> None:
    done = run("fetch", data, "orders:0:4:10", "orders:0:2:100")
    assert done.returncode == 1
    assert b"OffsetOutOfRange: orders:0: offset 4 is outside the log" in done.stderr
    refused, found = decode_multi_response(done.stdout)
    assert (refused.error, len(refused.messages)) == (1, 0)
    assert payloads(found) == [b"three"]
    for reset, expected in (("earliest", [b"one"]), ("latest", [])):
        done = run("fetch", "--reset", reset, data, "orders:0:4:12")
        assert done.returncode == 0
        assert payloads(decode_response(done.stdout)) == expected
    done = run("fetch", "--reset", "earliest", data, "orders:0:3:12")
    assert payloads(decode_response(done.stdout)) == [], "the log end is inside"


def test_what_cannot_be_fetched(data: Path) -> None:
    for place in ("orders:9:0:1", "nothing:0:0:1"):
        done = run("fetch", data, place)
        assert (done.returncode, done.stdout) == (3, b"")
        assert done.stderr.startswith(b"kafkafs: ")
        assert done.stderr.count(b"\n") == 1
    for place in (
        "orders:0:0",
        "orders:0:-1:1",
        "orders:x:0:1",
        "orders:0:0:0",
        ":0:0:1",
        "orders",
    ):
        assert run("fetch", data, place).returncode == 2
    assert run("fetch", data / "nothing", "orders:0:0:1").returncode == 3


def test_a_mounted_directory_is_read(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    with (place.path / "orders" / "0").open("ab") as file:
        file.write(b"through the mount\n")
    for words in (
        (place.data, "orders:0:0:100"),
        (place.path, "orders:0:0:100"),
        (place.path / "orders" / "0:0:100",),
        (place.path / "orders" / "0:earliest:100",),
    ):
        done = run("fetch", *words)
        assert payloads(decode_response(done.stdout)) == [b"through the mount"]
    for wrong in ((place.path / "orders" / "0", "0:100"), (place.path / "orders:0:100",)):
        assert run("fetch", *wrong).returncode != 0


# -- append --view batches -------------------------------------------------------------------------


def test_a_log_is_appended_to_another(data: Path) -> None:
    log = next((data / "orders-0").glob("*.log")).read_bytes()
    done = run("append", "--view", "batches", data, "orders:1", stdin=log)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b""
    assert stored(data, 1) == [b"one", b"two", b"three"]
    assert (data / ".kafka_cleanshutdown").exists()
    done = run("append", "--view", "batches", data, "orders:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_refused_is_told_with_its_position(data: Path) -> None:
    good = bytes(batch([b"good"]))
    done = run("append", "--view", "batches", data, "orders:1", stdin=good + good[:-1])
    assert done.returncode == 3
    assert done.stderr.decode() == (
        f"kafkafs: batch 2 of standard input: incomplete, {len(good) - 1} bytes; "
        "all batches before it were appended\n"
    )
    assert stored(data, 1) == [b"good"]
    assert run("append", "--view", "batches", data, "nothing:0", stdin=good).returncode == 3
    assert run("append", "--view", "batches", data, "orders", stdin=good).returncode == 2


def test_a_log_is_not_appended_to_itself(data: Path) -> None:
    path = next((data / "orders-0").glob("*.log"))
    before = path.read_bytes()
    with path.open("rb") as file:
        done = subprocess.run(
            [*KAFKAFS, "append", "--view", "batches", str(data), "orders:0"],
            stdin=file,
            capture_output=True,
            cwd=ROOT,
            timeout=HANG_S,
        )
    assert (done.returncode, done.stderr) == (
        3,
        b"kafkafs: standard input is a file of the same partition\n",
    )
    assert path.read_bytes() == before


def test_what_is_mounted_is_appended_to_by_the_daemon(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    good = bytes(batch([b"x", b"y"]))
    for words in (
        (place.data, "orders:0"),
        (place.path, "orders:0"),
        (place.path / "orders" / "0",),
    ):
        done = run("append", "--view", "batches", *words, stdin=good)
        assert (done.returncode, done.stderr) == (0, b"")
    assert (place.path / "orders" / "0").read_text() == "x\ny\n" * 3
    for wrong in (good[:-1], good[:-1] + b"!"):
        done = run("append", "--view", "batches", place.path / "orders" / "0", stdin=good + wrong)
        assert done.returncode == 3
        assert done.stderr.startswith(b"kafkafs: batch 2 of standard input: ")
        assert done.stderr.endswith(b"; all batches before it were appended\n")
        facts = (place.path / "orders" / ".meta" / "0" / "offsets").read_text()
        offsets = dict(line.split() for line in facts.splitlines())
        assert offsets["recovery_point"] == offsets["log_end"], "they are on the disk"
    own = place.path / "orders" / ".batches" / "0"
    size = own.stat().st_size
    for itself in (own, place.data / "orders-0" / f"{0:020}.log"):
        with itself.open("rb") as file:
            done = subprocess.run(
                [*KAFKAFS, "append", "--view", "batches", str(place.path / "orders" / "0")],
                stdin=file,
                capture_output=True,
                cwd=ROOT,
                timeout=HANG_S,
            )
        assert (done.returncode, done.stderr) == (
            3,
            b"kafkafs: standard input is a file of the same partition\n",
        )
    assert own.stat().st_size == size


# -- verify --------------------------------------------------------------------------------------


def test_verify_says_whole_and_names_what_is_left_over(data: Path) -> None:
    done = kafkafs("verify", data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(": whole\n")
    assert done.stdout.startswith("2 partitions with 3 records, ")
    cut = data / "orders-0" / f"{0:020}.log.9.cut"
    cut.touch()
    done = kafkafs("verify", data)
    assert done.returncode == 0
    assert done.stdout.startswith(f"left over: {cut}: ")


def test_gaps_of_a_mirror_are_listed(data: Path) -> None:
    with LogManager.open(str(data)) as manager:
        manager.log("orders", 0).note_gaps(Gap("deleted", 3, 9, 1_700_000_000_000))
    path = data / "orders-0" / GAPS
    done = kafkafs("verify", "--epoch", data)
    assert done.returncode == 0
    assert done.stdout.startswith(f"gap: {path}: deleted 3 9 1700000000000\n")
    described = kafkafs("describe", "--epoch", data).stdout.splitlines()
    assert described[3:] == ["orders:0 gap deleted 3 9 1700000000000"]
    path.write_text("rubbish")
    described = kafkafs("describe", "--epoch", data).stdout.splitlines()
    assert described[3:] == ["orders:0 gap unreadable - - -"]


def test_verify_names_faults_and_changes_nothing(data: Path) -> None:
    path = next((data / "orders-0").glob("*.log"))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"two")] ^= 1
    path.write_bytes(damaged)
    before = content(data)
    done = kafkafs("verify", data)
    assert done.returncode == 1
    position = len(batch([b"one"]))
    lines = done.stdout.splitlines()
    assert lines[0] == f"{path}: position {position}: offset 1: the CRC is wrong"
    assert lines[1].endswith("B: 1 fault")
    assert content(data) == before
    assert kafkafs("verify", data / "nothing").returncode == 3


def test_a_partition_that_is_a_link_is_not_left_out(data: Path) -> None:
    (data / "orders-1").rename(data / "aside")
    (data / "orders-1").symlink_to("aside")
    (data / "links-0").symlink_to("aside")
    for topic, partition in (("orders", "orders-1"), ("links", "links-0")):
        reason = f"kafkafs: {partition}: cannot open: "
        done = kafkafs("grep", "", data, topic)
        assert (done.returncode, done.stderr.count(reason)) == (2, 1)
        done = kafkafs("cat", data, topic)
        assert (done.returncode, done.stderr.count(reason)) == (3, 1)
        done = kafkafs("verify", data, topic)
        assert done.returncode == 1
        assert done.stdout.startswith(f"{data / partition}: the path contains a symbolic link; ")
        rows = kafkafs("describe", data, topic).stdout.splitlines()
        assert [row.split()[:3] for row in rows if row.startswith(topic)][-1] == [
            *(topic, partition[-1], "-"),
        ]
    before = content(data)
    for others in (["--indexes"], ["--indexes", "--apply"]):
        for places in ([], ["links"], ["orders:1"]):
            done = kafkafs("repair", *others, data, *places)
            assert (done.returncode, "contains a symbolic link" in done.stderr) == (3, True)
    for places in ([], ["links"]):
        done = kafkafs("convert", data, *places)
        assert (done.returncode, "contains a symbolic link" in done.stderr) == (3, True)
    for command in (["config", data, "links", "retention.ms=5"], ["create", data, "links"]):
        done = kafkafs(*command)
        assert (done.returncode, "there is no topic" in done.stderr) == (3, False)
    assert "links-0" in kafkafs("doctor", data).stdout
    assert content(data) == before


def test_a_deleted_link_cannot_be_restored(place: Place) -> None:
    kafkafs("create", place.data, "orders")
    (place.data / "aside").mkdir()
    for topic in ("links", "others"):
        (place.data / f"{topic}-0").symlink_to("aside")
    done = kafkafs("delete", "--dry-run", place.data, "links")
    assert done.stdout == "would delete links, 1 partition; it could not be restored\n"
    done = kafkafs("delete", place.data, "links")
    assert done.stdout == "deleted links; it cannot be restored\n"
    assert "others-0: cannot open" in kafkafs("mount", place.data, place.path).stderr
    done = kafkafs("delete", place.path, "others")
    assert done.stdout == "deleted others; it cannot be restored\n"
    assert (place.data / "aside").is_dir()


# -- convert -------------------------------------------------------------------------------------


def test_convert(tmp_path: Path) -> None:
    directory = write_legacy(tmp_path, "t", 1)
    old = write_old(tmp_path, "u", old_file(b"one"))
    before = content(tmp_path)
    done = kafkafs("convert", tmp_path, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n3 files would be converted\n")
    assert content(tmp_path) == before
    done = kafkafs("convert", tmp_path, "u")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{old}/{0:020}.kafka: ")
    done = kafkafs("convert", tmp_path)
    assert done.stdout.startswith(f"{directory}/{5:020}.log: 100 records, 5 batches, ")
    assert kafkafs("convert", tmp_path).stdout == "0 files converted\n"
    assert kafkafs("verify", tmp_path).returncode == 0
    assert kafkafs("convert", tmp_path, "v").returncode == 3


def test_convert_names_what_is_damaged(tmp_path: Path) -> None:
    directory = write_old(tmp_path, "u", old_file(b"one"), old_file(b"two"))
    path = directory / f"{0:020}.kafka"
    path.write_bytes(path.read_bytes().replace(b"one", b"0ne", 1))
    done = kafkafs("convert", tmp_path)
    assert done.returncode == 3
    assert str(path) in done.stderr
    assert done.stdout == "0 files converted\n"


# -- repair --indexes ------------------------------------------------------------------------------


def test_reindex(data: Path) -> None:
    index = next((data / "orders-0").glob("*.index"))
    times = index.with_suffix(".timeindex")
    before = times.read_bytes()
    index.write_bytes(b"12345678")
    times.unlink()
    done = kafkafs("repair", "--indexes", data)
    assert done.returncode == 1
    assert f"{times}: missing, 1 entry\n" in done.stdout
    assert done.stdout.endswith("files differ\nnothing was changed; to do this, add --apply\n")
    assert not times.exists()
    done = kafkafs("repair", "--indexes", "--apply", data)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("2 segments read, 2 files rebuilt\n")
    assert (index.read_bytes(), times.read_bytes()) == (b"", before)
    assert kafkafs("repair", "--indexes", index).stdout == "1 segment read, 0 files differ\n"
    assert kafkafs("repair", "--indexes", data / "nothing").returncode == 3


def test_reindex_names_what_is_damaged(data: Path) -> None:
    path = next((data / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-1])
    done = kafkafs("repair", "--indexes", data)
    assert done.returncode == 1
    assert f"kafkafs: {path}: position " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "work"),
    [
        (["append", "DATA", "orders:1"], "os.read"),
        (["verify", "DATA"], "storage.verify.verify.verify"),
        (["repair", "--indexes", "DATA"], "storage.verify.reindex.reindex"),
        (["repair", "DATA"], "storage.manager.LogManager.open"),
    ],
)
def test_ctrl_c_ends_as_in_a_shell(data: Path, arguments: list[str], work: str) -> None:
    """The signal arrives while the work is done."""
    program = (
        "import os, pkgutil, signal\n"
        "from kafkafs.cli import main\n"
        f"place, _, name = {work!r}.rpartition('.')\n"
        "interrupt = lambda *given, **named: os.kill(os.getpid(), signal.SIGINT)\n"
        "setattr(pkgutil.resolve_name(place), name, interrupt)\n"
        f"main({[str(data) if word == 'DATA' else word for word in arguments]!r})\n"
    )
    done = subprocess.run(
        [KAFKAFS[0], "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("kafkafs: cancelled\n")


@pytest.mark.parametrize("command", ["cat", "append", "ls", "delete"])
def test_what_takes_long_to_import_is_left_to_whom_it_serves(data: Path, command: str) -> None:
    """Without a mount, its packages; metadata of packages, for the version; what makes secrets."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n"
        "from kafkafs.cli import main; main()"
    )
    arguments = [command, data, *([] if command == "ls" else ["orders"])]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split("\n"))
    assert "storage.log.log" in loaded
    for_others = {"argparse", "crc32c", "importlib.metadata", "msgspec", "pyfuse3", "rich"}
    assert loaded.isdisjoint(for_others | {"secrets", "trio"})
    assert "storage.record.crc" in loaded


def test_append_on_a_terminal_says_how_to_end(data: Path) -> None:
    ours, terminal = pty.openpty()
    command = [*KAFKAFS, "append", str(data), "orders:0"]
    with subprocess.Popen(command, stdin=terminal, stderr=subprocess.PIPE, text=True) as process:
        os.close(terminal)
        os.write(ours, b"one\n\x04")
        assert process.stderr is not None
        assert process.stderr.read() == (
            "kafkafs: reading records from the terminal; to end: Ctrl-D on an empty line\n"
        )
    os.close(ours)
    assert process.returncode == 0
    with LogManager.open(str(data)) as manager:
        assert values(manager.log("orders", 0))[-1] == b"one"
