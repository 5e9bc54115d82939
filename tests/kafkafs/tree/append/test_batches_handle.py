"""`.batches/N`: reading what is stored, and the rules of appending ready batches."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from pathlib import Path

import pytest

from kafkafs.tree.handles import Handle, NotExamined
from storage.errors import (
    InvalidRecord,
    OutOfOrderSequence,
    RecordTooLarge,
)
from storage.files import Files
from storage.log import validator
from storage.log.log import Log
from storage.record.header import parse_header
from storage.record.plain import recompress
from storage.segment.reader import SegmentReader
from tests import oracle
from tests.kafkafs.trees import APPEND, Tree, a_tree, in_thread, read, write
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, batch, values
from tests.storage.producers import Producer, sparse

B = "t/.batches/0"


@pytest.fixture
def handle(tree: Tree) -> Handle:
    tree.file(B)
    return tree.open(B, APPEND)


def stored(log: Log) -> list[bytes]:
    """The log's batches without what an append writes into them: base offset, leader epoch."""
    return [
        bytes(SegmentReader(segment).read(position, header.size))[16:]
        for segment in log.segments
        for position, header in SegmentReader(segment).batches()
    ]


def kept(*batches: bytes) -> list[bytes]:
    return [bytes(made)[16:] for made in batches]


def every_kind() -> list[bytes]:
    """A batch of every kind that a log of this format may hold, and they may follow each other."""
    plain, packed = Producer(1), Producer(2, codec=4)
    committed = Producer(3, transactional=True, codec=2)
    aborted = Producer(4, transactional=True)
    still_open = Producer(5, transactional=True, codec=3)
    return [
        bytes(batch([b"lines", None, b""])),
        recompress(batch([b"x" * 500] * 3), 1),
        plain.batch(b"a", b"b"),
        packed.batch(b"c"),
        plain.batch(b"d"),
        committed.batch(b"e"),
        aborted.batch(b"f", b"g"),
        committed.empty(4),
        committed.commit(),
        aborted.batch(b"h"),
        aborted.abort(),
        still_open.batch(b"i"),
        sparse(plain.batch(b"j"), 7),
    ]


# -- reading -------------------------------------------------------------------------------------


def test_the_batches_are_shown_as_they_are_stored(tree: Tree) -> None:
    node = tree.file(B)
    reader = tree.open(node)
    tree.append(B, b"".join(every_kind()[:5]))
    tree.roll()
    tree.append("t/0", b"line\n")
    tree.append(B, b"".join(every_kind()[5:]))
    data = b"".join(
        SegmentReader(segment).read(0, segment.size)
        for segment in tree.log().segments
        if segment.size
    )
    assert tree.attributes(node).size == len(data) == tree.log().size
    assert read(reader) == data, "to the log end, open transactions too"
    for position in range(0, len(data), 61):
        assert read(reader, position, 100) == data[position : position + 100]
    assert read(reader, len(data)) == b""
    tree.append("t/0", b"more\n")
    assert len(read(reader)) == tree.attributes(node).size == tree.log().size > len(data)


def test_it_begins_with_the_batch_that_holds_the_log_start(tree: Tree) -> None:
    for _ in range(3):
        tree.append("t/0", b"line\n")
        tree.roll()
    tree.append("t/0", b"line\n")
    whole = tree.read(B)
    old = tree.file(B)
    reader = tree.open(old)
    tree.remove_head(2)
    assert tree.read(B) == whole[len(whole) // 2 :]
    assert parse_header(tree.read(B)).base_offset == 2
    assert tree.file(B).inode != old.inode
    assert read(reader, len(whole) // 2) == whole[len(whole) // 2 :], "the old inode's positions"


# -- appending -----------------------------------------------------------------------------------


def test_batches_keep_all_but_their_offsets(tree: Tree, handle: Handle) -> None:
    tree.append("t/0", b"first\n")
    made = every_kind()
    data = b"".join(made)
    assert write(handle, 0, data) == len(data)
    assert stored(tree.log())[1:] == kept(*made)
    offsets = [header.base_offset for _, header in SegmentReader(tree.log().active).batches()]
    counts = [parse_header(one).last_offset_delta + 1 for one in made]
    assert offsets == [0, *itertools.accumulate(counts[:-1], initial=1)]
    assert tree.log().last_stable_offset == offsets[12], "where the open transaction begins"
    assert tree.read("t/0") == b"first\nlines\n\n\n" + (b"x" * 500 + b"\n") * 3 + b"a\nb\nc\nd\ne\n"


def test_byte_by_byte(tree: Tree, handle: Handle) -> None:
    made = every_kind()
    for number, byte in enumerate(b"".join(made)):
        assert write(handle, number, bytes([byte])) == 1
    assert stored(tree.log()) == kept(*made)


def test_a_partition_is_copied_as_it_is(tree: Tree) -> None:
    tree.mkdir("u")
    tree.append(B, b"".join(every_kind()))
    source = tree.read(B)
    tree.append("u/.batches/0", source)
    log, copy = tree.log(), tree.log("u")
    assert tree.read("u/.batches/0") == source
    assert copy.transactions.aborted() == log.transactions.aborted()
    assert list(copy.producers) == list(log.producers)
    assert copy.last_stable_offset == log.last_stable_offset
    assert tree.read("u/0") == tree.read("t/0")


def test_what_is_there_already_is_not_written_again(tree: Tree) -> None:
    one, two = Producer(1), Producer(2, codec=4)
    data = one.batch(b"a") + two.batch(b"b") + one.batch(b"c", b"d")
    tree.append(B, data)
    size = tree.log().size
    node = tree.file(B)
    handle = tree.open(B, APPEND)
    tree.rest()
    assert write(handle, size, data) == len(data)
    assert write(handle, size, data[:100]) + write(handle, size, data[100:]) == len(data)
    assert tree.log().size == size
    assert node.inode in tree.notices.attributes, "the kernel thinks that the file has grown"
    write(handle, size, one.batch(b"e"))
    assert values(tree.log()) == [b"a", b"b", b"c", b"d", b"e"]


def test_older_formats_are_converted(tree: Tree, handle: Handle) -> None:
    messages = [oracle.Message(number, b"k", b"v%d" % number, NOW_MS) for number in range(3)]
    data = b"".join(oracle.put_message(message, 1) for message in messages)
    data += b"".join(oracle.put_message(message, 0) for message in messages)
    data += oracle.put_wrapper(messages, 1, 1)
    for start in range(0, len(data), 50):
        write(handle, start, data[start : start + 50])
    assert values(tree.log()) == [b"v0", b"v1", b"v2"] * 3
    assert {header.magic for _, header in SegmentReader(tree.log().active).batches()} == {2}
    assert [record.offset for record in tree.log().records()] == list(range(9))


def test_compression_type_changes_the_codec(tree: Tree, handle: Handle) -> None:
    tree.manager.change_topic_settings("t", {"compression.type": "zstd"})
    made = [bytes(batch([b"x" * 500])), recompress(batch([b"y" * 500]), 1)]
    data = b"".join(made)
    write(handle, 0, data[:80])
    node = tree.file(B)
    tree.rest()
    write(handle, 80, data[80:])
    assert [header.codec for _, header in SegmentReader(tree.log().active).batches()] == [4, 4]
    assert stored(tree.log()) == kept(*(recompress(one, 4) for one in made))
    assert tree.notices.attributes == [node.inode]
    assert tree.attributes(node).attr_timeout == 0, "it is shorter than the kernel thinks"


# -- what is not whole ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 11, 16, 17, 60, 61, 80])
def test_an_incomplete_batch_waits_and_is_never_a_record(
    tree: Tree, handle: Handle, size: int
) -> None:
    made = bytes(batch([b"value", b"and another one"]))
    write(handle, 0, made + made[:size])
    assert values(tree.log()) == [b"value", b"and another one"]
    with pytest.raises(InvalidRecord, match=f"an incomplete batch, {size} "):
        handle.flush()
    write(handle, 0, made[size:])
    handle.flush()
    assert len(values(tree.log())) == 4
    write(handle, 0, made[:size])
    handle.release()
    handle.release()
    assert len(values(tree.log())) == 4
    of = f" of {len(made)}" if size > 16 else ""
    where = f"(after the first {2 * len(made)} bytes written)"
    count = "1 byte" if size == 1 else f"{size}{of} bytes"
    assert f"t/0: an incomplete batch, {count} at the end; dropped {where}" in (tree.events())
    tree.append("t/0", b"line\n")
    assert len(values(tree.log())) == 5


def test_at_the_end_what_is_not_whole_is_dropped(tree: Tree, handle: Handle) -> None:
    tree.fs.open_files.add(tree.node(B), handle, 0)
    write(handle, 0, bytes(batch([b"value"]))[:50])
    tree.fs.stop()
    with pytest.raises(OSError, match="unmounted") as caught:
        write(handle, 0, bytes(batch([b"value"])))
    assert caught.value.errno == errno.ESHUTDOWN
    handle.flush()
    handle.release()
    assert values(tree.log()) == []
    assert "an incomplete batch, 50 of" in tree.events()


# -- refusals ------------------------------------------------------------------------------------


def announcing(size: int) -> bytes:
    """The head of a batch of that many bytes."""
    return struct.pack(">qiib", 0, size - 12, 0, 2)


@pytest.mark.parametrize("size", [301, 1 << 20, (1 << 31) + 11])
@pytest.mark.parametrize("setting", ["max.message.bytes", "internal.segment.bytes"])
def test_too_large_a_batch_is_refused_by_its_head(
    tree: Tree, handle: Handle, size: int, setting: str
) -> None:
    tree.manager.change_topic_settings("t", {"max.message.bytes": "1048588"})
    tree.manager.change_topic_settings("t", {setting: "300"})
    head = announcing(size)
    whole = bytes(batch([b"fits"]))
    write(handle, 0, head[:16])
    with pytest.raises(RecordTooLarge):
        write(handle, 16, head[16:])
    with pytest.raises(RecordTooLarge):
        write(handle, 0, whole + head + b"x" * 100)
    assert values(tree.log()) == [], "nothing of the request"
    assert f"t/0: append refused: a batch of {size} bytes" in tree.events()
    write(handle, 0, whole)
    assert values(tree.log()) == [b"fits"]


def test_the_largest_batch_passes(tree: Tree, handle: Handle) -> None:
    made = bytes(batch([b"x" * 1000]))
    tree.manager.change_topic_settings("t", {"max.message.bytes": str(len(made))})
    write(handle, 0, made[:900])
    write(handle, 900, made[900:] + made)
    assert len(values(tree.log())) == 2
    tree.manager.change_topic_settings("t", {"max.message.bytes": str(len(made) - 1)})
    with pytest.raises(RecordTooLarge):
        write(handle, 0, made)


def damaged(made: bytes) -> bytes:
    return made[:-2] + bytes([made[-2] ^ 1]) + made[-1:]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(damaged(bytes(batch([b"value"]))), id="crc"),
        pytest.param(b"some text, which is no batch at all", id="text"),
        pytest.param(bytes(100), id="zeros"),
        pytest.param(bytes(batch([b"value"]))[1:] + b"x", id="shifted"),
        pytest.param(sparse(bytes(batch([b"a", b"b"])), 0), id="offsets"),
    ],
)
def test_one_wrong_batch_refuses_its_whole_write(tree: Tree, handle: Handle, wrong: bytes) -> None:
    right = bytes(batch([b"right"]))
    write(handle, 0, right)
    for data in (wrong, right + wrong, right + wrong + right, right * 3 + wrong):
        with pytest.raises(InvalidRecord):
            write(handle, 0, data)
        handle.flush()
    assert values(tree.log()) == [b"right"]
    assert f"(after the first {len(right)} bytes written)" in tree.events()
    write(handle, 0, right)
    assert values(tree.log()) == [b"right", b"right"]


def test_a_refused_write_that_begins_a_batch_is_looked_at_anew(tree: Tree, handle: Handle) -> None:
    data = bytes(batch([b"x" * 500]))
    tree.manager.change_topic_settings("t", {"max.message.bytes": "100"})
    with pytest.raises(RecordTooLarge):
        write(handle, 0, data)
    tree.manager.change_topic_settings("t", {"max.message.bytes": None})
    write(handle, 0, data)
    assert values(tree.log()) == [b"x" * 500]


class FullFiles(Files):
    """A disk that is `full`, or fills up with the write that begins with some bytes."""

    full = False
    no_room_for: bytes | None = None

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        beginning = self.no_room_for
        if self.full or (beginning is not None and bytes(data).startswith(beginning)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, position)


@pytest.mark.parametrize("held", [0, 20])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_disk_that_fills_up_between_two_segments_makes_a_write_short(
    tmp_path: Path, held: int, magic: int
) -> None:
    """A new partition keeps the offsets, so that one write may need several segments."""
    first = oracle.put_message(oracle.Message(3, None, b"a"), 1)
    if magic == 2:
        first = at(batch([b"a"]), 3)
    second, third = at(batch([b"b"]), 2**32), at(batch([b"c"]), 2**33)
    data = first + second + third
    files = FullFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        handle = tree.open(B, os.O_WRONLY | os.O_DSYNC)
        if held:
            assert write(handle, 0, data[:held]) == held
        written = held
        for taken, beginning in ((first, second), (first + second, third)):
            files.no_room_for = beginning
            written += write(handle, written, data[written:])
            assert written == len(taken)
            assert handle.sync_due, "the records of a short write are synced, too"
            for _ in range(2):
                with pytest.raises(OSError, match="No space"):
                    write(handle, written, data[written:])
            assert f"(after the first {written} bytes written)" in tree.events()
        files.no_room_for = None
        assert write(handle, written, data[written:]) == len(third)
        handle.release()
        assert values(tree.log()) == [b"a", b"b", b"c"]
        assert tree.log().log_end_offset == 2**33 + 1


def test_what_is_appended_together_goes_into_one_segment(
    tree: Tree, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many offsets as a segment can index, and no more memory than there is reason for."""
    wide = sparse(bytes(batch([b"x"])), 2**31 - 1)
    write(handle, 0, wide)
    with pytest.raises(InvalidRecord, match="append fewer batches at a time"):
        write(handle, 0, wide * 2)
    write(handle, 0, wide)
    assert tree.log().log_end_offset == 2**32
    monkeypatch.setattr(validator, "MAX_TOGETHER_BYTES", 100_000)
    tree.manager.change_topic_settings("t", {"compression.type": "uncompressed"})
    bomb = recompress(batch([bytes(30_000)]), 4)
    write(handle, 0, bomb * 3)
    with pytest.raises(InvalidRecord, match="append fewer at a time"):
        write(handle, 0, bomb * 4)
    assert len(values(tree.log())) == 5


@pytest.mark.parametrize(
    "made", [recompress(batch([b"small"]), 4), bytes(batch([b"x" * 70_000])), None]
)
def test_what_takes_long_is_examined_in_a_worker_thread(
    tree: Tree, handle: Handle, made: bytes | None
) -> None:
    made = made or oracle.put_wrapper([oracle.Message(0, None, b"v", NOW_MS)], 1, 1)
    write(handle, 0, made[:30])
    for codec in (0, 3):
        for _ in range(2):
            with pytest.raises(NotExamined):
                handle.write(30, made[30:])
        in_thread(lambda: handle.examine(made[30:]))
        assert values(tree.log()) == []
        if not codec:
            # The examination was made with the settings at that time.
            tree.manager.change_topic_settings("t", {"compression.type": "lz4"})
    handle.write(30, made[30:])
    assert [header.codec for _, header in SegmentReader(tree.log().active).batches()] == [3]
    wrong = damaged(made)
    with pytest.raises(NotExamined):
        handle.write(30, wrong)
    in_thread(lambda: handle.examine(wrong))
    assert "append" not in tree.events()
    with pytest.raises(InvalidRecord):
        handle.write(30, wrong)
    assert "append refused" in tree.events()
    assert len(values(tree.log())) == 1


def test_little_is_checked_at_once(tree: Tree, handle: Handle) -> None:
    message = oracle.put_message(oracle.Message(0, None, b"v", NOW_MS), 1)
    marker = Producer(1, transactional=True).commit()
    handle.write(0, bytes(batch([b"x"])) * 100 + message * 100 + marker)
    assert len(values(tree.log())) == 200
    with pytest.raises(AssertionError):
        tree.open("t/0", APPEND).examine(b"x")


# -- producers -----------------------------------------------------------------------------------


def test_a_gap_passes_behind_a_batch_of_the_same_handle(tree: Tree, handle: Handle) -> None:
    one = Producer(1)
    first, lost, third, fourth, fifth = (one.batch(b"%d" % n) for n in range(5))
    write(handle, 0, first)
    other = tree.open(B, APPEND)
    with pytest.raises(OutOfOrderSequence):
        write(other, 0, third)
    write(handle, 0, third)
    write(other, 0, fourth)
    with pytest.raises(OutOfOrderSequence):
        write(handle, 0, one.batch(b"beyond the fifth"))
    write(handle, 0, fifth)
    with pytest.raises(OutOfOrderSequence):
        write(handle, 0, lost)
    assert values(tree.log()) == [b"0", b"2", b"3", b"4"]
    assert "producer 1: sequence 2 of epoch 0, but expected 1" in tree.events()


def test_a_gap_passes_behind_a_marker_of_the_same_handle(tree: Tree, handle: Handle) -> None:
    """As a cleaner leaves it that has taken a transaction's first batches."""
    for epoch in (3, 4):
        one = Producer(1, epoch=epoch, transactional=True)
        made = [one.batch(b"%d" % n) for n in range(4)]
        write(handle, 0, (made[0] if epoch == 3 else made[2]) + one.commit() + made[3])
        one.epoch += 1
        write(handle, 0, one.commit())
    assert values(tree.log()) == [b"0", b"3", b"2", b"3"]


# -- notices to the kernel, and durability -------------------------------------------------------


def test_every_inode_is_told(tree: Tree) -> None:
    lines, batches = tree.file("t/0"), tree.file(B)
    handle = tree.open(batches, APPEND)
    data = bytes(batch([b"x"]))
    tree.rest()
    write(handle, 0, data)
    assert tree.notices.attributes == [lines.inode], "the kernel knows what it has written"
    tree.rest()
    write(handle, len(data), data[:10])
    assert set(tree.notices.attributes) == {lines.inode, batches.inode}, "a part is not there yet"
    tree.rest()
    tree.append(lines, b"x\n")
    assert tree.notices.attributes == [batches.inode]
    assert tree.attributes(batches).mtime_ns == tree.attributes(lines).mtime_ns
