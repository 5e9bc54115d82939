"""Finds the functions of a source file and those that a fault changes."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fault import Fault


@dataclass(frozen=True)
class Function:
    """A function: its lines, and where a call can be inserted that runs whenever it runs.

    `line` and `column` are None in a function of Cython that may run without the GIL.
    """

    file: str
    name: str
    first: int
    last: int
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def is_compiled(file: str) -> bool:
    return file.endswith((".pyx", ".pxd"))


def functions_in(file: str, text: str) -> list[Function]:
    """Return the functions of a file, an inner one behind the function around it."""
    return (_cython if is_compiled(file) else _python)(file, text)


def _python(file: str, text: str) -> list[Function]:
    found = []

    def visit(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{inside}.{child.name}".removeprefix(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                start = next(iter(body), None)
                # A decorated function begins with its decorator.
                at = [start, *getattr(start, "decorator_list", ())] if start else []
                line = min((each.lineno for each in at), default=None)
                column = start.col_offset if start else None
                found.append(
                    Function(file, name, child.lineno, child.end_lineno or 0, line, column)
                )
            visit(child, name)

    visit(ast.parse(text), "")
    return found


_HEAD = re.compile(r"( *)(def|cdef|cpdef)\b[^=(]*?(\w+)\(")


def _cython(file: str, text: str) -> list[Function]:
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        head = _HEAD.match(line)
        if head is None:
            continue
        body = number
        depth = 0
        for code in (each.split("#")[0].rstrip() for each in lines[number:]):
            depth += code.count("(") - code.count(")")
            body += 1
            if depth == 0:
                break
        if not code.endswith(":"):
            continue  # a declaration
        signature = "\n".join(lines[number:body])
        last = body
        for end in range(body, len(lines)):
            if lines[end].strip():
                if len(lines[end]) - len(lines[end].lstrip()) <= len(head[1]):
                    break
                last = end + 1
        gil = head[2] != "cdef" and "nogil" not in signature and head[3] != "__dealloc__"
        inserted = (body + 1, len(head[1]) + 4) if gil else ()
        found.append(Function(file, head[3], number + 1, last, *inserted))
    return found


@functools.cache
def _compiled_functions(root: Path) -> dict[Function, frozenset[str]]:
    """Return the functions of all Cython files with the words in each of them."""
    found = {}
    patterns = ("kafkafs/**/*.p[yx][xd]", "storage/**/*.p[yx][xd]")
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        text = path.read_text()
        lines = text.splitlines()
        for each in _cython(str(path.relative_to(root)), text):
            words = re.findall(r"\w+", "\n".join(lines[each.first - 1 : each.last]))
            found[each] = frozenset(words)
    return found


@functools.cache
def _sees(root: Path, file: str, other: str) -> bool:
    """Return whether a file of Cython can call what another one declares."""
    module = other.rpartition(".")[0]
    uses = f"from {module.replace('/', '.')} cimport"
    return file.rpartition(".")[0] == module or uses in (root / file).read_text()


def _callers(functions: list[Function], root: Path) -> list[Function]:
    """Return the functions of Python that call functions of Cython, directly or not."""
    found = set(functions)
    new = found
    while new:
        new = {
            caller
            for caller, words in _compiled_functions(root).items()
            for each in new
            if each.line is None and each.name in words and _sees(root, caller.file, each.file)
        } - found
        found |= new
    return [each for each in found if each.line is not None]


def _common(one: str, other: str) -> int:
    """Return how many characters both texts begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def changed(fault: Fault, root: Path) -> list[Function]:
    """Return the functions that run if a test reaches a fault.

    These are the innermost functions around the changed text; outside of functions, all functions
    of the file. Of Cython, they are the functions of Python that call those, directly or not.
    """
    text = (root / fault.file).read_text()
    old, new = fault.old, fault.new
    before = _common(old, new)
    after = _common(old[before:][::-1], new[before:][::-1])
    start = text.index(old) + before
    end = max(start, text.index(old) + len(old) - after - 1)
    functions = functions_in(fault.file, text)
    inner = {}
    for number in range(text.count("\n", 0, start) + 1, text.count("\n", 0, end) + 2):
        for each in functions:
            if each.first <= number <= each.last:
                inner[number] = each
    found = list(dict.fromkeys(inner.values())) or functions
    if is_compiled(fault.file):
        # Where pointers to functions hide the callers: all functions of the folder.
        folder = Path(fault.file).parent
        near = [each for each in _compiled_functions(root) if Path(each.file).parent == folder]
        found = _callers(found, root) or near
    return [each for each in found if each.line is not None]
