"""The rule of the unit lane: a test starts no programs unless it is marked `programs`.

A folder belongs to the unit lane (`scripts/test unit`) if its conftest.py imports the hooks of this
module. There a test without the mark fails when it starts a program, such as `cat`, a mount or a
command of kafkafs. A test may start Python itself for a script of its own, and it may fork.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from tests.fork_server import PROGRAMS

OURS = (*PROGRAMS, ("-m", "kafkafs"))
"""Arguments of Python that make it a program: a command of kafkafs, or a mount."""

_test: pytest.Item | None = None
"""The test that runs, if it may start no programs."""


def _words(command: Any) -> list[str]:
    one_word = isinstance(command, str | bytes | os.PathLike)
    return [os.fsdecode(word) for word in ([command] if one_word else command)]


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if _test is None or event not in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        return
    words = _words(arguments[0]) if event == "os.system" else _words(arguments[1])
    is_python = os.path.basename(words[0]).startswith("python")
    if is_python and tuple(words[1:3]) not in OURS:
        return
    message = f"a test of the unit lane starts {words!a}: mark it pytest.mark.programs"
    if event == "os.exec":  # probably in a child, where no exception may come out of the test
        os.write(2, f"{_test.nodeid}: {message}\n".encode())
        os._exit(127)
    pytest.fail(message)


sys.addaudithook(_check)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _test
    _test = item if item.get_closest_marker("programs") is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """The last test of a module also ends the mount that marked tests have shared."""
    global _test
    _test = None
