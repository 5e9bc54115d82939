"""Runs the gate once to record which test files reach the functions that have a fault.

`reach.txt` keeps the result: a line for each function, and below it a line for each folder of
tests with the names of its files.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.faults import recorder
from tests.faults.copies import Copy
from tests.faults.fault import ROOT, Fault, Misfit
from tests.faults.functions import Function, changed, is_compiled

REACHED = ROOT / "tests/faults/reach.txt"
TIMES = ROOT / "build/test-times.csv"
GATE_S = 3600
Reached = dict[str, set[str]]
"""The test files that reach each function."""


def insert(root: Path, functions: Sequence[Function]) -> None:
    """Let each function record its number first."""
    by_file = defaultdict(list)
    for number, function in enumerate(functions):
        by_file[function.file].append((function, number))
    for file, inside in by_file.items():
        lines = (root / file).read_text().splitlines(keepends=True)
        inside.sort(key=lambda each: (each[0].line or 0, each[0].column or 0), reverse=True)
        for function, number in inside:
            assert function.line is not None
            line, column = lines[function.line - 1], function.column or 0
            before, body = line[:column], line[column:]
            if is_compiled(file):
                before, body = " " * column, line
            # The body of a function of one line stands behind the colon.
            end = "; " if before.strip() else "\n" + " " * column * (not is_compiled(file))
            lines[function.line - 1] = f"{before}_reached({number}){end}{body}"
        (root / file).write_text(_import_into(file, "".join(lines)))
    (root / "storage/_reached.py").write_text(Path(recorder.__file__).read_text())


def _import_into(file: str, text: str) -> str:
    future = "from __future__ import annotations\n"
    line = "from storage._reached import reached as _reached\n"
    if future in text:
        return text.replace(future, future + line, 1)
    if not is_compiled(file):
        return line + text
    # Comments with directives come first in a file of Cython.
    lines = text.splitlines(keepends=True)
    comments = next(number for number, each in enumerate(lines) if not each.startswith("#"))
    return "".join([*lines[:comments], line, *lines[comments:]])


def reach(faults: Iterable[Fault], copy: Copy, options: Sequence[str], parts: Sequence[str]) -> str:
    """Run the tests of these parts, or all of the gate; return the text for `REACHED`.

    Errors: Misfit if pytest does not run all tests.
    """
    functions = sorted({each for fault in faults for each in changed(fault, ROOT)}, key=str)
    insert(copy.root, functions)
    if any(is_compiled(function.file) for function in functions):
        copy.compile()
    folder = copy.root.parent / "reached"
    folder.mkdir()
    folder.chmod(0o777)  # a test may become another user
    os.environ[recorder.VARIABLE] = str(folder)
    code, output = copy.test(parts, "-p", "tests.faults.recorder", *options, timeout_s=GATE_S)
    print(output[-3000:], file=sys.stderr, flush=True)
    if code not in (0, 1):
        raise Misfit(f"pytest did not run all tests: it ended with {code}")
    reached: Reached = {str(function): set() for function in functions}
    for path in folder.glob("*.reached"):
        for line in path.read_text().splitlines():
            number, _, file = line.partition(" ")
            if (ROOT / file).is_file():
                reached[str(functions[int(number)])].add(file)
    return written(reached)


def written(reached: Mapping[str, Iterable[str]]) -> str:
    lines = []
    for function in sorted(reached):
        lines.append(function)
        folders = defaultdict(list)
        for file in sorted(reached[function]):
            folder, _, name = file.removeprefix("tests/").rpartition("/")
            folders[folder].append(name.removeprefix("test_").removesuffix(".py"))
        lines += [f"  {folder}: {' '.join(names)}" for folder, names in sorted(folders.items())]
    return "\n".join([*lines, ""])


def read(text: str) -> Reached:
    reached: Reached = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            files = reached[line] = set()
            continue
        folder, _, names = line.strip().partition(":")
        files |= {"/".join(filter(None, ("tests", folder, f"test_{n}.py"))) for n in names.split()}
    return reached
