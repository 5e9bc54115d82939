"""A small fault that is put into the code on purpose, to see whether a test sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Misfit(Exception):  # noqa: N818 - it is no error of the code that runs
    """The code is no longer what the fault was written for."""


@dataclass(frozen=True)
class Fault:
    """In ``file`` the text ``old``, which is there exactly once, becomes ``new``.

    ``breaks``: what a user loses by it.  ``tests``: files or tests, one of which is to fail.
    ``unseen``: why no test can see it; empty where one does.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    unseen: str = ""

    def apply(self, root: Path = ROOT) -> None:
        """Put it into the code below ``root``; Misfit where it does not fit."""
        self._replace(root, self.old, self.new)

    def undo(self, root: Path = ROOT) -> None:
        """Take it back; Misfit where it was not in the code."""
        self._replace(root, self.new, self.old)

    def _replace(self, root: Path, old: str, new: str) -> None:
        path = root / self.file
        text = path.read_text() if path.exists() else ""
        if (count := text.count(old)) != 1:
            raise Misfit(f"{self.name}: {count} times in {self.file}, not once:\n{old}")
        path.write_text(text.replace(old, new))
