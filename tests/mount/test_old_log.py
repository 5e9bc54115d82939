"""A data directory of Kafka 0.7, mounted read-only: `cat`, `tail`, `wc` and `stat` agree."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Record
from storage.record.compression import GZIP, SNAPPY
from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, check_data, mounted
from tests.storage.old_logs import encode_entry, encode_set
from tests.view_text import TEXTS


class Partition:
    """The contents of a partition's files, and the records that they show."""

    def __init__(self, directory: Path, start: int, seed: int) -> None:
        draw = random.Random(seed)
        directory.mkdir(parents=True)
        self.directory = directory
        self.text = b""
        self.shown: list[Record] = []
        self.ids: list[int] = []
        self.start = start
        self.files: dict[str, int] = {}
        for entries in (100, 1, 150):
            data = bytearray()
            for _ in range(entries):
                self.ids.append(start + len(data))
                data += self._entry(draw, self.ids[-1])
            path = directory / f"{start:020d}.kafka"
            path.write_bytes(data)
            self.files[path.name] = len(data)
            start += len(data)
        self.end = start

    def _entry(self, draw: random.Random, id_: int) -> bytes:
        kind = draw.choice(["magic 0", "magic 1", "magic 1", "gzip", "snappy"])
        payloads = [self._payload(draw)]
        if kind in ("gzip", "snappy"):
            payloads += [self._payload(draw) for _ in range(draw.randrange(40))]
        self.text += b"".join(payload + b"\n" for payload in payloads)
        # A message inside a set has no id of its own.
        self.shown += [Record(id_, -1, 0, None, payload) for payload in payloads]
        if kind in ("gzip", "snappy"):
            return encode_set(payloads, GZIP if kind == "gzip" else SNAPPY)
        return encode_entry(payloads[0], magic=int(kind[-1]))

    @staticmethod
    def _payload(draw: random.Random) -> bytes:
        size = draw.choice([0, 10, 100, 100, 100, 3000])
        return draw.randbytes(size).replace(b"\n", b".")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Partition:
    """Partition 0 of `clicks`; its last file is torn, as after a kill."""
    base = tmp_path_factory.mktemp("old")
    partition = Partition(base / "data" / "clicks-0", 10**10, 1)
    last = partition.directory / list(partition.files)[-1]
    with last.open("ab") as file:
        file.write(encode_entry(b"never acknowledged")[:-1])
    Partition(base / "data" / "clicks-3", 0, 2)
    return partition


@pytest.fixture(scope="module")
def old_mount(clicks: Partition) -> Iterator[Mount]:
    with mounted(clicks.directory.parent.parent, "ro") as started:
        yield started


@pytest.fixture(scope="module")
def shown(old_mount: Mount) -> Path:
    return old_mount / "clicks" / "0"


def test_the_other_views(clicks: Partition, old_mount: Mount) -> None:
    for directory, text in TEXTS.items():
        path = old_mount / "clicks" / directory / "0"
        assert path.stat().st_size == len(text(clicks.shown)), directory
        assert path.read_bytes() == text(clicks.shown), directory


def test_sizes_are_exact(clicks: Partition, old_mount: Mount, shown: Path) -> None:
    assert shown.stat().st_size == len(clicks.text)
    assert old_mount.run('wc -c < "$F"', F=shown) == b"%d\n" % len(clicks.text)
    assert old_mount.run('wc -l < "$F"', F=shown) == b"%d\n" % len(clicks.shown)
    assert old_mount.run('tail -c 12345 "$F"', F=shown) == clicks.text[-12345:]
    assert old_mount.run('tail -c +12345 "$F"', F=shown) == clicks.text[12344:]
    lines = clicks.text.split(b"\n")[:-1]
    assert old_mount.run('tail -n 7 "$F"', F=shown).split(b"\n")[:-1] == lines[-7:]


def test_what_the_log_knows(clicks: Partition, old_mount: Mount, shown: Path) -> None:
    facts = dict(
        line.split()
        for line in (old_mount / "clicks" / ".meta" / "0" / "offsets").read_text().splitlines()
    )
    assert int(facts["log_start"]) == clicks.start
    assert int(facts["log_end"]) == clicks.end
    rows = (old_mount / "clicks" / ".meta" / "0" / "segments").read_text().splitlines()
    columns = [dict(zip(rows[0].split(), row.split(), strict=True)) for row in rows[1:]]
    assert [int(row["bytes"]) for row in columns] == list(clicks.files.values())
    assert [f"{int(row['base_offset']):020d}.kafka" for row in columns] == list(clicks.files)
    assert sum(int(row["records"]) for row in columns) == len(clicks.shown)
    assert [row["state"] for row in columns] == ["sealed", "sealed", "active"]
    for table in ("index", "timeindex"):
        assert len((old_mount / "clicks" / ".meta" / "0" / table).read_text().splitlines()) == 1
    xattrs = {
        name: os.getxattr(shown, f"user.kafkafs.{name}")
        for name in ("log_start", "log_end", "records", "bytes", "segments")
    }
    assert xattrs == {
        "log_start": b"%d" % clicks.start,
        "log_end": b"%d" % clicks.end,
        "records": b"%d" % len(clicks.shown),
        "bytes": b"%d" % (clicks.end - clicks.start),
        "segments": b"3",
    }


def test_the_files_themselves(clicks: Partition, old_mount: Mount) -> None:
    raw = old_mount / "clicks" / ".raw" / "0"
    assert sorted(os.listdir(raw)) == sorted(clicks.files)
    for name in clicks.files:
        assert (raw / name).read_bytes() == (clicks.directory / name).read_bytes()
        assert (raw / name).stat().st_size == (clicks.directory / name).stat().st_size


def test_the_data_directory_is_as_it_was(clicks: Partition, old_mount: Mount) -> None:
    assert sorted(path.name for path in clicks.directory.iterdir()) == sorted(clicks.files)
    assert sorted(os.listdir(clicks.directory.parent)) == ["clicks-0", "clicks-3"]


def test_the_torn_tail_is_said(clicks: Partition, tmp_path: Path) -> None:
    other = Partition(tmp_path / "data" / "t-0", 0, 4)
    name = list(other.files)[-1]
    with (other.directory / name).open("ab") as file:
        file.write(bytes(7))
    (tmp_path / "mnt").mkdir()
    with mounted(tmp_path, "ro") as mount:
        assert (mount / "t" / "0").read_bytes() == other.text
        said = [line for line in mount.events().splitlines() if name in line]
        assert len(said) == 1
        assert f"position {other.files[name]}" in said[0]


def test_the_same_inode_at_the_next_mount(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "data" / "t-0", 0, 5)
    inodes = set()
    for _ in range(2):
        with mounted(tmp_path, "ro") as mount:
            assert (mount / "t" / "0").read_bytes() == partition.text
            inodes.add((mount / "t" / "0").stat().st_ino)
    assert len(inodes) == 1
    # And so what was measured once is not measured again.
    assert len(list((tmp_path / "cache" / "kafkafs").iterdir())) == 1


def test_mounting_it_for_writing_is_refused_in_a_line(tmp_path: Path) -> None:
    Partition(tmp_path / "data" / "t-7", 0, 6)
    (tmp_path / "mnt").mkdir()
    done = subprocess.run(
        [*KAFKAFS, "mount", tmp_path / "data", tmp_path / "mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "t-7" in line
    assert "-o ro" in line
    assert "kafkafs convert" in line
    check_data(tmp_path / "data")
