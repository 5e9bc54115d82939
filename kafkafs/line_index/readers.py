"""Readers of one segment's text: where a rendering stands, and how it goes on from there.

The log's bytes come in one read of about what is needed (the segment's own ratio of log to text),
and go through the view's renderer. A batch that has to be decoded is read whole, and its plain form
stays with the reader until its last record is rendered: reading on decodes nothing twice.

A reader belongs to who renders; `copy` gives another one.
"""

from __future__ import annotations

from kafkafs.line_index.encoded import judge, takes_long
from kafkafs.line_index.lines import Lines
from kafkafs.views._measure import Cursor
from storage.errors import CorruptRecord, StorageError
from storage.record.batch import HEADER_SIZE, Buffer
from storage.record.header import FRAME_SIZE
from storage.segment.damage import Damages
from storage.segment.segment import Segment
from storage.waiting import before_waiting, may_wait

SLACK = 512
"""Bytes of log that are read beyond what is likely needed."""
CHUNK = 5 << 18
"""Bytes of log that are read at a time: 1 MiB of text of records of 40 bytes and more."""
DECODED_AT_ONCE = 64 << 10
"""Stored bytes of a batch that are decoded on the owner's thread; larger ones go to a worker."""


class Damaged(CorruptRecord):
    """The text ends before a damaged place; up to byte `done` of the buffer it is there.

    `is_news`: it was not known when the reader was made.
    """

    def __init__(self, error: CorruptRecord, done: int, *, is_news: bool = False) -> None:
        super().__init__(
            error.message, path=error.path, position=error.position, offset=error.offset
        )
        self.done = done
        self.is_news = is_news


# For what is read at once, on the owner's thread only; who waits has a buffer of its own.
_scratch = memoryview(bytearray(CHUNK))


def _room(size: int) -> memoryview:
    """Room for bytes of the log, until the next call on this thread."""
    return memoryview(bytearray(size)) if may_wait() else _scratch[:size]


class TextReader:
    """In a segment's text: `skip` bytes of text are still to be dropped before it goes on.

    It was found by the batch at file position `batch`, when those damages were known.
    """

    __slots__ = ("_batch", "_cursor", "_damages", "_lines", "_plain", "_resume", "skip")

    def __init__(
        self, lines: Lines, cursor: Cursor, skip: int, batch: int, damages: Damages
    ) -> None:
        self._lines = lines
        self._cursor = cursor
        self.skip = skip
        self._batch = batch
        self._damages = damages
        # The batch that the cursor is in, decoded, and the file position behind it in the log.
        self._plain: Buffer | None = None
        self._resume = 0

    def copy(self) -> TextReader:
        """Another reader at the same byte of text."""
        other = TextReader(self._lines, self._cursor.copy(), self.skip, self._batch, self._damages)
        other._plain = self._plain
        other._resume = self._resume
        return other

    def fill(self, out: bytearray, done: int) -> int:
        """Render into `out` from its byte `done` on; returns where the text ends.

        That is before the end of `out` only where the segment's text is used up.

        BlockingIOError where it may not wait and has to; SegmentGone, Damaged, CorruptRecord,
        OSError.
        """
        lines = self._lines
        segment, render = lines.segment, lines.view.render
        size, shown = len(out), lines.end
        # The log bytes at hand, and their file positions.
        window, start, end = _scratch, 0, 0
        while True:
            if self._plain is not None:
                done = self._fill_from_plain(self._plain, out, done)
                if done == size:
                    return done
            cursor = self._cursor
            position = cursor.position
            if position >= shown and not cursor.pending:
                return done
            if not cursor.pending and (
                not start <= position < end or end - position < cursor.needed
            ):
                # As much of the log as makes what is wanted of text, or what there is.
                need = (size - done + self.skip) * segment.size // (lines.text_length or 1) + SLACK
                need = min(need, CHUNK)
                if need < cursor.needed:
                    need = self._check_needed(cursor.needed)
                need = min(need, shown - position)
                try:
                    if segment.first_read.knows(position, position + need):
                        window = _room(need)
                        start, end = position, position + segment.read_into(window, position)
                    else:
                        window, start, end = self._read_first(need)
                except CorruptRecord as error:
                    is_news = segment.damages is not self._damages
                    raise Damaged(error, done, is_news=is_news) from None
                if end - position < cursor.needed:
                    window, start, end = self._read_needed()
            if not segment.holds_batches:
                self._enter(window, position - start, end - start, position)
                continue
            try:
                reached, self.skip = render(
                    window, start, end - start, cursor, out, done, size, self.skip
                )
            except StorageError as error:
                error.path = segment.log_path
                raise
            if reached == size:
                return reached
            if cursor.encoded:
                at = cursor.position
                self._enter(window, at - start, end - start, at)
            elif reached == done and cursor.position == position and not cursor.needed:
                # The window holds less than one record's head: so may the page cache.
                if start < position:
                    end = start
                else:
                    before_waiting()
                    raise self._ends_inside_a_batch(position)
            done = reached

    def _read_first(self, need: int) -> tuple[memoryview, int, int]:
        """`need` bytes of the log from the cursor on, or fewer, and the file positions of what is
        there: whole batches, so that they are checked as they are read.
        """
        segment, cursor, shown = self._lines.segment, self._cursor, self._lines.end
        reads, position = segment.first_read, cursor.position
        if reads.reached(position) > position:
            window = _room(min(reads.to_read(position, need), CHUNK, shown - position))
            return window, position, position + segment.read_into(window, position)
        first = segment.start_before(self._batch if position < cursor.batch_end else position)
        start, end = first[0], position + need
        if start > position:
            # Another thread has read it meanwhile.
            return self._read_first(need)
        if position - start >= CHUNK:
            segment.verify(position, position + 1)
            return self._read_first(need)
        end = cursor.batch_end + FRAME_SIZE if end <= cursor.batch_end else end + reads.batch_size
        window = _room(min(end - start, CHUNK, shown - start))
        end = start + segment.read_from(first, window, start)
        return (window, start, end) if end > position else self._read_first(need)

    def _read_needed(self) -> tuple[memoryview, int, int]:
        """All that the record at the cursor needs, as `_read_first`."""
        start, size = self._cursor.position, self._cursor.needed
        window = _room(size)
        read_whole(self._lines.segment, window, start)
        return window, start, start + size

    def _fill_from_plain(self, plain: Buffer, out: bytearray, done: int) -> int:
        cursor = self._cursor
        render = self._lines.view.render
        size = len(out)
        done, self.skip = render(plain, 0, len(plain), cursor, out, done, size, self.skip)
        if cursor.pending:
            return done
        if cursor.position == len(plain) and not cursor.record_end:
            # Used up: who waits at the end of the log does not hold it.
            self._plain = None
            self._cursor = Cursor(self._resume)
        elif done < size:
            if cursor.position < len(plain):
                raise CorruptRecord(
                    "a batch's records do not fill it",
                    path=self._lines.segment.log_path,
                    position=self._resume,
                )
            self._plain = None
            self._cursor = Cursor(self._resume)
        return done

    def _check_needed(self, needed: int) -> int:
        """Whether the bytes at the cursor that a record needs can be had now."""
        position = self._cursor.position
        if needed > self._lines.end - position:
            raise self._ends_inside_a_batch(position)
        if needed > CHUNK:
            before_waiting()
        return needed

    def _enter(self, data: Buffer, at: int, end: int, position: int) -> None:
        """From the start of an encoded batch, `data[at:end]`, to its first record, or over it."""
        lines = self._lines
        segment = lines.segment
        if not may_wait():
            end = min(end, at + DECODED_AT_ONCE)
        self._before_decoding(memoryview(data)[at:end])
        shown = judge(segment, lines.is_aborted, data, at, end, position)
        if not shown.whole:
            if shown.size > lines.end - position or shown.size <= end - at:
                raise self._ends_inside_a_batch(position)
            if shown.size > DECODED_AT_ONCE:
                before_waiting()
            whole = memoryview(bytearray(shown.size))
            read_whole(segment, whole, position)
            self._before_decoding(whole)
            shown = judge(segment, lines.is_aborted, whole, 0, len(whole), position)
            if not shown.whole:
                raise self._ends_inside_a_batch(position)
        after = position + shown.size
        if shown.hidden:
            self._cursor = Cursor(after)
        elif shown.plain is None:
            self._cursor = Cursor(position + HEADER_SIZE, after, memoryview(data)[at:end])
        else:
            self._plain = shown.plain
            self._resume = after
            self._cursor = Cursor(HEADER_SIZE, len(shown.plain), shown.plain)

    def _before_decoding(self, data: Buffer) -> None:
        """BlockingIOError where decoding takes long and it may not wait."""
        if may_wait() or not self._lines.segment.holds_batches:
            return
        if takes_long(data, 1):
            raise BlockingIOError

    def _ends_inside_a_batch(self, position: int) -> CorruptRecord:
        path = self._lines.segment.log_path
        return CorruptRecord("the log ends inside a batch", path=path, position=position)


class BytesReader:
    """In a segment's bytes, at file position `position`."""

    __slots__ = ("_position", "_segment")

    skip = 0

    def __init__(self, segment: Segment, position: int) -> None:
        self._segment = segment
        self._position = position

    def copy(self) -> BytesReader:
        """Another reader at the same byte."""
        return BytesReader(self._segment, self._position)

    def fill(self, out: bytearray, done: int) -> int:
        """As `TextReader.fill`."""
        end = done + max(min(len(out) - done, self._segment.size - self._position), 0)
        with memoryview(out) as view:
            while done < end:
                try:
                    with view[done:end] as part:
                        got = self._segment.read_into(part, self._position)
                except CorruptRecord as error:
                    raise Damaged(error, done) from None
                if not got:
                    raise _shorter(self._segment, self._position)
                done += got
                self._position += got
        return done


def read_whole(segment: Segment, buffer: memoryview, position: int) -> None:
    """Fill `buffer` from byte `position` of the log. BlockingIOError, CorruptRecord, as `fill`."""
    done = 0
    while done < len(buffer):
        with buffer[done:] as rest:
            got = segment.read_into(rest, position + done)
        if not got:
            raise _shorter(segment, position + done)
        done += got


def _shorter(segment: Segment, position: int) -> Exception:
    """What reading nothing means: where it may not wait, that the page cache has not more."""
    if not may_wait():
        return BlockingIOError()
    return CorruptRecord("the log is shorter than it was", path=segment.log_path, position=position)
