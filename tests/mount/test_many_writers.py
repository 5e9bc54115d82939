"""Many processes append to one partition: lines stay whole, and each writer's keep their order."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.mount.line_writer import Writers, lines_of
from tests.mount.mounting import Mount

WRITERS = [f"writer{number}" for number in range(8)]
LINES = 1500


def by_writer(content: bytes) -> dict[str, list[bytes]]:
    """The lines of a file, which ends with one, by their first word."""
    assert content.endswith(b"\n")
    found: dict[str, list[bytes]] = {}
    for line in content[:-1].split(b"\n"):
        found.setdefault(line.split(b" ", 1)[0].decode(errors="replace"), []).append(line)
    return found


def test_eight_processes_append_at_once(orders: Path) -> None:
    with Writers(orders, WRITERS, LINES, [0] * len(WRITERS)) as writers:
        writers.go()
        writers.wait(None)
        assert writers.ends() == dict.fromkeys(WRITERS, (0, ""))
    expected = {name: list(itertools.islice(lines_of(name), LINES)) for name in WRITERS}
    found = by_writer(orders.read_bytes())
    assert found.keys() == expected.keys()
    for name in WRITERS:
        assert found[name] == expected[name], name
    sizes = {name: sum(len(line) + 1 for line in lines) for name, lines in expected.items()}
    assert writers.written == sizes
    # They did write at the same time, and with many writes: else this shows nothing.
    assert writers.reports > len(WRITERS) * LINES // 4
    first = {name: orders.read_bytes().find(b"%s 0 " % name.encode()) for name in WRITERS}
    assert max(first.values()) < sum(sizes.values()) // 2


def test_processes_that_share_one_descriptor(mount: Mount) -> None:
    mount.topic()
    mount.run(
        """
        { for writer in a b c d; do
            seq --format="$writer %.0f" 500 | sed --unbuffered '' &
          done
          wait
        } >> orders/0
        """
    )
    found = by_writer((mount / "orders/0").read_bytes())
    expected = {
        writer: [f"{writer} {number}".encode() for number in range(1, 501)] for writer in "abcd"
    }
    assert found == expected
