"""Tests' hand on the files of `.control`."""

from __future__ import annotations

from pathlib import Path

from tests.mount.contract.writing import append


def control(partition: Path, name: str) -> Path:
    """A control file of a partition's topic."""
    return partition.parent / ".control" / name


def do(partition: Path, name: str, lines: str) -> None:
    """Write lines to a control file, in one write."""
    append(control(partition, name), lines.encode() + b"\n")


def facts(partition: Path, name: str) -> dict[str, str]:
    """Return the lines of a control file above its table, as values by name."""
    found = {}
    for line in control(partition, name).read_text().splitlines():
        if line.startswith(" "):
            break
        fact, _, value = line.partition(" ")
        found[fact] = value
    return found


def rows(partition: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of the table in a control file, as values by column name."""
    lines = control(partition, name).read_text().splitlines()
    table = [line for line in lines if line.startswith(" ")]
    if not table:
        return []
    header = table[0].split()
    return [
        dict(zip(header, line.split(maxsplit=len(header) - 1), strict=True)) for line in table[1:]
    ]


def segments(partition: Path) -> int:
    """How many segments a partition has."""
    return len(list((partition.parent / ".raw" / partition.name).glob("*.log")))


def keyed(file: Path, keys: int, value: bytes) -> None:
    """Append one record for each of `keys` keys to a `.kv` file."""
    append(file, b"".join(b"%05d\t%s\n" % (key, value) for key in range(keys)))
