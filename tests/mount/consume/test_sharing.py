"""Several consumers of a group; and positions that are kept in a file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kafkafs.cli.records.consume.consumer import Consumer, Rules
from kafkafs.cli.records.consume.outputs import Command
from kafkafs.cli.records.consume.positions import GroupPositions
from kafkafs.cli.records.consume.reader import Limits
from kafkafs.cli.records.consume.sources import Directories, Sources
from tests.fork_server import KAFKAFS
from tests.mount.consume.conftest import Topic
from tests.mount.consume.crowd import Crowd
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, few_directories, mounted
from tests.mount.programs import Running
from tests.waits import until


def test_two_share_the_partitions(topic: Topic) -> None:
    with topic.running("--follow") as one:
        one.wait(lambda data: len(data) == 60)
        with topic.running("--follow") as two:
            until(lambda: {(row[1], row[2]) for row in topic.claims} == both(one, two))
            topic.append("a", 10, 1)
            topic.append("b", 10, 1)
            one.wait(lambda data: len(data) == 64)
            two.wait(lambda data: len(data) == 4)
            until(lambda: topic.position() == topic.position("b") == 11)
        # It is killed: the other one takes its partition over.
        topic.append("a", 11, 1)
        topic.append("b", 11, 1)
        one.wait(lambda data: data.count(b"11\n") == 2)
        assert one.errors() == ""


def both(one: Running, two: Running) -> set[tuple[str, str]]:
    return {("held", str(one.pid)), ("held", str(two.pid))}


def test_a_partition_is_given_back_when_its_batch_is_done(topic: Topic, tmp_path: Path) -> None:
    gate, passed = tmp_path / "gate", tmp_path / "passed"
    os.mkfifo(gate)
    script = f"[ -e {passed} ] || {{ touch {passed}; echo begun; cat {gate}; }}"
    with topic.running("--exec", script, "--batch-records", 5) as one:
        one.read_until(b"begun\n")
        with topic.running("--exec", "cat") as two:
            until(lambda: ["return", str(one.pid)] in [row[1:] for row in topic.claims])
            assert two.is_running()
            assert two.size == 0
            gate.write_bytes(b"")
            assert two.wait(lambda data: len(data) == 15) == topic.lines("a", 5, 5)
            assert one.status() == two.status() == 0
    assert topic.position() == topic.position("b") == 10


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A consumer in this process takes them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


@pytest.mark.usefixtures("own_signals")
def test_what_is_asked_back_before_it_was_begun_with_is_given_back(topic: Topic) -> None:
    sources = Sources(str(topic.mount.path), {topic.name: None})
    directories = Directories(sources)
    positions = GroupPositions(directories, sources, topic.group)
    rules = Rules("values", "start", False, None, Limits(100, 1 << 20), 0.0, "stop")
    # It has claimed both partitions, and comes to look at them only after another consumer.
    claims = topic.mount / ".groups" / topic.group / ".claims"
    with open(claims, "rb+", buffering=0) as other:
        other.write(f"claim {topic.name}\n".encode())
        assert sorted(row[1] for row in topic.claims) == ["held", "return", "wait"]
        consumer = Consumer(rules, positions, directories, Command("cat > /dev/null"), None, None)
        assert consumer.run() == 0
        assert sorted(row[1] for row in topic.claims) == ["held", "held"]
    positions.close()
    assert {topic.position(), topic.position("b")} == {10, None}


def test_where_to_begin_is_the_same_for_who_gets_a_partition_later(
    topic: Topic, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with topic.running("--from", 5, "--exec", f"echo begun; cat {gate}") as one:
        one.read_until(b"begun\n")
        only_b = [*KAFKAFS, "consume", "-g", topic.group, f"{topic.path}/1", "--from", "5"]
        with Running(only_b) as two:
            until(lambda: ["1", "return", str(one.pid)] in topic.claims)
            gate.write_bytes(b"")
            assert two.status() == one.status() == 0
            assert two.wait(lambda data: bool(data)) == topic.lines("b", 5, 5)


def test_a_partition_that_was_made_under_a_consumer_that_was_killed_is_read(
    topic: Topic, tmp_path: Path
) -> None:
    """From its first record, though the next consumer begins at the end of the others."""
    os.mkfifo(tmp_path / "gate")
    script = f"echo begun; cat {tmp_path}/gate"
    options = ("--follow", "--from", "latest")
    with topic.running(*options, "--exec", script) as one:
        until(lambda: topic.position() == topic.position("b") == 10)
        (topic.path / "2").touch()
        append(topic.path / "2", b"c0\n")
        one.read_until(b"begun\n")
        os.kill(one.pid, signal.SIGKILL)
        one.status()
        (tmp_path / "gate").write_bytes(b"")
    until(lambda: not topic.claims)
    with topic.running(*options) as two:
        two.read_until(b"c0\n")
        topic.append("a", 10, 1)
        assert two.read_until(b"a10\n") == b"c0\na10\n"


def test_where_to_begin_outside_of_the_log(topic: Topic) -> None:
    with topic.running("--follow", "--from", "12") as consumer:
        until(lambda: topic.position() == topic.position("b") == 10)
        topic.append("a", 10, 1)
        consumer.read_until(b"a10\n")
    topic.mount.run(f"echo '0 6' > {topic.name}/.control/delete-records")
    assert topic.consume("-g", "other", "--from", 2).stdout.startswith((b"a6", b"b2"))


def test_what_is_claimed_is_nobody_elses(topic: Topic) -> None:
    with topic.running("--follow") as consumer:
        consumer.wait(lambda data: len(data) == 60)
        until(lambda: topic.position() == topic.position("b") == 10)
        position = topic.mount / ".groups" / topic.group / topic.name / "0"
        fails(errno.EBUSY, position.write_text, "0\n")
        fails(errno.EBUSY, os.unlink, position)
        done = topic.reset("earliest")
        assert done.returncode == 3
        text = done.stderr
        assert text.startswith(f"kafkafs: {topic.name}:0: claimed by process")
        assert f"process {consumer.pid} (" in text
        assert topic.position() == 10
    until(lambda: not topic.claims)
    assert topic.reset(3).stdout == f"{topic.name}:0: offset 3\n{topic.name}:1: offset 3\n"
    assert topic.position() == topic.position("b") == 3


def test_a_reset_sets_all_or_nothing(topic: Topic) -> None:
    topic.append("b", 10, 5)
    only_b = [*topic.command()[:-1], f"{topic.path}/1", "--follow"]
    with Running(only_b) as consumer:
        until(lambda: topic.position("b") == 15)
        done = topic.reset("earliest")
        assert (done.returncode, done.stdout) == (3, "")
        text = done.stderr
        assert text.startswith(f"kafkafs: {topic.name}:1: claimed by process")
        assert f"process {consumer.pid} (" in text
        assert topic.position() is None
        assert topic.reset("earliest", topic.path / "0").returncode == 0
        assert topic.position() == 0
    until(lambda: not topic.claims)
    for start in ("12", "+12"):
        done = topic.reset(start)
        expected = f"kafkafs: {topic.name}:0: offset 12 is outside of 0..10; nothing was set\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", expected)
    assert (topic.position(), topic.position("b")) == (0, 15)
    expected = f"{topic.name}:0: offset 10\n{topic.name}:1: offset 15\n"
    assert topic.reset("latest").stdout == expected
    assert (topic.position(), topic.position("b")) == (10, 15)


def test_many_that_start_at_once_read_all_partitions(mount: Mount, tmp_path: Path) -> None:
    """Eight consumers of sixteen partitions: each record once, and each one has its share."""
    records = 20
    topic = Topic(mount, 0)
    crowd = Crowd(topic, tmp_path / "notes", batch=20)
    for number in range(2, 16):
        (topic.path / str(number)).touch()
    for number in range(16):
        append(topic.path / str(number), b"x\n" * records)
    with crowd:
        for _ in range(8):
            crowd.start()
        crowd.wait_until_done(16)
        until(lambda: sorted(Counter(row[2] for row in topic.claims).values()) == [2] * 8)
        for number in range(16):
            append(topic.path / str(number), b"x\n" * records)
        crowd.wait_until_done(16)
    crowd.check(dict.fromkeys(range(16), 2 * records))


def test_kills_lose_nothing_and_repeat_one_batch_each(mount: Mount, tmp_path: Path) -> None:
    """Four consumers of eight partitions; the long form is in the soak tests."""
    records, kills = 120, 4
    topic = Topic(mount, 0)
    crowd = Crowd(topic, tmp_path / "notes", batch=20)
    for number in range(8):
        if number > 1:
            (topic.path / str(number)).touch()
        append(topic.path / str(number), b"x\n" * records)
    with crowd:
        for _ in range(4):
            crowd.start()
        for count in range(kills):
            # The kill hits any point of a batch. There are at least 48 batches: 8 * 120 / 20.
            until(partial(crowd.has_noted, 8 + 12 * count))
            crowd.kill_one()
        crowd.wait_until_done(8)
    crowd.check(dict.fromkeys(range(8), records))


# -- positions in a file ---------------------------------------------------------------------------


def test_positions_in_a_file(topic: Topic, tmp_path: Path) -> None:
    file = tmp_path / "positions"
    options = ("--positions", file)
    assert len(topic.output(*options, group=False)) == 60
    head, first, second = (line.split() for line in file.read_text().splitlines())
    assert head == ["topic", "partition", "position", "committed", "topic_id"]
    assert (first[:3], second[:3]) == ([topic.name, "0", "10"], [topic.name, "1", "10"])
    topic.append("b", 10, 1)
    assert topic.output(*options, group=False) == b"b10\n"
    with topic.running("--follow", *options, group=False) as other:
        topic.append("b", 11, 1)
        other.read_until(b"b11\n")
        done = topic.consume(*options, group=False)
        assert (done.returncode, b"another consumer" in done.stderr) == (3, True)
        until(lambda: file.read_text().splitlines()[2].split()[2] == "12")
    assert topic.consume(*options, "--exec", "false", group=False).returncode == 0
    # A topic that is deleted and created again is read from its start.
    topic.path.rmdir()
    topic.mount.topic(topic.name)
    topic.append("a", 0, 3)
    assert topic.output(*options, group=False) == topic.lines("a", 0, 3)


def test_a_wrong_file_of_positions_is_refused(topic: Topic, tmp_path: Path) -> None:
    file = tmp_path / "positions"
    file.write_text("something else\n")
    done = topic.consume("--positions", file, group=False)
    assert (
        done.returncode,
        b"line 1 does not have the columns topic partition" in done.stderr,
    ) == (3, True)
    assert file.read_text() == "something else\n"


def test_a_read_only_mount_says_what_to_type(tmp_path: Path) -> None:
    with mounted(few_directories(tmp_path)) as mount:
        topic = Topic(mount, 10)
        topic.commit("a", 3)
        mount.restart("ro")
        for group in (topic.group, "other"):
            done = topic.consume("-g", group)
            assert done.returncode == 3
            expected = (
                f"kafkafs: {mount.path}: read-only, so no offsets can be committed. To keep them "
                f"in a file: --positions FILE instead of -g {group}\n"
            )
            assert done.stderr.decode() == expected
        options = ("--positions", tmp_path / "positions")
        assert len(topic.output(*options, group=False)) == 60
        assert topic.output(*options, group=False) == b""


# -- mistakes --------------------------------------------------------------------------------------


SKIP = ["--exec", "x", "--on-failure", "skip"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-g", "G", "--positions", "f", "{topic}"], "-g GROUP or --positions FILE"),
        (["-g", "", "{topic}"], "-g GROUP: the name is empty"),
        (
            ["-g", "x" * 201, "{topic}"],
            "groups with names of more than 200 bytes are not supported",
        ),
        (["--on-failure", "retry", "{topic}"], "--exec COMMAND"),
        (
            ["--on-failure", "skip", "--exec", "x", "{topic}"],
            "--dead-letter TOPIC require each other",
        ),
        (
            ["--dead-letter", "x", "--exec", "x", "{topic}"],
            "--dead-letter TOPIC require each other",
        ),
        ([*SKIP, "--dead-letter", "{name}", "{topic}"], "this topic is being consumed"),
        ([*SKIP, "--dead-letter", "{topic}", "{topic}"], "takes the name of a topic"),
        (["--from", "soon", "{topic}"], "is not earliest, latest"),
        (["--from", "-10", "{topic}"], "is not earliest, latest"),
        (["--from", "1..2", "{topic}"], "is not earliest, latest"),
        (["{topic}/7"], "No such file"),
        (["{topic}/.kv/0", "--view", "jsonl"], "kv and jsonl are different views"),
        (["{topic}/.kv/0", "{topic}/.jsonl/1"], "kv and jsonl are different views"),
        (["{topic}/.raw"], "not a topic or partition"),
        (["{mount}", "nowhere"], "No such file"),
        (["/"], "not in a kafkafs mount"),
        (["/nowhere"], "not in a kafkafs mount"),
    ],
)
def test_mistakes_are_named(topic: Topic, words: list[str], said: str) -> None:
    names = {"topic": topic.path, "mount": topic.mount.path, "name": topic.name}
    given = [word.format(**names) for word in words]
    done = subprocess.run([*KAFKAFS, "consume", *given], capture_output=True, check=False)
    assert done.returncode in (2, 3)
    assert said in done.stderr.decode()
    assert done.stdout == b""
