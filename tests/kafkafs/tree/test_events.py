"""The lists of recent events."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import pytest

from kafkafs.tree.events import (
    AGAIN_MS,
    MESSAGE_LIMIT,
    MESSAGES,
    REQUEST_LIMIT,
    Events,
    is_logged,
    mark_logged,
)
from storage.errors import StorageError
from tests.kafkafs.trees import APPEND, Clock, Tree, write
from tests.storage.transactions import Client


def test_each_line_has_its_time() -> None:
    clock = Clock(1_700_000_000_123_000_000)
    events = Events(clock.ms)
    events("one")
    clock.now_ns += 1_000_000_000
    events("two", "Traceback\n  of two\nValueError: x\x1b[2J\n")
    assert events.text() == (
        "2023-11-14T22:13:20.123Z one\n"
        "2023-11-14T22:13:21.123Z two\n"
        "    Traceback\n      of two\n    ValueError: x\\x1b[2J\n"
    )


def test_it_is_bounded() -> None:
    events = Events(Clock().ms)
    for number in range(MESSAGES + 10):
        events(f"{number} " + "x" * MESSAGE_LIMIT + " why")
    lines = events.text().splitlines()
    assert len(lines) == MESSAGES
    assert lines[0].split()[1] == "10"
    assert "x … (cut) … x" in lines[0]
    assert lines[0].endswith(" why")
    assert len(lines[0]) < MESSAGE_LIMIT + 50


def test_it_is_forwarded() -> None:
    seen: list[str] = []
    events = Events(Clock().ms)
    events("unseen")
    events.forward = seen.append
    events("seen")
    events("a\nb", "c")
    assert seen == ["seen", "a\\nb\n    c"]


def test_no_message_makes_a_line_of_another() -> None:
    events = Events(lambda: 1_700_000_000_000)
    events("mkdir of 'a\n2023-11-14T22:13:20.000Z all is well\r\x1b[A' refused")
    events("x", "\n2023-11-14T22:13:20.000Z all is well\x85y")
    begins = [line[:30] for line in events.text().splitlines()]
    assert begins == [
        "2023-11-14T22:13:20.000Z mkdir",
        "2023-11-14T22:13:20.000Z x",
        "    ",
        "    2023-11-14T22:13:20.000Z a",
        "    y",
    ]


def test_a_long_message_of_what_is_escaped_is_bounded() -> None:
    events = Events(Clock().ms)
    events("\x00" * 10 * MESSAGE_LIMIT, "\x00" * 10 * MESSAGE_LIMIT)
    assert len(events.text()) < MESSAGE_LIMIT + 50


def test_bytes_that_are_no_utf_8_are_shown_escaped() -> None:
    events = Events(lambda: 1_700_000_000_000)
    events("mkdir of a\udcffb")
    assert events.text().encode() == b"2023-11-14T22:13:20.000Z mkdir of a\\udcffb\n"


def test_what_comes_again_is_counted() -> None:
    clock = Clock(1_700_000_000_000_000_000)
    events = Events(clock.ms)
    seen: list[str] = []
    events.forward = seen.append
    for _ in range(500):
        events.of_request("no")
        events.of_request("neither")
        clock.now_ns += 1_000_000
    events("other")
    lines = [line.partition(" ")[2] for line in events.text().splitlines()]
    more = "… 499 more in 0.5 s"
    assert lines == ["no", "neither", f"no {more}", f"neither {more}", "other"]
    assert events.text().splitlines()[2].startswith("2023-11-14T22:13:20.499Z ")
    assert seen == ["no", "neither", "other"]
    # Much later it is a new one.
    clock.now_ns += (AGAIN_MS + 1) * 1_000_000
    events.of_request("no")
    assert [line.partition(" ")[2] for line in events.text().splitlines()] == [*lines, "no"]


def test_a_clock_that_is_set_back_hides_no_message() -> None:
    clock = Clock(1_700_000_000_000_000_000)
    events = Events(clock.ms)
    for number in range(MESSAGES):
        events(f"{number}")
    seen: list[str] = []
    events.forward = seen.append
    clock.now_ns -= 3_600_000_000_000
    events("0")
    events("0")
    events("new")
    assert seen == ["0", "new"]
    assert "2023-11-14T21:13:20.000Z 0\n" in events.text()


def test_refusals_push_out_neither_faults_nor_events_of_the_data() -> None:
    events = Events(Clock().ms)
    seen: list[str] = []
    events.forward = seen.append
    events("damage found")
    events.of_request("read: damaged", errno.EIO)
    for number in range(10 * MESSAGES):
        events.of_request(f"refusal {number}", errno.EPERM)
    lines = [line.partition(" ")[2] for line in events.text().splitlines()]
    assert len(seen) == 2 + MESSAGES, "of a flood the first ones"
    assert lines[:2] == ["damage found", "read: damaged"]
    assert lines[2:] == [f"refusal {number}" for number in range(9 * MESSAGES, 10 * MESSAGES)]
    for number in range(10 * MESSAGES):
        events.of_request(f"fault {number} " + "x" * MESSAGE_LIMIT, errno.ENOSPC)
    assert "damage found" in events.text()
    assert len(events.text()) < 2 * MESSAGES * (REQUEST_LIMIT + 50)


def test_what_still_comes_stays_while_others_go() -> None:
    events = Events(Clock().ms)
    events.of_request("often")
    for number in range(5 * MESSAGES):
        events.of_request(f"once {number}")
        events.of_request("often")
    lines = [line.partition(" ")[2] for line in events.text().splitlines()]
    assert lines[0] == "often"
    assert lines[-1] == f"often … {5 * MESSAGES} more in 0.0 s"
    assert len(lines) == MESSAGES + 1


def test_no_traceback_shows_that_an_error_is_logged() -> None:
    error = OSError(errno.EIO, "damaged")
    before = traceback.format_exception(error)
    assert not is_logged(error)
    mark_logged(error)
    assert is_logged(error)
    assert traceback.format_exception(error) == before


@pytest.mark.parametrize(
    ("path", "line"), [("t/0", b"more\n"), ("t/.control/abort-transaction", b"0 7\n")]
)
def test_refusals_push_out_no_damage_that_a_write_met(
    tmp_path: Path, path: str, line: bytes
) -> None:
    tree = Tree(tmp_path)
    tree.mkdir("t")
    Client(tree.log(), 7).send(b"a record")
    tree.log().flush()
    handle = tree.open(path, APPEND)
    active = tree.log().active
    assert active.evict()
    Path(active.log_path).unlink()
    with pytest.raises(StorageError) as caught:
        write(handle, 0, line)
    events = tree.fs.mount.events
    for number in range(MESSAGES):
        events.of_request(f"refusal {number}", errno.EPERM)
    assert str(caught.value) in tree.events()
    tree.manager.abandon()
