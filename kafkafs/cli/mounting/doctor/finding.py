"""What a check of `kafkafs doctor` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is wrong, or a hint: what works, and could work better.

    `mend` is the line to type, or where that cannot be known, in words what to do.
    """

    what: str
    mend: str
    is_wrong: bool = True


class NotLooked(Exception):  # noqa: N818 - it is no error
    """A check cannot be made, and another one tells why."""


class Check(NamedTuple):
    """`look` runs in a process of its own, which may wait for ever. `silent`: what it means where
    it does.
    """

    name: str
    look: Callable[[], Iterable[Finding]]
    silent: Finding
