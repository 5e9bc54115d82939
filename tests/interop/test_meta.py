"""`.meta` of a mounted log that we write tells what DumpLogSegments says of its files.

The files are those of the mount as it runs: the last segment is active, its indexes are allocated
ahead, and nothing was closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.kafka_tools import dump_log_segments
from tests.mount.mounting import Mount, mounted

_ENTRY = re.compile(r"^(\w+): (\d+) (\w+): (\d+)$", re.MULTILINE)
_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* position: (\d+) CreateTime: (\d+) "
    r"size: (\d+) .* isvalid: true$",
    re.MULTILINE,
)


class Said(NamedTuple):
    """What was printed of one file."""

    base_offset: int
    kind: str
    text: str


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`orders`: four segments, of which the last is active, written through two views."""
    with mounted(tmp_path_factory.mktemp("mount")) as mount:
        mount.topic()
        mount.run("printf 'index.interval.bytes=700\\n' >> orders/.config")
        mount.run("printf 'internal.segment.bytes=70000\\n' >> orders/.config")
        with (
            open(mount / "orders/0", "ab", buffering=0) as values,
            open(mount / "orders/.kv/0", "ab", buffering=0) as pairs,
        ):
            for number in range(0, 2000, 5):
                lines = [b"%0100d\n" % n for n in range(number, number + 5)]
                values.write(b"".join(lines[:3]))
                pairs.write(b"key\t" + lines[3] + lines[4])
        yield mount


@pytest.fixture(scope="module")
def said(mount: Mount) -> list[Said]:
    files = [
        path
        for kind in ("log", "index", "timeindex")
        for path in sorted((mount.data / "orders-0").glob(f"*.{kind}"))
    ]
    printed, _ = dump_log_segments(files)
    found = []
    for part in printed.split("Dumping ")[1:]:
        path = Path(part.splitlines()[0])
        found.append(Said(int(path.stem), path.suffix, part))
    assert len(found) == len(files) >= 3 * 3
    return found


def table(mount: Mount, name: str) -> list[dict[str, str]]:
    header, *lines = (mount / "orders/.meta/0" / name).read_text().splitlines()
    return [dict(zip(header.split(), line.split(), strict=True)) for line in lines]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_index_entries(mount: Mount, said: list[Said], kind: str) -> None:
    """`.meta/N/index` and `timeindex`: every entry, of sealed and active segments."""
    entries = []
    for part in said:
        if part.kind == f".{kind}":
            for first, one, second, other in _ENTRY.findall(part.text):
                # An index that is allocated ahead and empty is printed as one entry of zeros.
                if int(one) and (kind == "timeindex" or int(other)):
                    entries.append({first: one, second: other})
    assert len(entries) > 4
    assert table(mount, kind) == entries
    counts = [int(row[f"{kind}_entries"]) for row in table(mount, "segments")]
    assert sum(counts) == len(entries)
    assert counts[-1] or kind == "timeindex", "also the active one has some"


def test_segments(mount: Mount, said: list[Said]) -> None:
    """`.meta/N/segments`: base and next offset, bytes, records, first and last timestamp, state."""
    expected = []
    for part in said:
        if part.kind == ".log":
            batches = [[int(field) for field in batch] for batch in _BATCH.findall(part.text)]
            last = batches[-1]
            expected.append(
                {
                    "base_offset": part.base_offset,
                    "next_offset": last[1] + 1,
                    "bytes": last[3] + last[5],
                    "records": sum(batch[2] for batch in batches),
                    "first_timestamp": batches[0][4],
                    "last_timestamp": max(batch[4] for batch in batches),
                }
            )
    rows = table(mount, "segments")
    assert len(rows) >= 3
    shown = [{name: int(row[name]) for name in expected[0]} for row in rows]
    assert shown == expected
    assert [row["state"] for row in rows] == ["sealed"] * (len(rows) - 1) + ["active"]
