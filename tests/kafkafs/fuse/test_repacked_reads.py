"""A read of a segment that the writer beside this mount has repacked."""

from __future__ import annotations

import os
from pathlib import Path

import pyfuse3
import pytest
import trio

from kafkafs.fuse.operations import Operations
from kafkafs.fuse.session_loop import Spinner
from kafkafs.line_index import SegmentLines
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.inodes import Attributes
from storage import Record, encode
from storage.compaction.repack import repack_all
from storage.errors import CorruptRecord
from storage.task import Task
from tests.kafkafs.trees import Following, Tree, in_thread
from tests.storage.logs import NOW_MS, NOW_NS

CONTEXT = pyfuse3.RequestContext()


class Unsized(ViewFile):
    """The log can be read up to a place before its end: nobody knows the size."""

    __slots__ = ()

    def attributes(self) -> Attributes:
        self.partition.follow()
        raise CorruptRecord("the end is damaged")


@pytest.mark.parametrize("is_sized", [True, False])
def test_a_read_that_waits_for_the_index_goes_on_in_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sized: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    writer = Tree(data)
    writer.mkdir("t")
    writer.manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
    lines = [b"%d" % number * 400 for number in range(100)]
    for line in lines:
        record = Record(0, NOW_MS, 0, None, line)
        writer.log().append(bytearray(encode([record])), now_ns=NOW_NS)
    writer.roll()
    tree = Tree(data, Following(read_only=True))
    text = b"".join(line + b"\n" for line in lines)
    assert tree.read("t/0") == text
    operations = Operations(tree.fs, Spinner(), lambda: None)

    async def ask() -> None:
        file = tree.file("t/0")
        inode = file.inode
        if not is_sized:
            file.__class__ = Unsized
        opened = await operations.open(inode, os.O_RDONLY, CONTEXT)
        extent = file.text.timeline.extents[0]
        assert isinstance(extent, SegmentLines)
        extent.evict()
        for _ in range(2):
            tree.log().age_descriptors()
        in_thread(lambda: repack_all(writer.log(), NOW_MS, Task()))
        writer.delete_files()
        half = len(text) // 2
        assert bytes(await operations.read(opened.fh, half, 1 << 20)) == text[half:]
        await operations.release(opened.fh)

    trio.run(ask)
    tree.stop()
    writer.stop()
