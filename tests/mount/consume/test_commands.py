"""`kafkafs consume --exec`: what a command is given, and what its exit status does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.mount.consume.conftest import Topic, is_idle, words
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount
from tests.storage.producers import Producer
from tests.waits import HANG_S, until

NAMED = 'echo "$KAFKAFS_TOPIC/$KAFKAFS_PARTITION $KAFKAFS_FIRST_OFFSET $KAFKAFS_LAST_OFFSET"'


def batches_of(topic: Topic, output: bytes) -> list[str]:
    """FIRST LAST of the batches of partition a."""
    name = f"{topic.name}/0 "
    lines = output.decode().splitlines()
    return [line.removeprefix(name) for line in lines if line.startswith(name)]


def test_a_command_gets_a_batch_and_where_it_is_from(topic: Topic) -> None:
    done = topic.consume("--exec", f"{NAMED}; cat", "--batch-records", 4)
    assert done.returncode == 0
    text = done.stdout.decode()
    for first, last in ((0, 3), (4, 7), (8, 9)):
        lines = topic.lines("a", first, last - first + 1).decode()
        assert f"{topic.name}/0 {first} {last}\n{lines}" in text
    assert topic.position() == topic.position("b") == 10
    assert topic.output() == b""


def test_a_batch_has_only_so_many_bytes(mount: Mount) -> None:
    topic = Topic(mount, 0)
    append(topic.path / "0", b"".join(b"%d\n" % 10**n for n in range(10)))
    for view, limit in (("values", 12), ("jsonl", 300), ("kv", 14)):
        done = topic.consume(
            *("--view", view, "--batch-bytes", limit, "-g", view),
            *("--exec", f"{NAMED}; wc -c"),
        )
        sizes = [int(line) for line in done.stdout.split(b"\n") if line.isdigit()]
        names = batches_of(topic, done.stdout)
        for name, size in zip(names, sizes, strict=True):
            first, last = map(int, name.split())
            assert size <= limit or first == last
        assert [int(name.split()[0]) for name in names[1:]] == [
            int(name.split()[1]) + 1 for name in names[:-1]
        ]
        assert (names[0].split()[0], names[-1].split()[1]) == ("0", "9")
        assert 1 < len(names) < 10


def test_a_command_that_leaves_its_input_unread_is_done(topic: Topic) -> None:
    append(topic.path / "0", b"x" * 500_000 + b"\n")
    assert topic.consume("--exec", "true").returncode == 0
    assert topic.position() == 11


def test_it_stops_where_a_command_fails(topic: Topic, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"cat >> {seen}; [ $KAFKAFS_FIRST_OFFSET != 4 ] || exit 7"
    done = topic.consume("--batch-records", 4, "--exec", script, f"{topic.path}/0")
    assert done.returncode == 7
    assert b"4..7: the command exited with status 7\n" in done.stderr
    assert topic.position() == 4 or topic.position("b") == 4
    assert topic.consume("--exec", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_it_tries_again(topic: Topic, tmp_path: Path) -> None:
    """The other partition goes on meanwhile."""
    note = tmp_path / "note"
    script = f'[ $KAFKAFS_PARTITION = 1 ] || {{ echo x >> {note}; [ "$(wc -l < {note})" = 3 ]; }}'
    done = topic.consume("--on-failure", "retry", "--exec", script)
    assert (done.returncode, words(note)) == (0, ["x"] * 3)
    pauses = [line.rsplit(b"retrying in ", 1)[1] for line in done.stderr.splitlines()]
    assert pauses == [b"0.1 s", b"0.2 s"]
    assert topic.position() == topic.position("b") == 10


def test_a_batch_that_waits_for_another_attempt_counts_as_read(
    topic: Topic, tmp_path: Path
) -> None:
    """So the limit of records holds when it is handled at last."""
    script = f"[ -e {tmp_path}/failed ] || {{ touch {tmp_path}/failed; exit 1; }}; cat"
    done = topic.consume("--max-records", 12, "--on-failure", "retry", "--exec", script)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 12)
    assert (topic.position() or 0) + (topic.position("b") or 0) == 12


def test_while_it_pauses_it_is_idle(topic: Topic) -> None:
    """Also when something comes meanwhile."""
    script = "[ $KAFKAFS_FIRST_OFFSET != 0 ]"
    options = ("--follow", "--on-failure", "retry", "--exec", script)
    with topic.running(*options) as consumer:
        until(lambda: "retrying in 6.4 s" in consumer.errors())
        topic.append("a", 10, 1)
        until(partial(is_idle, consumer))


def test_dead_letters_keep_the_record_and_say_why(topic: Topic) -> None:
    record = {
        "timestamp": 1000,
        "key": {"base64": "/w=="},
        "value": "a\nvalue",
        "headers": [["own", "header"], ["null", None]],
    }
    append(topic.path / ".jsonl/0", json.dumps(record).encode() + b"\n")
    dead = topic.mount.topic(f"dead-{topic.name}")
    done = topic.consume(
        *("--batch-records", 5, "--on-failure", "skip", "--dead-letter", dead.parent.name),
        *("--exec", "[ $KAFKAFS_FIRST_OFFSET != 10 ] || exit 9"),
    )
    assert done.returncode == 0, done
    assert (
        b"/0: 10..10: the command exited with status 9; copied to the dead-letter topic\n"
        in done.stderr
    )
    assert topic.position() == 11
    (line,) = (dead.parent / ".jsonl/0").read_text().splitlines()
    found = json.loads(line)
    assert {name: found[name] for name in ("timestamp", "key", "value")} == {
        name: record[name] for name in ("timestamp", "key", "value")
    }
    assert found["headers"] == [
        ["own", "header"],
        ["null", None],
        ["kafkafs.topic", topic.name],
        ["kafkafs.partition", "0"],
        ["kafkafs.offset", "10"],
        ["kafkafs.group", topic.group],
        ["kafkafs.reason", "the command exited with status 9"],
    ]


def test_dead_letters_of_whole_batches_are_records(mount: Mount) -> None:
    topic = Topic(mount, 0)
    one = Producer(1, transactional=True)
    append(topic.path / ".batches/0", one.batch(b"a0", b"a1") + one.commit() + one.batch(b"lost"))
    append(topic.path / ".batches/0", one.abort())
    append(topic.path / "0", b"a2\n")
    dead = mount.topic(f"dead-{topic.name}").parent
    done = topic.consume(
        *("--view", "batches", "--on-failure", "skip", "--dead-letter", dead.name),
        *("--exec", "exit 3"),
    )
    assert done.returncode == 0, done
    found = [json.loads(line) for line in (dead / ".jsonl/0").read_text().splitlines()]
    assert [each["value"] for each in found] == ["a0", "a1", "a2"]
    offsets = [dict(each["headers"])["kafkafs.offset"] for each in found]
    assert offsets == ["0", "1", "5"]
    assert topic.position() == 6


def test_dead_letters_that_were_deleted_meanwhile_are_not_passed_over(topic: Topic) -> None:
    dead = topic.mount.topic(f"dead-{topic.name}").parent
    delete = f"echo 0 10 > {topic.path}/.control/delete-records; false"
    done = topic.consume(
        *("--view", "batches", "--on-failure", "skip", "--dead-letter", dead.name),
        *("--exec", f"[ $KAFKAFS_PARTITION = 1 ] || {{ {delete}; }}"),
    )
    assert done.returncode == 3, done
    assert b"/0: 0..9: deleted before it was copied to the dead-letter topic\n" in done.stderr
    assert topic.position() is None


def test_dead_letters_that_are_refused_leave_the_batch(topic: Topic) -> None:
    options = ("--on-failure", "skip", "--dead-letter", "nowhere", "--exec", "false")
    done = topic.consume(*options)
    assert (done.returncode, b"the dead-letter topic does not exist" in done.stderr) == (3, True)
    dead = topic.mount.topic("nowhere").parent
    topic.mount.run("echo max.message.bytes=100 >> nowhere/.config")
    done = topic.consume(*options)
    assert done.returncode == 3, done
    assert topic.position() is topic.position("b") is None
    assert (dead / "0").read_bytes() == b""


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_batch_waits_for_more(mount: Mount, at_once: int) -> None:
    """Also the records that were read with a full batch."""
    topic = Topic(mount, 0)
    with topic.running(
        *("--follow", "--batch-wait", 600_000, "--batch-records", 3, "--exec", NAMED)
    ) as consumer:
        until(lambda: len(topic.claims) == 2)
        for first in range(0, 7, at_once):
            topic.append("a", first, at_once)
        consumer.wait(lambda data: data.count(b"\n") == 2)
        until(lambda: topic.position() == 6)
        topic.append("a", 7, 2)
        shown = consumer.wait(lambda data: data.count(b"\n") == 3)
        assert batches_of(topic, shown) == ["0 2", "3 5", "6 8"]


def test_what_has_come_in_so_many_ms_is_a_batch(topic: Topic) -> None:
    with topic.running("--follow", "--batch-wait", 200, "--exec", NAMED) as consumer:
        assert batches_of(topic, consumer.wait(lambda data: data.count(b"\n") == 2)) == ["0 9"]
        topic.append("a", 10, 1)
        topic.append("a", 11, 1)
        consumer.read_until(b" 11\n")


def test_children_of_a_command_do_not_keep_the_claim(topic: Topic, tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = f"sleep 1000 >/dev/null 2>&1 & echo $! > {note}"
    assert topic.consume("--exec", script, "--max-records", 1).returncode == 0
    child = int(words(note)[0])
    try:
        until(lambda: not topic.claims)
        topic.commit("a", 0)
    finally:
        os.kill(child, signal.SIGKILL)


# -- signals ---------------------------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO: who reads it waits for us."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_the_batch_finished(topic: Topic, gate: Path, number: signal.Signals) -> None:
    script = f"echo begun; cat {shlex.quote(str(gate))}"
    with topic.running("--exec", script, "--batch-records", 4) as consumer:
        consumer.read_until(b"begun\n")
        os.kill(consumer.pid, number)
        gate.write_bytes(b"done\n")
        assert consumer.status() == 128 + number
        assert consumer.read_until(b"done\n") == b"begun\ndone\n"
    assert {topic.position(), topic.position("b")} == {4, None}


def test_a_second_signal_ends_the_command(topic: Topic, gate: Path) -> None:
    script = f"echo begun; exec cat {shlex.quote(str(gate))}"
    with topic.running("--exec", script) as consumer:
        consumer.read_until(b"begun\n")
        os.kill(consumer.pid, signal.SIGTERM)
        os.kill(consumer.pid, signal.SIGINT)
        # Of signals that come at once either is the first.
        assert consumer.status() in (130, 143)
    assert topic.position() is topic.position("b") is None


def test_a_terminals_interrupt_does_not_get_to_the_command(topic: Topic, gate: Path) -> None:
    script = f"echo begun; cat {shlex.quote(str(gate))}"
    process = subprocess.Popen(
        topic.command("--exec", script, "--batch-records", 4),
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, signal.SIGINT)
    gate.write_bytes(b"done\n")
    out, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (130, b"done\n")
    assert {topic.position(), topic.position("b")} == {4, None}


def test_a_kill_repeats_one_batch(topic: Topic, gate: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"cat >> {seen}; [ $KAFKAFS_FIRST_OFFSET != 4 ] || cat {gate}; echo done"
    with topic.running("--exec", script, "--batch-records", 4) as consumer:
        until(lambda: not {"a7", "b7"}.isdisjoint(words(seen)))
        os.kill(consumer.pid, signal.SIGKILL)
        consumer.status()
        gate.write_bytes(b"")
    until(lambda: not topic.claims)
    assert topic.consume("--exec", f"cat >> {seen}").returncode == 0
    found = words(seen)
    for letter in "ab":
        lines = topic.lines(letter, 0, 10).decode().split()
        own = [word for word in found if word[0] == letter]
        assert own in (lines, lines[:8] + lines[4:])
