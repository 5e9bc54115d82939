"""Readers of one segment's text: each stands at a byte of it and renders from there on.

A reader reads about as many bytes of the log as the wanted text needs, by the segment's own ratio
of log to text, and passes them through the view's renderer. It reads a batch that has to be decoded
whole. Between two calls it knows the key of the batch's plain form, and `storage.plain_forms` keeps
the form: so it decodes no batch twice, unless others need the room.

A line of more than 16 KiB that does not fit into the answer is in no memory as a whole: the
cursor renders it in pieces, and continues where the last read ended.

Only one thread uses a reader; `copy` makes another one.
"""

from __future__ import annotations

from kafkafs.line_index.encoded import show_batch
from kafkafs.line_index.records import gap_before
from kafkafs.line_index.segment_batches import Extent, SegmentBatches
from kafkafs.line_index.segment_lines import SegmentLines, read_whole, shorter
from kafkafs.views._measure import Cursor
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.plain_forms import KEY_BYTES, Key, plain_forms
from storage.record.header import FRAME_SIZE, HEADER_SIZE, Buffer
from storage.segment.damage import Damages
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.waiting import before_waiting, may_wait

SLACK = 512
"""Bytes of log to read beyond what is likely needed."""
CHUNK = 5 << 18
"""Bytes of log to read at a time: 1 MiB of text where records have 40 bytes or more."""
DECODED_AT_ONCE = 64 << 10
"""Stored bytes of a batch that the owner's thread decodes; a larger one goes to a worker."""


class Damaged(CorruptRecord):
    """The text ends before a damaged place; the buffer is filled up to byte `done`.

    `is_news`: the damage was found after the reader was made.
    """

    def __init__(self, error: CorruptRecord, done: int, *, is_news: bool = False) -> None:
        super().__init__(
            error.message, path=error.path, position=error.position, offset=error.offset
        )
        self.done = done
        self.is_news = is_news


class TextChanged(CorruptRecord):
    """A reader has shown text of bytes that had changed since they were measured."""


# For the owner's thread only; a thread that may wait makes a buffer for each read.
_scratch = memoryview(bytearray(CHUNK))


def _room(size: int) -> memoryview:
    """A buffer of `size` bytes, valid until the next call on this thread."""
    return memoryview(bytearray(size)) if may_wait() else _scratch[:size]


class TextReader:
    """A reader of text that drops `skip` bytes before it renders.

    The entry that led here is of the batch at file position `batch`; `damages` were known then.
    """

    __slots__ = (
        "_batch",
        "_cursor",
        "_damages",
        "_key",
        "_lines",
        "_plain",
        "skip",
    )

    def __init__(
        self, lines: SegmentLines, cursor: Cursor, skip: int, batch: int, damages: Damages
    ) -> None:
        self._lines = lines
        self._cursor = cursor
        self.skip = skip
        self._batch = batch
        self._damages = damages
        # Of the batch that the cursor is in: its plain form, inside of `fill` only, and its key.
        self._plain: Buffer | None = None
        self._key: Key | None = None

    @property
    def segment(self) -> Segment:
        """The segment that it reads."""
        return self._lines.segment

    def copy(self) -> TextReader:
        """Another reader at the same byte of text."""
        other = TextReader(self._lines, self._cursor.copy(), self.skip, self._batch, self._damages)
        other._key = self._key
        return other

    def fill(self, out: bytearray, done: int) -> int:
        """Render into `out` from byte `done` on; returns where the text ends, which is before the
        end of `out` only at the end of the segment's text.

        BlockingIOError where it would wait and may not; SegmentGone, Damaged, CorruptRecord,
        OSError.
        """
        before = self._key
        if before is not None:
            self._take_form(before)
        try:
            done = self._fill(out, done)
        finally:
            self._leave_form()
        if before is not None and before is not self._key:
            plain_forms.drop(before)
        return done

    def check_again(self) -> None:
        """Check the segment's bytes again: its text is not as long as it was.

        TextChanged where it has damage that was not known when the reader was made; errors as
        `fill`. Without damage the index is wrong.
        """
        segment = self._lines.segment
        self._lines.reader.check_again(0, self._lines.end)
        if segment.damages is not self._damages:
            raise TextChanged("its text has changed since it was indexed", path=segment.log_path)
        if not segment.damages:
            self._lines.discard()

    def _take_form(self, key: Key) -> None:
        """Take the plain form that the cursor is in, or make it again."""
        segment = self._lines.segment
        found = plain_forms.get(key)
        if found is None:
            if key.size > DECODED_AT_ONCE:
                before_waiting()
            batch = memoryview(bytearray(key.size))
            read_whole(self._lines.reader, batch, key.position)
            if batch[: len(key.head)] != key.head:
                raise SegmentGone("the log was truncated while it was read", path=segment.log_path)
            found = self._lines.reader.shared_form(batch, 0, key.size, key.position)
        self._plain = found[0]

    def _leave_form(self) -> None:
        """Leave the plain form that the cursor is in to the others."""
        plain, key = self._plain, self._key
        if plain is not None and key is not None:
            self._plain = None
            plain_forms.keep(key, (plain, key.size))

    def _fill(self, out: bytearray, done: int) -> int:
        """Fill `out` with text, from its byte `done` on; returns up to where there is some.

        Raises as `fill`.
        """
        lines = self._lines
        segment, render = lines.segment, lines.view.render
        size, shown = len(out), lines.end
        # The log bytes at hand, and their file positions.
        window, start, end = _scratch, 0, 0
        while True:
            if self._plain is not None and self._key is not None:
                done = self._fill_from_plain(self._plain, self._key, out, done)
                if done == size:
                    return done
            cursor = self._cursor
            position = cursor.position
            if position >= shown and not cursor.pending:
                return done
            if not cursor.pending and (
                not start <= position < end or end - position < cursor.needed
            ):
                need = self._log_for(size - done)
                try:
                    window, start, end = self._read_window(need)
                except CorruptRecord as error:
                    is_news = segment.damages is not self._damages
                    raise Damaged(error, done, is_news=is_news) from None
                if end - position < cursor.needed:
                    window, start, end = self._read_needed()
            if not segment.holds_batches:
                self._enter(window, position - start, end - start, position)
                continue
            cursor.at_once = not may_wait()
            try:
                reached, self.skip = render(
                    window, start, end - start, cursor, out, done, size, self.skip
                )
            except StorageError as error:
                error.path = segment.log_path
                raise
            if reached == size:
                return reached
            if cursor.takes_long:
                before_waiting()
            if cursor.encoded:
                at = cursor.position
                self._enter(window, at - start, end - start, at)
            elif reached == done and cursor.position == position and not cursor.needed:
                # The window has less than one record's head, and the page cache may, too.
                if start < position:
                    end = start
                else:
                    before_waiting()
                    raise self._ends_inside_a_batch(position)
            done = reached

    def _log_for(self, size: int) -> int:
        """As many bytes of the log, from the cursor on, as `size` bytes of text need, at most what
        the view shows.  CorruptRecord, BlockingIOError.
        """
        lines, cursor = self._lines, self._cursor
        need = (size + self.skip) * lines.segment.size // (lines.text_length or 1) + SLACK
        need = min(need, CHUNK)
        if need < cursor.needed:
            need = self._check_needed(cursor.needed)
        return min(need, lines.end - cursor.position)

    def _read_window(self, need: int) -> tuple[memoryview, int, int]:
        """(window, its first file position, its end): `need` bytes of the log from the cursor on,
        or about that many if they are read for the first time.
        """
        reader, position = self._lines.reader, self._cursor.position
        checked = reader.segment.checked_ranges
        if not (checked.whole or checked.covers(position, position + need)):
            return self._read_first(need)
        window = _room(need)
        return window, position, position + reader.window(window, position)

    def _read_first(self, need: int) -> tuple[memoryview, int, int]:
        """(window, its first file position, its end): up to `need` bytes of the log from the cursor
        on, as whole batches, whose CRCs this first read checks.
        """
        reader, cursor, shown = self._lines.reader, self._cursor, self._lines.end
        checked, position = reader.segment.checked_ranges, cursor.position
        if checked.checked_until(position) > position:
            window = _room(min(checked.to_read(position, need), CHUNK, shown - position))
            return window, position, position + reader.window(window, position)
        first = reader.start_before(self._batch if position < cursor.batch_end else position)
        start, end = first[0], position + need
        if start > position:
            # Another thread has read the batch meanwhile.
            return self._read_first(need)
        if position - start >= CHUNK:
            reader.check(position, position + 1)
            return self._read_first(need)
        end = cursor.batch_end + FRAME_SIZE if end <= cursor.batch_end else end + checked.batch_size
        window = _room(min(end - start, CHUNK, shown - start))
        end = start + reader.window(window, start, first)
        return (window, start, end) if end > position else self._read_first(need)

    def _read_needed(self) -> tuple[memoryview, int, int]:
        """All bytes that the record at the cursor needs; returns as `_read_first`."""
        start, size = self._cursor.position, self._cursor.needed
        window = _room(size)
        read_whole(self._lines.reader, window, start)
        return window, start, start + size

    def _fill_from_plain(self, plain: Buffer, key: Key, out: bytearray, done: int) -> int:
        cursor = self._cursor
        render = self._lines.view.render
        size = len(out)
        cursor.at_once = not may_wait()
        done, self.skip = render(plain, 0, len(plain), cursor, out, done, size, self.skip)
        if cursor.takes_long:
            before_waiting()
        if cursor.pending or cursor.long_line:
            return done
        at_end = cursor.position == len(plain) and not cursor.record_end
        if not at_end and done == size:
            return done
        if cursor.position < len(plain):
            raise CorruptRecord(
                "a batch's records do not fill it",
                path=self._lines.segment.log_path,
                position=key.position,
            )
        self._plain = self._key = None
        self._cursor = Cursor(key.position + key.size)
        return done

    def _check_needed(self, needed: int) -> int:
        """`needed`, unless the view ends before it (CorruptRecord) or it takes long to read
        (BlockingIOError where this may not wait).
        """
        position = self._cursor.position
        if needed > self._lines.end - position:
            raise self._ends_inside_a_batch(position)
        if needed > CHUNK:
            before_waiting()
        return needed

    def _enter(self, data: Buffer, at: int, end: int, position: int) -> None:
        """Move the cursor from an encoded batch, `data[at:end]`, to its first record or past it."""
        lines = self._lines
        segment = lines.segment
        if not may_wait():
            end = min(end, at + DECODED_AT_ONCE)
        shown = show_batch(lines.reader, lines.is_aborted, data, at, end, position)
        if not shown.whole:
            if shown.size > lines.end - position or shown.size <= end - at:
                raise self._ends_inside_a_batch(position)
            if shown.size > DECODED_AT_ONCE:
                before_waiting()
            whole = memoryview(bytearray(shown.size))
            read_whole(lines.reader, whole, position)
            data, at = whole, 0
            shown = show_batch(lines.reader, lines.is_aborted, data, 0, len(whole), position)
            if not shown.whole:
                raise self._ends_inside_a_batch(position)
        after = position + shown.size
        if shown.hidden:
            self._cursor = Cursor(after)
        elif shown.plain is None:
            self._cursor = Cursor(position + HEADER_SIZE, after, memoryview(data)[at:end])
        else:
            self._plain = shown.plain
            self._key = Key(segment, position, shown.size, bytes(data[at : at + KEY_BYTES]))
            self._cursor = Cursor(HEADER_SIZE, len(shown.plain), shown.plain)

    def _ends_inside_a_batch(self, position: int) -> CorruptRecord:
        path = self._lines.segment.log_path
        return CorruptRecord("the log ends inside a batch", path=path, position=position)


class BytesReader:
    """A reader of a segment's bytes, at file position `position`."""

    __slots__ = ("_position", "_reader")

    skip = 0

    def __init__(self, segment: Segment, position: int) -> None:
        self._reader = SegmentReader(segment)
        self._position = position

    @property
    def segment(self) -> Segment:
        """The segment that it reads."""
        return self._reader.segment

    def copy(self) -> BytesReader:
        """Another reader at the same byte."""
        return BytesReader(self._reader.segment, self._position)

    def check_again(self) -> None:
        """Do nothing: its text is the bytes."""

    def fill(self, out: bytearray, done: int) -> int:
        """As `TextReader.fill`."""
        end = done + max(min(len(out) - done, self._reader.segment.size - self._position), 0)
        with memoryview(out) as view:
            while done < end:
                try:
                    with view[done:end] as rest:
                        got = self._reader.window(rest, self._position)
                except CorruptRecord as error:
                    raise Damaged(error, done) from None
                if not got:
                    raise shorter(self._reader.segment, self._position)
                done += got
                self._position += got
        return done


Reader = TextReader | BytesReader


def reader_at(extent: Extent, text: int) -> Reader:
    """A reader at byte `text` of a segment's text; errors as `SegmentLines.find`."""
    if isinstance(extent, SegmentBatches):
        return BytesReader(extent.segment, text)
    before, batch, position, batch_end, _ = extent.find(text) if text else (0, 0, 0, 0, 0)
    segment = extent.segment
    damages = segment.damages
    if damages:
        gap = gap_before(extent, text)
        if gap is not None and (not text or batch < gap.place.end):
            end = gap.place.end
            return TextReader(extent, Cursor(end), text - gap.end, end, damages)
    header = None
    if batch_end and extent.view.whole_records:
        header = memoryview(bytearray(HEADER_SIZE))
        try:
            read_whole(extent.reader, header, batch)
        except CorruptRecord:
            if segment.damages is damages:
                raise
            return reader_at(extent, text)
    return TextReader(extent, Cursor(position, batch_end, header), text - before, batch, damages)
