"""Finds in an error of Spark's the line that tells the user what to do.

Spark wraps a task's exception in the text of a Python traceback, that in a Java one, and that in an
exception here. The first line of the innermost message says what went wrong.
"""

from __future__ import annotations

import re

_TASKS = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.+)$")
_TRACEBACK = "Traceback (most recent call last):"


def is_sparks(error: BaseException) -> bool:
    """Whether Spark or Py4J raised this."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = str(error)
    if _TRACEBACK in text:
        found = _raised(text[text.index(_TRACEBACK) :].splitlines()[1:])
        if found:
            return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("Caused by: "):
            return line.removeprefix("Caused by: ")
    return lines[0] if lines else type(error).__name__


def _raised(lines: list[str]) -> str:
    """The exception that ends a traceback's lines."""
    for line in lines:
        if not line or line[0].isspace():
            continue
        match = _TASKS.match(line)
        if match is None:
            return ""
        return match[2] if match[1] not in ("KeyError", "AssertionError") else line
    return ""
