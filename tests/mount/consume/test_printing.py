"""`kafkafs consume` to standard output, without and with a group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.mount.consume.conftest import Topic, is_idle
from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import Mount, few_directories, mounted
from tests.storage.producers import Producer
from tests.waits import HANG_S, until


def of(letter: str, data: bytes) -> bytes:
    """The lines of one partition."""
    return b"".join(line for line in data.splitlines(keepends=True) if line[:1] == letter.encode())


# -- without a group -------------------------------------------------------------------------------


def test_all_partitions_are_printed_each_in_order(topic: Topic) -> None:
    shown = topic.output(group=False)
    assert of("a", shown) == topic.lines("a", 0, 10)
    assert of("b", shown) == topic.lines("b", 0, 10)
    assert len(shown) == 60
    only = subprocess.run(
        [*topic.command(group=False)[:-1], f"{topic.path}/1"], capture_output=True, check=True
    )
    assert only.stdout == topic.lines("b", 0, 10)


@pytest.mark.parametrize(
    ("start", "count", "grouped"),
    [
        *(("earliest", 10, True), ("latest", 0, True), ("7", 3, True), ("12", 0, True)),
        *(("-15m", 10, True), ("7", 3, False)),
    ],
)
def test_where_it_begins(topic: Topic, start: str, count: int, grouped: bool) -> None:
    shown = topic.output("--from", start, group=grouped)
    assert of("a", shown) == topic.lines("a", 10 - count, count)
    assert of("b", shown) == topic.lines("b", 10 - count, count)
    if grouped:
        assert topic.position() == topic.position("b") == 10


@pytest.mark.parametrize(
    ("view", "grouped"),
    [("values", True), ("kv", True), ("jsonl", True), ("batches", True), ("jsonl", False)],
)
def test_every_view(topic: Topic, view: str, grouped: bool) -> None:
    path = topic.path if view == "values" else topic.path / f".{view}"
    append(topic.path / ".kv/0", b"key\tvalue\\nof two lines\nkey\t\\N\n\\N\t\xff\x00\n")
    expected = (path / "0").read_bytes(), (path / "1").read_bytes()
    shown = topic.output("--view", view, group=grouped)
    assert shown in (b"".join(expected), b"".join(reversed(expected)))
    if grouped:
        assert (topic.position(), topic.position("b")) == (13, 10)


def test_a_record_that_only_a_log_can_hold(topic: Topic) -> None:
    """No line of JSON makes one whose timestamp is before 1970."""
    append(topic.path / ".batches/0", Producer(1, now_ms=-5).batch(b"old\n", b"older"))
    assert b'"timestamp":-5' in (topic.path / ".jsonl/0").read_bytes()
    assert b"key\told\\n\nkey\tolder\n" in topic.output("--view", "kv")
    assert of("o", topic.output("-g", "other")) == b"old\nolder\n"


def test_one_grammar_names_what_is_consumed(mount: Mount) -> None:
    """A mount, its data directory, topics and partitions of these, and paths, of a view too."""
    topic, other = Topic(mount, 2), Topic(mount, 1)

    def output(*words: object) -> list[bytes]:
        done = subprocess.run([*KAFKAFS, "consume", *map(str, words)], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.splitlines()

    for words, lines in (
        ((mount.path, f"{topic.name}:1"), [b"b0", b"b1"]),
        ((mount.path, topic.name, f"{other.name}:0"), [b"a0", b"a1", b"b0", b"b1", b"a0"]),
        ((mount.data, f"{topic.name}:0", other.name), [b"a0", b"a1", b"a0", b"b0"]),
        ((f"{topic.path}/.jsonl/1",), (topic.path / ".jsonl/1").read_bytes().splitlines()),
    ):
        assert sorted(output(*words)) == sorted(lines)
    shown = sum(path.read_bytes().count(b"\n") for path in mount.path.glob("*/*"))
    assert len(output(mount.path)) == shown


def test_large_lines_and_large_logs(topic: Topic) -> None:
    lines = [b"a%d " % number + b"x" * (number * 7919 % 300_000) + b"\n" for number in range(64)]
    for number in range(0, 64, 2):
        append(topic.path / "0", b"".join(lines[number : number + 2]))
    for grouped in (False, True):
        shown = topic.output(group=grouped)
        assert of("a", shown) == topic.lines("a", 0, 10) + b"".join(lines)
        assert of("b", shown) == topic.lines("b", 0, 10)


def test_what_comes_is_printed_also_of_new_partitions(topic: Topic) -> None:
    with topic.running("--follow", "--from", "latest") as consumer:
        path = topic.mount / ".groups" / topic.group
        until(lambda: path.exists() and topic.position() == topic.position("b") == 10)
        topic.append("a", 10, 2)
        consumer.read_until(b"a10\na11\n")
        # It also prints records that are older than its discovery of the partition.
        (topic.path / "2").touch()
        append(topic.path / "2", b"new\n")
        shown = consumer.read_until(b"new\n")
        assert shown == b"a10\na11\nnew\n"


def test_without_a_group_new_partitions_are_found(topic: Topic) -> None:
    with topic.running("--follow", group=False) as consumer:
        consumer.wait(lambda data: len(data) == 60)
        (topic.path / "2").touch()
        append(topic.path / "2", b"new\n")
        consumer.read_until(b"new\n")


def test_a_deleted_topic_ends_alone(topic: Topic) -> None:
    other = Topic(topic.mount, 1)
    with topic.running("--follow", other.path) as consumer:
        consumer.wait(lambda data: len(data) == 66)
        topic.path.rmdir()
        other.append("a", 1, 1)
        consumer.read_until(b"a1\n")
        # A new topic of the same name is another topic. It is read from its start.
        topic.mount.topic(topic.name)
        topic.append("a", 0, 1)
        consumer.read_until(b"a1\na0\n")
        assert "/0: deleted" in consumer.errors()


def test_only_so_many_records(topic: Topic) -> None:
    for grouped in (False, True):
        assert len(topic.output("--max-records", 7, group=grouped).splitlines()) == 7
    assert len(topic.output("--max-records", 100).splitlines()) == 13


def test_more_partitions_than_descriptors(mount: Mount) -> None:
    """It takes what its hard limit lets it have, and leaves its commands the soft one."""
    topic = Topic(mount, 1)
    for number in range(2, 50):
        (topic.path / str(number)).touch()
    limited = ["prlimit", "--nofile=40:200"]
    done = subprocess.run(
        [*limited, *topic.command("--exec", "cat; ulimit -n")], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"a0\n40\nb0\n40\n"
    done = subprocess.run(
        ["prlimit", "--nofile=40:40", *topic.command(group=False)], capture_output=True, check=False
    )
    expected = "kafkafs: the limit of 40 open files is too low for 50 partitions (see ulimit -n)"
    assert (done.returncode, done.stderr.decode()) == (3, f"{expected}\n")


# -- what a transaction, a cleaner, and retention leave --------------------------------------------


def test_an_open_transaction_is_waited_for_and_what_is_no_record_is_passed(mount: Mount) -> None:
    topic = Topic(mount, 0)
    one = Producer(1, transactional=True)
    batches = topic.path / ".batches/0"
    append(batches, one.batch(b"a0") + one.commit() + one.batch(b"a1"))
    append(topic.path / "0", b"a2\n")
    for view in ("values", "batches"):
        done = topic.consume("--view", view, "-g", view)
        assert done.returncode == 0, done
        assert topic.position(group=view) == 2
    append(batches, one.abort())
    for view in ("values", "jsonl"):
        assert topic.output("-g", "values", "--view", view) == (
            b"a2\n" if view == "values" else b""
        )
    assert topic.position(group="values") == 5


@pytest.mark.parametrize("size", [10, 900_000])
def test_while_a_transaction_is_open_it_is_idle(mount: Mount, size: int) -> None:
    """The larger one is more than is read at once."""
    topic = Topic(mount, 0)
    one = Producer(1, transactional=True)
    batches = [one.batch(b"x" * size) for _ in range(3)]
    for batch in batches:
        append(topic.path / ".batches/0", batch)
    with topic.running("--view", "batches", "--follow") as consumer:
        topic.append("b", 0, 1)
        consumer.wait(lambda data: b"b0" in data)
        until(lambda: is_idle(consumer))
        before = consumer.size
        append(topic.path / ".batches/0", one.commit())
        shown = consumer.wait(lambda data: len(data) > before + sum(map(len, batches)))
        assert all(batch[21:] in shown for batch in batches)


def test_offsets_that_a_cleaner_has_left_out(mount: Mount) -> None:
    topic = Topic(mount, 0)
    mount.run(f"echo cleanup.policy=compact >> {topic.name}/.config")
    append(topic.path / ".kv/0", b"".join(b"k%d\tv%d\n" % (n % 3, n) for n in range(3000)))
    mount.run(f"echo run > {topic.name}/.control/roll; echo run > {topic.name}/.control/compaction")
    append(topic.path / ".kv/0", b"k9\tlast\n")
    subprocess.run(
        [*topic.command()[:3], "wait", str(topic.path / ".control/compaction")], check=True
    )
    done = topic.consume(
        "--batch-records", 2, "--exec", "echo $KAFKAFS_FIRST_OFFSET $KAFKAFS_LAST_OFFSET; cat"
    )
    assert done.stdout == b"2997 2998\nv2997\nv2998\n2999 3000\nv2999\nlast\n"
    assert topic.position() == 3001


def test_retention_that_was_faster_is_named(topic: Topic) -> None:
    topic.commit("a", 2)
    topic.mount.run(f"echo '0 6' > {topic.name}/.control/delete-records")
    done = topic.consume()
    assert (done.returncode, of("a", done.stdout)) == (0, topic.lines("a", 6, 4))
    assert (
        done.stderr.decode()
        == f"kafkafs: {topic.name}/0: 2..6 were deleted before they were read\n"
    )
    assert topic.position() == 10


def test_retention_that_was_faster_is_named_where_what_is_out_of_range_is_an_error(
    tmp_path: Path,
) -> None:
    with mounted(few_directories(tmp_path), "out_of_range=error") as mount:
        topic = Topic(mount, 10)
        topic.commit("a", 2)
        mount.run(f"echo '0 6' > {topic.name}/.control/delete-records")
        done = topic.consume()
        assert (done.returncode, of("a", done.stdout)) == (0, topic.lines("a", 6, 4))
        expected = f"kafkafs: {topic.name}/0: 2..6 were deleted before they were read\n"
        assert done.stderr.decode() == expected
        assert topic.position() == 10


def test_what_it_has_read_is_handled_though_it_is_deleted(topic: Topic, tmp_path: Path) -> None:
    delete = f"[ -e {tmp_path}/x ] || echo '0 7' > {topic.path}/.control/delete-records"
    done = topic.consume(
        *("--batch-records", 2, f"{topic.path}/0", "--exec", f"{delete}; touch {tmp_path}/x; cat")
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert of("a", done.stdout) == topic.lines("a", 0, 10)
    assert topic.position() == topic.position("b") == 10


def test_an_output_that_does_not_block_is_waited_for(mount: Mount) -> None:
    topic = Topic(mount, 0)
    append(topic.path / "0", (b"x" * 999 + b"\n") * 1000)
    for grouped in (False, True):
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        process = subprocess.Popen(topic.command(group=grouped), stdout=writes)
        os.close(writes)
        with open(reads, "rb") as shown:
            assert len(shown.read()) == 1_000_000
        assert process.wait() == 0


def test_retention_under_an_open_consumer_loses_nothing_else(topic: Topic) -> None:
    with topic.running("--follow") as consumer:
        consumer.wait(lambda data: len(data) == 60)
        topic.mount.run(f"echo '0 10' > {topic.name}/.control/delete-records")
        topic.append("a", 10, 1)
        consumer.read_until(b"a10\n")


@pytest.mark.parametrize(
    ("control", "line", "policy"),
    [("compaction", "run", "compact,delete"), ("delete-records", "0 27000", "delete")],
)
def test_records_that_are_deleted_before_they_are_read_repeat_no_other(
    mount: Mount, control: str, line: str, policy: str
) -> None:
    """The files of the next records are removed while the output waits."""
    topic = Topic(mount, 0)
    path = topic.path / "0"
    append(
        topic.path / ".config",
        b"segment.bytes=1MiB\ncleanup.policy=%s\nfile.delete.delay.ms=0\n" % policy.encode(),
    )
    # Each even record has a key of its own.
    keys = [b"k%d" % n if n % 2 == 0 else b"same" for n in range(30_000)]
    append(
        topic.path / ".kv/0",
        b"".join(b"%s\t%d %0200d\n" % (key, n, 0) for n, key in enumerate(keys)),
    )
    command = [*topic.command(group=False)[:-1], str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = [process.stdout.readline()]
        do(path, "roll", "run")
        do(path, control, line)
        subprocess.run([*KAFKAFS, "wait", str(topic.path / ".control" / control)], check=True)
        do(path, "retention", "run")
        until(lambda: not list((mount.data / f"{topic.name}-0").glob("*.deleted")))
        printed += process.stdout
        errors = process.stderr.read().decode()
    assert process.returncode == 0
    found = [int(line.split()[0]) for line in printed]
    assert found == sorted(set(found)), "a record twice"
    missing = sorted({*range(30_000)} - {*found})
    assert missing
    if control == "compaction":
        assert (all(n % 2 for n in missing), errors) == (True, "")
    else:
        assert missing == list(range(missing[0], 27_000))
        expected = f"{topic.name}/0: {missing[0]}..27000 were deleted before they were read"
        assert errors == f"kafkafs: {expected}\n"


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("view", ["values", "batches"])
def test_records_before_damage_are_printed(tmp_path: Path, view: str, grouped: bool) -> None:
    with mounted(few_directories(tmp_path)) as mount:
        topic = Topic(mount, 0)
        for number in range(10):
            topic.append("a", number, 1)
        topic.append("b", 0, 10)
        do(topic.path / "0", "roll", "run")
        mount.stop()
        file = mount.data / f"{topic.name}-0" / f"{0:020d}.log"
        file.write_bytes(file.read_bytes().replace(b"a7", b"a?"))
        mount.start()
        done = topic.consume("--view", view, group=grouped)
        assert done.returncode == 3
        expected = f"{topic.name}/0: cannot read the records from offset 7 on: Input/output error"
        assert done.stderr.decode() == f"kafkafs: {expected} (see {mount.path}/.kafkafs/log)\n"
        for record in topic.lines("a", 0, 7).split() + topic.lines("b", 0, 10).split():
            assert record in done.stdout
        if grouped:
            assert (topic.position(), topic.position("b")) == (7, 10)
        topic.path.rmdir()


# -- a group's output ------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(topic: Topic) -> None:
    assert len(topic.output()) == 60
    assert topic.output() == b""
    topic.append("b", 10, 2)
    assert topic.output() == b"b10\nb11\n"
    assert json.loads(topic.output("--view", "jsonl", "-g", "x").splitlines()[0])["offset"] == 0
    assert topic.position("b") == 12


def test_what_the_reader_has_not_taken_is_not_committed(
    topic: Topic, pipe: tuple[int, int]
) -> None:
    reads, writes = pipe
    process = subprocess.Popen(topic.command("--follow"), stdout=writes)
    os.close(writes)
    assert os.read(reads, 1) in b"ab"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert topic.position() is topic.position("b") is None
    os.close(reads)


def test_a_reader_that_goes_takes_nothing_more(topic: Topic) -> None:
    reads, writes = os.pipe()
    process = subprocess.Popen(topic.command("--follow"), stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    os.read(reads, 1)
    os.close(reads)
    _, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, errors) == (128 + signal.SIGPIPE, b"")
    assert topic.position() is topic.position("b") is None


def test_what_the_reader_has_taken_is_committed(topic: Topic) -> None:
    with topic.running("--follow") as consumer:
        consumer.wait(lambda data: len(data) == 60)
        until(lambda: topic.position() == topic.position("b") == 10)
        topic.append("a", 10, 1)
        consumer.read_until(b"a10\n")
        until(lambda: topic.position() == 11)


def test_a_file_takes_all(topic: Topic, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        subprocess.run(topic.command(), stdout=out, check=True)
    assert (tmp_path / "out").stat().st_size == 60
    assert topic.position() == topic.position("b") == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(topic: Topic, number: signal.Signals) -> None:
    with topic.running("--follow") as consumer:
        consumer.wait(lambda data: len(data) == 60)
        os.kill(consumer.pid, number)
        assert consumer.status() == 128 + number
        assert topic.position() == topic.position("b") == 10
        assert consumer.errors() == ""


def test_the_first_commit_names_the_directories_of_its_topic(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        append(mount.topic(), b"one\n")
        consume = [*KAFKAFS, "consume", "-g", "g", str(mount.path)]
        for expected in (
            b"kafkafs: the data directory has new directories __consumer_offsets-0 to -49 for "
            b"committed offsets; a Kafka broker needs all 50\n",
            b"",
        ):
            done = subprocess.run(consume, capture_output=True, check=True)
            assert done.stderr == expected
        assert len(list(mount.data.glob("__consumer_offsets-*"))) == 50


def test_an_unmount_ends_it(tmp_path: Path) -> None:
    with mounted(few_directories(tmp_path)) as mount:
        topic = Topic(mount, 10)
        with topic.running("--follow") as consumer:
            consumer.wait(lambda data: len(data) == 60)
            mount.kill()
            assert consumer.status() == 3
            assert consumer.errors() == (
                f"kafkafs: {mount.path}: its daemon has exited. To mount it again: "
                f"kafkafs mount {mount.data} {mount.path}\n"
            )
            mount.start()
