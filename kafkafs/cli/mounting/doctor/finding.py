"""The checks of `kafkafs doctor` and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    """A problem, or a hint about something that works but could work better.

    `mend` is the line to type or, if the line cannot be known, a text that says what to do.
    """

    what: str
    mend: str
    is_wrong: bool = True


class NotLooked(Exception):  # noqa: N818 - it is no error
    """A check cannot be made, and another check reports the reason."""


class Check(NamedTuple):
    """A check. `look` runs in its own process, which may wait for ever. `silent`: the finding if
    it does.
    """

    name: str
    look: Callable[[], Iterable[Finding]]
    silent: Finding
