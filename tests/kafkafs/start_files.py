"""Helpers for tests of files that start at another record: a partition of lines, and an oracle."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from kafkafs.tree.files.start_file import StartFile
from kafkafs.tree.files.view_file import ViewFile
from storage.record.header import parse_header
from tests.kafkafs.trees import Tree

DIRECTORIES = ["", ".kv/", ".jsonl/", ".batches/"]


def start_file(tree: Tree, name: str) -> StartFile:
    file = tree.file(f"t/{name}")
    assert isinstance(file, StartFile)
    return file


def text(tree: Tree, name: str) -> bytes:
    """Read the whole file. Its size must be the length of its text."""
    file = start_file(tree, name)
    data = tree.read(file)
    assert tree.attributes(file).size == len(data)
    return data


def forget(tree: Tree) -> None:
    """Forget all measured lengths and positions. No file may be open."""
    inodes = tree.fs.inodes
    for node in list(inodes.nodes.values()):
        if isinstance(node, ViewFile):
            inodes.forget(node.inode, node.lookups)
    tree.fs.partitions.of(tree.log()).texts = {}
    for path in Path(tree.log().directory).glob("*.lines"):
        path.unlink()


def lines(start: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, end))


def fill(tree: Tree, segments: int = 4) -> None:
    """Ten lines in each, in batches of three, three and four."""
    for number in range(0, segments * 10, 10):
        for begin, end in ((0, 3), (3, 6), (6, 10)):
            tree.append("t/0", lines(number + begin, number + end))
        tree.roll()


def iso(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{timestamp_ms % 1000:03d}Z"


class Oracle:
    """A log as a list, and what its files show, found without any index."""

    def __init__(self, tree: Tree) -> None:
        log = tree.log()
        self.log = log
        self.records = list(log.records(isolation="read_committed"))
        self.texts = {
            directory: tree.read(f"t/{directory}0").splitlines(keepends=True)
            for directory in DIRECTORIES[:3]
        }
        for shown in self.texts.values():
            assert len(shown) == len(self.records)
        self.batches: list[tuple[int, int, bytes]] = []
        stored = tree.read("t/.batches/0")
        at = 0
        while at < len(stored):
            header = parse_header(stored[at:])
            batch = stored[at : at + header.size]
            self.batches.append((header.base_offset, header.last_offset, batch))
            at += header.size

    def of_time(self, timestamp_ms: int) -> int | None:
        """The first record with at least this timestamp."""
        return next((each.offset for each in self.records if each.timestamp >= timestamp_ms), None)

    def of_last(self, count: int) -> int:
        if not count:
            return self.log.log_end_offset
        return self.records[-count].offset if count <= len(self.records) else 0

    def text(self, directory: str, start: int, end: int | None) -> bytes:
        end = self.log.log_end_offset if end is None else end
        if directory in self.texts:
            numbers = range(len(self.records))
            shown = [n for n in numbers if start <= self.records[n].offset < end]
            return b"".join(self.texts[directory][n] for n in shown)
        if end <= start:
            return b""
        return b"".join(data for first, last, data in self.batches if last >= start and first < end)
