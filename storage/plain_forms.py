"""A cache of decompressed batches (plain forms) for the whole process, within a budget of bytes.

A few kilobytes may decompress to a quarter of a gigabyte. So a reader stores only the form's key.
It takes the form from this cache while it renders, and makes it again if it was dropped. Readers of
the same batch share one form.

The budget counts cached forms. A form that may exceed AT_ONCE bytes counts from its making until
its last use. The total stays below the budget: a thread that needs room waits for other threads to
finish. Forms that exceed the budget alone are made and used one at a time, in the order of the
requests.
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
"""The default budget, in bytes."""
AT_ONCE: Final = 4 << 20
"""Bytes of a plain form that any thread may make at once; it is counted only when it is cached."""
PATIENCE_S: Final = 20.0
"""The longest wait for room, in seconds: a process whose read waits cannot be killed."""
WAITING: Final = 24
"""Threads that may wait to make a form above the budget: the others have work to do."""

T = TypeVar("T")

KEY_BYTES: Final = 21
"""Bytes of a batch that identify it: up to its CRC, in any format."""


class Key(NamedTuple):
    """The key of a form. Two forms of the same place differ if another batch was written there, or
    if they stand for different runs of uncompressed messages.
    """

    segment: object
    position: int
    """The position of the batch, or of the run, in the segment's log."""
    size: int
    """The number of stored bytes."""
    head: bytes
    """The first KEY_BYTES of them."""


Form = tuple[Buffer, int]
"""A plain form, and the number of stored bytes that it stands for."""


class PlainForms:
    """The cache of a process. Thread-safe."""

    def __init__(self, budget: int = BUDGET, patience_s: float = PATIENCE_S) -> None:
        self.budget = budget
        self.patience_s = patience_s
        self.hits = 0
        """Lookups that found a form."""
        self.misses = 0
        """Lookups that found none."""
        # Reentrant: the finalizer of a counted form may run under it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._kept: OrderedDict[Key, Form] = OrderedDict()
        # Bytes of forms within the budget, and of the one form that exceeds it.
        self._small = self._large = 0
        self._turns: deque[object] = deque()
        # The form above the budget, if it was not used since the last call of `age`.
        self._aged: Key | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of all counted forms."""
        return self._small + self._large

    @property
    def waiting(self) -> int:
        """Threads that wait to make a form above the budget, or are making one."""
        return len(self._turns)

    def get(self, key: Key) -> Form | None:
        """Return the form if it is cached."""
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
        """Cache a form that was not made by `make`; drop the least recently used ones."""
        if key in self._kept or isinstance(form[0], memoryview):
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = form
            self._small += len(form[0])
            self._makes_room(0)

    def drop(self, key: Key) -> None:
        """Drop a form if it is cached: its reader has read it to the end."""
        with self._lock:
            self._drop(key)

    def age(self) -> None:
        """Drop the form above the budget if it was not used since the last call."""
        with self._lock:
            large = self._oldest(is_large=True)
            if large is not None and large == self._aged:
                self._drop(large)
            self._aged = large

    def clear(self) -> None:
        """Drop all forms."""
        with self._lock:
            for key in list(self._kept):
                self._drop(key)

    def make(self, key: Key, sizes: tuple[int, int], decode: Callable[[int], Form]) -> Form:
        """Return the cached form, or make it by `decode` within the budget.

        A form of more than AT_ONCE bytes is cached for other readers. Errors: see `with_room`.
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
        """Return `work(limit)`, which makes a form of at most `limit` bytes. If it raises TooLarge,
        it is called once more with a larger limit.

        `sizes`: the probable and the certain bound of the form's size
        (`record.plain.decoded_sizes`). Errors: BlockingIOError if that is more than AT_ONCE and the
        caller may not wait; OSError (ENOMEM) after too long a wait.
        """
        return self._in_room(None, sizes, work)

    def _in_room(self, key: Key | None, sizes: tuple[int, int], work: Callable[[int], T]) -> T:
        """Make a form within the budget, or return that of `key` if another thread has made it."""
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
        """Reserve room for making a form of `size` bytes, or yield the form of that key."""
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
                # The form may be smaller than was reserved, and fit the budget now.
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
        """Stop counting a form after its last use."""
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
"""The cache of this process."""
