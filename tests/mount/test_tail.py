"""`tail` follows a partition while it rolls: every record once, in order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.line_writer import Writers, lines_of
from tests.mount.mounting import Mount
from tests.mount.programs import Running
from tests.mount.test_many_writers import by_writer

SEGMENT_BYTES = 50_000
FAST = ["--sleep-interval=0.02"]
# Opens the file by its name again after each look that has found nothing new.
BY_NAME = ["-F", "--max-unchanged-stats=1", *FAST]


@pytest.fixture
def mount(shared_mount: Mount) -> Mount:
    return shared_mount


@pytest.fixture
def rolling(mount: Mount) -> Path:
    """A partition whose segments are small."""
    orders = mount.topic()
    mount.run('echo "internal.segment.bytes=$BYTES" >> orders/.config', BYTES=SEGMENT_BYTES)
    return orders


def sealed_segments(mount: Mount) -> int:
    return mount.run("ls orders/.raw/0").decode().count(".log\n") - 1


@pytest.mark.parametrize("options", [["-f", *FAST], BY_NAME], ids=["-f", "-F"])
def test_follow_while_processes_append_through_rolls(
    mount: Mount, rolling: Path, options: list[str]
) -> None:
    names = ["a", "b", "c"]
    append(rolling, b"before\n" * 5)
    with Running(["tail", *options, "--lines=2", rolling]) as tail:
        tail.read_until(b"before\n" * 2)
        with Writers(rolling, names, 0, [0] * len(names)) as writers:
            writers.go()
            # They write until tail has shown so much; they wait for us where we do not read.
            while tail.size < 20 * SEGMENT_BYTES:
                writers.wait(writers.reports + 1)
                assert writers.reports < 1_000_000, tail.size
            writers.kill()
        append(rolling, b"the last line\n")
        shown = tail.read_until(b"the last line\n")
        assert tail.errors() == ""
    assert shown == b"before\n" * 2 + rolling.read_bytes()[len(b"before\n" * 5) :]
    found = by_writer(shown[len(b"before\n" * 2) : -len(b"the last line\n")])
    assert found.keys() == set(names)
    for name, lines in found.items():
        expected = list(itertools.islice(lines_of(name), len(lines)))
        assert lines[:-1] == expected[:-1]
        # The one that the writer was killed in.
        assert expected[-1].startswith(lines[-1])
        assert sum(len(line) + 1 for line in lines) >= writers.written[name]
    assert sealed_segments(mount) >= 10


def test_who_reads_at_the_end_is_given_what_was_written_and_nothing_else(rolling: Path) -> None:
    """It reads on at every moment of a write; most writes end inside a line."""
    names = ["a", "b"]
    append(rolling, b"before\n")
    shown = b""
    with rolling.open("rb", buffering=0) as file, Writers(rolling, names, 0, [0, 0]) as writers:
        writers.go()
        while len(shown) < 20 * SEGMENT_BYTES:
            data = file.read(65536)
            shown += data
            if not data:
                writers.wait(writers.reports + 1)
        writers.kill()
        shown += file.read()
        assert shown == rolling.read_bytes()
