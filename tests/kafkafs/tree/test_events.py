"""The ring of recent events."""

from __future__ import annotations

from kafkafs.tree.events import MESSAGE_LIMIT, MESSAGES, Events
from tests.kafkafs.trees import Clock


def test_each_line_has_its_time() -> None:
    clock = Clock(1_700_000_000_123_000_000)
    events = Events(clock.ms)
    events("one")
    clock.now_ns += 1_000_000_000
    events("two\nlines")
    assert events.text() == ("2023-11-14T22:13:20.123Z one\n2023-11-14T22:13:21.123Z two\nlines\n")


def test_it_is_bounded() -> None:
    events = Events(Clock().ms)
    for number in range(MESSAGES + 10):
        events(f"{number} " + "x" * MESSAGE_LIMIT)
    lines = events.text().splitlines()
    assert len(lines) == MESSAGES
    assert lines[0].split()[1] == "10"
    assert lines[0].endswith("… (cut)")
    assert len(lines[0]) < MESSAGE_LIMIT + 50


def test_it_is_forwarded() -> None:
    seen: list[str] = []
    events = Events(Clock().ms)
    events("unseen")
    events.forward = seen.append
    events("seen")
    assert seen == ["seen"]


def test_bytes_that_are_no_utf_8_are_shown_escaped() -> None:
    events = Events(lambda: 1_700_000_000_000)
    events("mkdir of a\udcffb")
    assert events.text().encode() == b"2023-11-14T22:13:20.000Z mkdir of a\\udcffb\n"
