"""The plain forms that a process holds: one cache for all who read, within a budget of bytes.

A few kilobytes may decompress to a quarter of a gigabyte. So nobody keeps a plain form: a reader
knows the form's key, takes the form from here while it renders, and makes it again where it had to
give way to others. Those that read the same batch use one form.

Counted are the forms that are kept here, and those that may be more than AT_ONCE bytes from their
making on until nobody uses them. All together stay below the budget: a thread that needs room waits
until others have finished with theirs.
Whatever is over the budget by itself is made and used one at a time, by those who want it in the
order in which they came.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar, cast

from storage.record.compression import TooLarge
from storage.record.header import Buffer
from storage.waiting import before_waiting

BUDGET: Final = 64 << 20
"""Bytes of plain forms, unless somebody sets another budget."""
AT_ONCE: Final = 4 << 20
"""Bytes of a plain form that any thread makes at once, and that are not counted before it is kept.
"""
PATIENCE_S: Final = 20.0
"""How long a thread waits for room, in seconds: who waits in it for a read cannot be killed."""
WAITING: Final = 24
"""How many threads wait for their turn at what is over the budget: others have work to do."""

T = TypeVar("T")

KEY_BYTES: Final = 21
"""How many bytes of a batch tell it from another one: up to its CRC, in any format."""


class Key(NamedTuple):
    """Tells forms apart: two of the same place differ where it got another batch, or where they
    stand for runs of uncompressed messages that end at different ones.
    """

    segment: object
    position: int
    """Where the batch, or the run, begins in the segment's log."""
    size: int
    """How many stored bytes the form stands for."""
    head: bytes
    """The first KEY_BYTES of them."""


Form = tuple[Buffer, int]
"""A plain form, and how many stored bytes it stands for."""


class PlainForms:
    """See the module. Any thread."""

    def __init__(self, budget: int = BUDGET, patience_s: float = PATIENCE_S) -> None:
        self.budget = budget
        self.patience_s = patience_s
        self.hits = 0
        """How often somebody found a form here."""
        self.misses = 0
        """How often somebody looked for one that was not here."""
        # Reentrant: what counts a form that nobody uses any more may be called under it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._kept: OrderedDict[Key, Form] = OrderedDict()
        # Bytes that fit into the budget, and the bytes of the one that does not.
        self._small = self._large = 0
        self._turns: deque[object] = deque()
        # What is over the budget and was not taken since the last call of `age`.
        self._aged: Key | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of all forms that are counted."""
        return self._small + self._large

    @property
    def waiting(self) -> int:
        """How many threads wait for what is over the budget, or have their turn at it."""
        return len(self._turns)

    def get(self, key: Key) -> Form | None:
        """Return the form, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._kept.move_to_end(key)
                if key == self._aged:
                    self._aged = None
            return found

    def keep(self, key: Key, form: Form) -> None:
        """Keep a form that `make` has not made; those that were used least recently give way."""
        if key in self._kept or isinstance(form[0], memoryview):
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = form
            self._small += len(form[0])
            self._makes_room(0)

    def drop(self, key: Key) -> None:
        """Let go of a form, if it is kept: its reader is past it."""
        with self._lock:
            self._drop(key)

    def age(self) -> None:
        """Let go of what is over the budget, if nobody has taken it since the last call."""
        with self._lock:
            large = self._oldest(is_large=True)
            if large is not None and large == self._aged:
                self._drop(large)
            self._aged = large

    def clear(self) -> None:
        """Let go of all forms: nobody reads any more."""
        with self._lock:
            for key in list(self._kept):
                self._drop(key)

    def make(self, key: Key, sizes: tuple[int, int], decode: Callable[[int], Form]) -> Form:
        """Return the form of that key: the one that is kept, or what `decode` makes, as
        `with_room`.

        A form of more than AT_ONCE bytes is kept, for all who read.
        """
        found = self.get(key)
        if found is not None:
            return found

        def make(size: int) -> Form:
            made, stored = decode(size)
            if size <= AT_ONCE:
                return made, stored
            form = memoryview(made), stored
            with self._lock:
                is_large = self._is_large(len(made))
                self._count(len(made), is_large)
                weakref.finalize(form[0], self._gone, len(made), is_large).atexit = False
                self._drop(key)
                self._kept[key] = form
            return form

        return self._in_room(key, sizes, make)

    def with_room(self, sizes: tuple[int, int], work: Callable[[int], T]) -> T:
        """Return the result of `work(limit)`, which makes a form of at most `limit` bytes, or
        raises TooLarge: it is called once more then.

        `sizes`: which size the form most likely does not exceed, and which never
        (`record.plain.decoded_sizes`). Errors: BlockingIOError where that is more than AT_ONCE and
        the caller may not wait; OSError (ENOMEM) after too long a wait.
        """
        return self._in_room(None, sizes, work)

    def _in_room(self, key: Key | None, sizes: tuple[int, int], work: Callable[[int], T]) -> T:
        """As `with_room`, or the form of that key, once another thread has made it."""
        likely, most = (max(size, AT_ONCE) for size in sizes)
        if most > AT_ONCE:
            before_waiting()
        for size in (likely, most) if likely < most else (most,):
            with self._room(size, key) as found:
                if found is not None:
                    return cast("T", found)
                try:
                    return work(size)
                except TooLarge:
                    if size == most:
                        raise
        raise AssertionError

    @contextlib.contextmanager
    def _room(self, size: int, key: Key | None) -> Iterator[Form | None]:
        """Room for making a form of `size` bytes, or the form of that key."""
        if size <= AT_ONCE:
            yield None
            return
        is_large = self._is_large(size)
        with self._lock:
            self._wait(size, key, is_large)
            found = self._kept.get(key) if key is not None else None
            if found is None:
                self._count(size, is_large)
        if found is not None:
            yield found
            return
        try:
            yield None
        finally:
            with self._lock:
                self._count(-size, is_large)
                # What was made may have been less than was foreseen, and fit the budget by now.
                self._makes_room(0)

    def _wait(self, size: int, key: Key | None, is_large: bool) -> None:
        turn = object()

        def is_ready() -> bool:
            if key in self._kept:
                return True
            if is_large:
                return self._turns[0] is turn and self._makes_room_for_large()
            return self._makes_room(size)

        if is_large:
            self._turns.append(turn)
        try:
            is_crowded = is_large and len(self._turns) > WAITING
            if not is_ready() and (
                is_crowded or not self._changed.wait_for(is_ready, self.patience_s)
            ):
                raise OSError(
                    errno.ENOMEM,
                    f"not enough memory for a batch of up to {size} bytes uncompressed, "
                    f"because other readers use it; mount with more than {self.budget} bytes "
                    "(-o memory=SIZE)",
                )
        finally:
            if is_large:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _makes_room(self, size: int) -> bool:
        """Drop the forms that were used least recently until there is room."""
        while self._small + size > self.budget and (key := self._oldest(is_large=False)):
            self._drop(key)
        return self._small + size <= self.budget

    def _makes_room_for_large(self) -> bool:
        if self._large and (key := self._oldest(is_large=True)):
            self._drop(key)
        return not self._large

    def _oldest(self, *, is_large: bool) -> Key | None:
        of_kind = (
            key for key, (form, _) in self._kept.items() if self._is_large(len(form)) is is_large
        )
        return next(of_kind, None)

    def _is_large(self, size: int) -> bool:
        """Return whether a form is over the budget by itself."""
        return size > self.budget

    def _drop(self, key: Key) -> None:
        form = self._kept.pop(key, None)
        if form is not None and not isinstance(form[0], memoryview):
            self._small -= len(form[0])

    def _gone(self, size: int, is_large: bool) -> None:
        """Nobody uses a form any more that was counted."""
        with self._lock:
            self._count(-size, is_large)

    def _count(self, size: int, is_large: bool) -> None:
        if is_large:
            self._large += size
        else:
            self._small += size
        if size < 0:
            self._changed.notify_all()


plain_forms = PlainForms()
"""Those of this process."""
