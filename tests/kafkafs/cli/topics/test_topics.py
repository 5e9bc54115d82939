"""The commands of topics, `cat` and `append`, with and without a mount."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.files import Files
from storage.state import mirror_file
from storage.state.mirror_file import MirroredPartition, MirrorFile
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, kafkafs
from tests.log_check import check
from tests.storage.logs import values, write_settings
from tests.waits import HANG_S, until

WAYS = ["unmounted", "path"]
"""Without a mount; through it, given as MOUNT/TOPIC."""


def run_here(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has imported everything."""
    texts = [str(word) for word in words]
    done = CliRunner().invoke(main, texts)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(texts, done.exit_code, done.stdout, done.stderr)


class Way:
    """How a topic is named."""

    def __init__(self, place: Place, way: str) -> None:
        self.place = place
        self.is_mounted = way != "unmounted"
        self._way = way
        if self.is_mounted:
            place.mount()

    @property
    def root(self) -> Path:
        return self.place.path if self._way == "path" else self.place.data

    def words(self, place: str) -> list[str]:
        """TOPIC[:PARTITION][@START..END] as words of this way."""
        if self._way == "path":
            name, at, point = place.partition("@")
            return [f"{self.place.path}/{name.replace(':', '/')}{at}{point}"]
        return [str(self.root), place]

    def run(self, command: str, place: str, *more: object, text: str | None = None) -> str:
        """A command that must succeed and say nothing on standard error."""
        done = self.call(command, place, *more, text=text)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def call(
        self, command: str, place: str, *more: object, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Commands without input run in this process."""
        words = [command, *self.words(place), *map(str, more)]
        if command == "append":
            return subprocess.run(
                [*KAFKAFS, *words],
                input=text or "",
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=HANG_S,
            )
        return run_here(*words)

    def entries(self) -> list[str]:
        return sorted(os.listdir(self.place.data))

    def check(self) -> None:
        """The directory is whole."""
        with LogManager.open(str(self.place.data), read_only=True) as manager:
            assert check(manager) == []


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, place: Place) -> Way:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("kept", 1)
    return Way(place, request.param)


def numbers(start: int, end: int) -> str:
    return "".join(f"{n}\n" for n in range(start, end))


def of_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def listed_topics(way: Way, *options: str) -> dict[str, dict[str, Any]]:
    listed = json.loads(run_here("ls", "--json", *options, way.root).stdout)["result"]
    return {row["topic"]: row for row in listed["topics"]}


@pytest.mark.programs
def test_the_partitions_of_a_topic(way: Way) -> None:
    way.run("create", "orders", "--partitions", 2, "retention.ms=7d", "compression.lz4.level=1")
    way.run("append", "orders:1", text=numbers(0, 10))
    listed = json.loads(way.run("ls", "orders", "--json"))["result"]
    empty, filled = listed["partitions"]
    assert empty == {
        "topic": "orders",
        "partition": 0,
        "records": 0,
        "bytes": 0,
        "last_timestamp": None,
    }
    assert (filled["partition"], filled["records"]) == (1, 10)
    assert abs(of_time(filled["last_timestamp"]) - time.time()) < 600
    described = json.loads(way.run("describe", "orders:1", "--json"))["result"]
    (found,) = described["partitions"]
    assert found == {
        "topic": "orders",
        "partition": 1,
        "log_start": 0,
        "log_end": 10,
        "high_watermark": 10,
        "segments": 1,
        "bytes": filled["bytes"],
        "first_timestamp": found["first_timestamp"],
        "last_timestamp": filled["last_timestamp"],
    }
    settings = {"compression.lz4.level": "1", "retention.ms": str(7 * 86_400_000)}
    assert described["settings"] == {"orders": settings}
    lines = way.run("describe", "orders").splitlines()
    assert lines[3:] == ["orders compression.lz4.level=1", "orders retention.ms=604800000"]
    assert run_here("ls", way.root, "nope").returncode == 3
    assert run_here("describe", way.root, "orders:7").returncode == 3
    way.check()


@pytest.mark.programs
def test_a_mirror(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        for name, partitions in (("orders", 2), ("own", 1)):
            manager.create_topic(name, partitions)
    copies = {
        ("orders", 0): MirroredPartition(0, 7, 0, 10, 1_700_000_000_000),
        ("orders", 1): MirroredPartition(0, 5, 0, 9, state="waiting", reason="no leader"),
    }
    ids = dict.fromkeys(("orders", "gone"), "-")
    mirror = MirrorFile("c", "kafka://broker:9092", ("*",), ids, copies)
    mirror.settings = {"orders": {"retention.ms": "60000"}, "gone": {"a": "b"}}
    mirror_file.write(Files(), str(place.data), mirror)
    listed = json.loads(run_here("ls", "--json", place.data).stdout)["result"]
    assert [(row["topic"], row["lag"]) for row in listed["topics"]] == [
        ("orders", 7),
        ("own", None),
    ]
    assert listed["notes"] == [
        "mirror of kafka://broker:9092",
        "orders:1: not copied at present: no leader",
    ]
    assert run_here("ls", place.data).stdout.splitlines()[0].endswith("  retention  lag")
    listed = json.loads(run_here("ls", "--json", place.data, "orders").stdout)["result"]
    assert [row["lag"] for row in listed["partitions"]] == [3, 4]
    described = json.loads(run_here("describe", "--json", place.data).stdout)["result"]
    assert described["settings"] == {"orders": {}, "own": {}}
    assert described["source_settings"] == {"orders": {"retention.ms": "60000"}}
    text = run_here("describe", place.data, "orders").stdout.splitlines()
    assert "orders source retention.ms=60000" in text
    facts = [(row["lag"], row["complete_at"]) for row in described["partitions"]]
    assert [lag for lag, _ in facts] == [3, 4, None]
    assert of_time(facts[0][1]) == 1_700_000_000
    assert facts[1][1] is None
    # A file that cannot be read hides no topic.
    (place.data / "kafkafs.mirror").write_text("version 1\n")
    listed = json.loads(run_here("ls", "--json", place.data).stdout)["result"]
    assert [row["topic"] for row in listed["topics"]] == ["orders", "own"]


@pytest.mark.parametrize("way", [*WAYS, "data"], indirect=True)
@pytest.mark.programs
def test_from_nothing_to_an_undeleted_topic(way: Way) -> None:
    done = way.run("create", "orders", "--partitions", 2, "retention.ms=7d")
    assert done == "created orders with 2 partitions\n"
    way.run("append", "orders:0", text=numbers(0, 1000))
    way.run("append", "orders:1", text=numbers(1000, 1100))
    assert way.run("cat", "orders") == numbers(0, 1100)
    row = listed_topics(way, "--epoch")["orders"]
    assert (row["topic"], row["partitions"], row["records"]) == ("orders", 2, 1100)
    assert (row["cleanup_policy"], row["retention"]) == ("delete", "7d")
    assert (row["retention_ms"], row["retention_bytes"]) == (7 * 86_400_000, -1)
    assert row["bytes"] > 0
    assert abs(of_time(row["last_append"]) - time.time()) < 600

    said = way.run("delete", "orders", "--dry-run")
    assert said == ("would delete orders, 2 partitions; undelete could restore it for 1 minute\n")
    (found,) = json.loads(way.run("delete", "orders", "--dry-run", "--json"))["result"]["topics"]
    assert found == {"topic": "orders", "undelete_ms": 60_000, "undelete_until": None}
    assert way.run("cat", "orders") == numbers(0, 1100)
    said = way.run("delete", "orders")
    assert said.startswith("deleted orders. To restore it until ")
    assert "kafkafs undelete" in said
    assert way.call("cat", "orders").returncode == 3
    listed = json.loads(run_here("ls", "--json", way.root).stdout)["result"]
    assert [row["topic"] for row in listed["topics"]] == ["kept"]
    (note,) = listed["notes"]
    undelete = note.removeprefix("orders was deleted, 2 partitions. To restore it within ")
    undelete = undelete.partition(" s: kafkafs ")[2]
    again = way.call("delete", "orders")
    assert (again.returncode, again.stdout) == (3, "")
    assert "there is no topic 'orders'" in again.stderr

    undeleted = run_here(*shlex.split(undelete))
    assert (undeleted.stdout, undeleted.stderr) == ("restored orders\n", "")
    assert way.run("cat", "orders") == numbers(0, 1100)
    row = listed_topics(way)["orders"]
    assert row["retention"] == "7d"
    again = way.call("undelete", "orders")
    assert again.returncode == 3
    assert "cannot be undeleted: it exists" in again.stderr
    way.check()


@pytest.mark.programs
def test_undelete_where_there_is_one_of_that_name_again(way: Way) -> None:
    way.run("create", "orders")
    way.run("append", "orders:0", text="old\n")
    way.run("delete", "orders")
    way.run("create", "orders")
    way.run("append", "orders:0", text="new\n")
    done = way.call("undelete", "orders")
    assert done.returncode == 3
    assert "a topic of this name exists: delete it first" in done.stderr
    assert way.run("cat", "orders") == "new\n"
    way.run("delete", "orders")
    done = way.call("undelete", "orders")
    assert done.returncode == 3
    assert "choose one by its id" in done.stderr
    notes = json.loads(run_here("ls", "--json", way.root).stdout)["result"]["notes"]
    found = set()
    for note in notes:
        topic_id = note.split(" --id ")[1].split()[0]
        way.run("undelete", "orders", "--id", topic_id)
        found.add(way.run("cat", "orders"))
        way.run("delete", "orders")
    assert found == {"old\n", "new\n"}
    way.check()


@pytest.mark.programs
def test_undelete_after_its_time(way: Way) -> None:
    way.run("create", "orders", "file.delete.delay.ms=0")
    assert way.run("delete", "orders") == "deleted orders; it cannot be restored\n"
    done = way.call("undelete", "orders")
    assert done.returncode == 3
    assert "removed after file.delete.delay.ms" in done.stderr
    done = way.call("undelete", "never")
    assert done.returncode == 3
    if not way.is_mounted:
        assert [name for name in way.entries() if "-delete" in name] == []
    way.check()


@pytest.mark.programs
def test_a_topic_that_cannot_be_created(way: Way) -> None:
    way.run("create", "there", "--partitions", 2)
    way.run("create", "a.b")
    before = way.entries()
    for topic, words, reason in (
        ("there", (), "'there' already exists, with 2 partitions"),
        ("a_b", (), "collides with 'a.b'"),
        ("bad name", (), "letters, digits"),
        ("__consumer_offsets", (), "Choose another name"),
        ("new", ("retention.ms=soon",), "retention.ms=soon is not"),
        ("new", ("no.such.setting=1",), "there is no setting 'no.such.setting'"),
        ("new", ("retention.ms=1", "min.compaction.lag.ms=2", "max.compaction.lag.ms=1"), "above"),
        ("the.re_", ("x",), None),
        ("new", ("--partitions", "0"), None),
    ):
        done = way.call("create", topic, *words)
        assert (done.returncode, done.stdout) == (2 if reason is None else 3, ""), words
        assert reason is None or reason in done.stderr
        assert done.stderr.startswith("kafkafs: ")
        assert way.entries() == before


@pytest.mark.programs
def test_a_topic_whose_deletion_was_killed_can_be_created(place: Place) -> None:
    assert kafkafs("create", place.data, "orders", "--partitions", 2).returncode == 0
    assert kafkafs("delete", place.data, "orders").returncode == 0
    # As if the command was killed before it had renamed the second partition.
    (second,) = place.data.glob("orders-1.*-delete")
    second.rename(place.data / "orders-1")
    done = kafkafs("create", place.data, "orders")
    assert (done.stdout, done.stderr) == ("created orders with 1 partition\n", "")
    done = kafkafs("create", place.data, "orders")
    assert "'orders' already exists, with 1 partition\n" in done.stderr
    with LogManager.open(str(place.data)) as manager:
        assert check(manager) == []


@pytest.mark.programs
def test_create_takes_num_partitions_and_the_callers_owner(way: Way) -> None:
    done = subprocess.run(
        ["sh", "-c", 'umask 027; exec "$@"', "sh", *KAFKAFS, "create", *way.words("mine")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "created mine with 1 partition\n"
    text = (way.place.data / "mine-0" / "kafkafs-topic.properties").read_text()
    assert f"owner={os.geteuid()}:{os.getegid()}:0750\n" in text


@pytest.mark.programs
def test_append_stops_at_the_line_that_is_refused(way: Way) -> None:
    way.run("create", "users")
    good = "".join(f"k{n}\tv{n}\n" for n in range(700))
    done = way.call("append", "users:0", "--view", "kv", text=good + "bad\\x\n" + good)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("kafkafs: line 701 of standard input: ")
    assert "all lines before it were appended" in done.stderr
    assert way.run("cat", "users", "--view", "kv") == good
    done = way.call("append", "users", "--view", "jsonl", text="{}\nnot JSON\n")
    assert done.returncode == 3
    assert "line 2 of standard input" in done.stderr
    done = way.call("append", "users:0", text="x" * 2_000_000)
    assert done.returncode == 3
    assert "line 1 of standard input" in done.stderr
    assert "nothing was appended" in done.stderr
    assert way.run("cat", "users", "--view", "kv") == good + "\\N\n"
    way.check()


@pytest.mark.programs
def test_a_last_line_without_a_newline_and_lines_of_any_bytes(way: Way) -> None:
    way.run("create", "t")
    way.run("append", "t:0", text="")
    way.run("append", "t:0", text="\r\n\x0b\n\n last")
    with LogManager.open(str(way.place.data), read_only=True) as manager:
        assert values(manager.log("t", 0)) == [b"\r", b"\x0b", b"", b" last"]


@pytest.mark.programs
def test_cat_of_places_and_views(way: Way) -> None:
    way.run("create", "t", "--partitions", 2)
    way.run("append", "t:0", text=numbers(0, 100))
    way.run("append", "t:1", text=numbers(100, 200))
    assert way.run("cat", "t:0@5..7") == "5\n6\n"
    assert way.run("cat", "t@-2") == "98\n99\n198\n199\n"
    assert way.run("cat", "t:1@-1h") == numbers(100, 200)
    assert way.run("cat", "t:1@end") == ""
    assert way.run("cat", "t:1@98..end") == "198\n199\n"
    assert way.run("cat", "t:1@..2") == "100\n101\n"
    assert way.run("cat", "t:0@99", "--view", "kv") == "99\n"
    (record,) = map(json.loads, way.run("cat", "t:0@99", "--view", "jsonl").splitlines())
    assert (record["offset"], record["value"]) == (99, "99")
    words = [*way.words("t:1@-1"), *([] if way._way == "path" else ["t:0@..1"])]
    done = run_here("cat", *words)
    assert done.stdout == ("199\n" if way._way == "path" else "199\n0\n")
    shown = CliRunner().invoke(main, ["cat", *way.words("t"), "--view", "batches"])
    files = [next((way.place.data / f"t-{n}").glob("*.log")) for n in range(2)]
    assert shown.stdout_bytes == b"".join(file.read_bytes() for file in files)
    for wrong, status in (("t:0@foo", 2), ("t:7", 3), ("none", 3)):
        done = way.call("cat", wrong)
        assert (done.returncode, done.stdout) == (status, "")


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.programs
def test_internal_topics_are_asked_for(place: Place, is_mounted: bool) -> None:
    """… or named."""
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("mine", 1, settings={"cleanup.policy": "compact"})
    place.mount()
    (place.path / ".groups/g").mkdir()
    (place.path / ".groups/g/mine/0").write_text("0\n")
    if not is_mounted:
        place.umount()

    def listed(*words: object) -> list[str]:
        found = json.loads(run_here("ls", "--json", place.data, *words).stdout)["result"]["topics"]
        return [row["topic"] for row in found]

    assert listed() == ["mine"]
    assert listed("--internal") == ["__consumer_offsets", "mine"]
    named = run_here("ls", "--json", place.data, "__consumer_offsets").stdout
    assert len(json.loads(named)["result"]["partitions"]) == 50
    compacted = run_here("compact", "--dry-run", "--json", place.data).stdout
    assert {row["topic"] for row in json.loads(compacted)["result"]["partitions"]} == {"mine"}


def test_retention_as_it_is_written(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        settings = {"retention.bytes": "1048576", "retention.ms": "3600000"}
        manager.create_topic("t", 1, settings=settings)
    for options, shown in (([], "1h+1.0MiB"), (["--bytes"], "1h+1048576")):
        assert run_here("ls", place.data, *options).stdout.split()[-1] == shown


def test_retention_that_is_not_known(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 1)
    (place.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    (row,) = json.loads(run_here("ls", "--json", place.data).stdout)["result"]["topics"]
    assert (row["retention"], row["retention_ms"], row["retention_bytes"]) == (
        *("unknown", None),
        None,
    )


@pytest.mark.programs
def test_paths_of_views(place: Place) -> None:
    """… say the same as --view, to read and to append."""
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 2)
    way = Way(place, "path")
    topic = place.path / "t"

    def append(path: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = [*KAFKAFS, "append", str(path), *more]
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=HANG_S)

    for path, text in (
        (topic / ".kv/0", "a\t1\n"),
        (topic / ".jsonl/0", '{"value": "2"}\n'),
        (topic / ".kv/append", "c\t3\n"),
        (topic / ".kv", "d\t4\n"),
        (topic / ".append", "5\n"),
    ):
        done = append(path, text)
        assert (done.returncode, done.stderr) == (0, "")
    lines = way.run("cat", "t", "--view", "kv").splitlines()
    assert lines[:2] == ["a\t1", "2"]
    assert sorted(lines) == ["2", "5", "a\t1", "c\t3", "d\t4"]
    for name, words in (
        (".kv", ["t", "--view", "kv"]),
        (".jsonl/0@-2", ["t:0@-2", "--view", "jsonl"]),
        (".kv/0@..1", ["t:0@..1", "--view", "kv"]),
        (".batches/1", ["t:1", "--view", "batches"]),
    ):
        shown = [
            CliRunner().invoke(main, ["cat", *each]).stdout_bytes
            for each in ([f"{topic}/{name}"], [str(place.path), *words])
        ]
        assert shown[0] == shown[1] != b""
    for done in (
        run_here("cat", topic / ".kv/0", "--view", "jsonl"),
        append(topic / ".kv/0", "a\t1\n", "--view", "jsonl"),
    ):
        assert done.returncode == 2
        assert "kv and jsonl are different views; give only one" in done.stderr


@pytest.mark.programs
def test_deletion_that_is_switched_off(place: Place) -> None:
    write_settings(place.data, delete_topic_enable="false")
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 1)
    for options in ((), ("--dry-run",)):
        done = run_here("delete", place.data, "t", *options)
        assert done.returncode == 3
        assert "deleting topics is disabled (delete.topic.enable is false)" in done.stderr
    place.mount()
    done = run_here("delete", place.path, "t")
    assert done.returncode == 3
    reason = "deleting topics is disabled (delete.topic.enable is false)"
    assert done.stderr == f"kafkafs: {place.path}/t: {reason}\n"
    assert (place.data / "t-0").exists()


@pytest.mark.programs
def test_a_read_only_mount_shows_and_changes_nothing(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 1)
    place.mount("-o", "ro")
    assert run_here("cat", place.path, "t").returncode == 0
    assert run_here("ls", place.path).stdout.startswith("topic ")
    for command in (("create", "u"), ("delete", "t"), ("undelete", "u"), ("append", "t")):
        done = run_here(command[0], place.path, command[1])
        assert done.returncode == 3, command
        assert "read-only" in done.stderr, done.stderr


@pytest.mark.programs
def test_append_as_the_lines_come(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 1)
    place.mount()
    with subprocess.Popen(
        [*KAFKAFS, "append", str(place.path / "t/0")], stdin=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        until(lambda: (place.path / "t/0").read_bytes() == b"one\n")
        process.stdin.write(b"o\n")
        process.stdin.flush()
        until(lambda: (place.path / "t/0").read_bytes() == b"one\ntwo\n")
        process.stdin.close()
        assert process.wait(HANG_S) == 0


@pytest.mark.programs
def test_rates_of_a_mount(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("t", 1)
    assert run_here("ls", place.data, "--rates").returncode == 2
    place.mount()
    writer = subprocess.Popen(["sh", "-c", "while echo line; do :; done >> t/0"], cwd=place.path)
    try:
        until(lambda: (place.path / "t/0").stat().st_size > 0)
        (row,) = json.loads(run_here("ls", place.path, "--rates", "--json").stdout)["result"][
            "topics"
        ]
    finally:
        writer.kill()
        writer.wait()
    assert row["records_per_s"] > 0
    assert row["bytes_per_s"] > 0


def test_faults_are_listed(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("bad", 1)
        manager.create_topic("good", 1)
    log = next((place.data / "bad-0").glob("*.log"))
    log.unlink()
    log.mkdir()
    done = run_here("ls", place.data)
    assert done.returncode == 0
    assert "# bad-0: cannot open: " in done.stdout
    for command in ("ls", "describe"):
        done = run_here(command, "--json", place.data, "bad", "good")
        bad, good = json.loads(done.stdout)["result"]["partitions"]
        assert (bad["bytes"], good["bytes"]) == (None, 0)
    assert run_here("create", place.data, "other").returncode == 0


@pytest.mark.programs
@pytest.mark.parametrize("is_mounted", [False, True])
def test_settings_that_cannot_be_read_are_listed(place: Place, is_mounted: bool) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("bad", 1)
        manager.create_topic("good", 1, settings={"retention.ms": "60000"})
    path = place.data / "bad-0" / "kafkafs-topic.properties"
    path.write_text("nonsense\n")
    if is_mounted:
        kafkafs("mount", place.data, place.path)
    reason = f"{place.path}/bad/.config: Input/output error"
    if not is_mounted:
        reason = f"line 1: 'nonsense' is not name=value (file {path})"
    note = f"bad: the settings cannot be read: {reason}"
    for command in ("ls", "describe"):
        done = run_here(command, place.data)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"# {note}\n" in done.stdout
    found = json.loads(run_here("ls", "--json", place.data).stdout)["result"]
    assert [(row["topic"], row["retention_ms"]) for row in found["topics"]] == [
        *(("bad", None), ("good", 60_000)),
    ]
    found = json.loads(run_here("describe", "--json", place.data).stdout)["result"]
    assert [row["topic"] for row in found["partitions"]] == ["bad", "good"]
    assert found["settings"] == {"good": {"retention.ms": "60000"}}
