"""A small fault that is planted in the code, to check that a test finds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Misfit(Exception):  # noqa: N818 - it is no error of the code that runs
    """The code has changed since the fault was written."""


@dataclass(frozen=True)
class Fault:
    """A change of `file`: `new` replaces the text `old`, which occurs exactly once.

    `breaks`: the consequence for a user. `tests`: files or tests; at least one of them has to fail.
    `unseen`: the reason why no test can see the fault; empty if a test can.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    unseen: str = ""

    def apply(self, root: Path = ROOT) -> None:
        """Put the fault into the code below `root`. Errors: Misfit."""
        self._replace(root, self.old, self.new)

    def undo(self, root: Path = ROOT) -> None:
        """Remove the fault from the code. Errors: Misfit if the code does not have it."""
        self._replace(root, self.new, self.old)

    def _replace(self, root: Path, old: str, new: str) -> None:
        path = root / self.file
        text = path.read_text() if path.exists() else ""
        if (count := text.count(old)) != 1:
            raise Misfit(f"{self.name}: {count} times in {self.file}, not once:\n{old}")
        path.write_text(text.replace(old, new))
