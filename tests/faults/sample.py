"""Makes faults automatically: a seed and the tree determine the sample.

Each room, a folder of the code, gets faults by its lines of Python, and all files of Cython
together get a fixed number.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.fault import ROOT, Fault
from tests.faults.functions import functions_in, is_compiled

PER_LINES = 6 / 1000
COMPILED = 60
PACKAGES = ("kafka_client", "kafkafs", "storage")

NEGATED = "a condition is negated"
OFF_BY_ONE = "a comparison or a number is off by one"
DROPPED = "a statement is dropped"
EARLY = "a function returns early"
SWAPPED = "two arguments are swapped"
LESS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}

Edit = tuple[str, int, int, str]
"""The kind of the edit, a range of bytes, and the text that replaces it."""


def _edits_of_python(text: str) -> Iterator[Edit]:
    source = text.encode()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def start(node: ast.expr | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.stmt) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def code(node: ast.expr | ast.stmt) -> str:
        return source[start(node) : end(node)].decode()

    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        if isinstance(function.returns, ast.Constant) and function.returns.value is None:
            for statement in function.body[1:]:
                at = start(statement)
                if not getattr(statement, "decorator_list", ()):
                    yield EARLY, at, at, f"return\n{' ' * statement.col_offset}"
        for node in (each for statement in function.body for each in ast.walk(statement)):
            match node:
                case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                    yield NEGATED, start(test), end(test), f"(not ({code(test)}))"
                case ast.Compare(left=left, ops=[_], comparators=[right]):
                    between = source[end(left) : start(right)].decode()
                    if between.strip() in LESS:
                        other = between.replace(between.strip(), LESS[between.strip()])
                        yield OFF_BY_ONE, end(left), start(right), other
                case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int() as number)):
                    right = node.right
                    yield OFF_BY_ONE, start(right), end(right), str(number + 1)
                case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
                    yield DROPPED, start(node), end(node), "pass"
                case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                    yield DROPPED, start(node), end(node), "pass"
                case ast.Call(args=[one, other, *_]) if code(one) != code(other):
                    if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                        middle = source[end(one) : start(other)].decode()
                        swapped = f"{code(other)}{middle}{code(one)}"
                        yield SWAPPED, start(one), end(other), swapped


def _edits_of_cython(file: str, text: str) -> Iterator[Edit]:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    for function in functions_in(file, text):
        head = lines[function.first - 1]
        returns_nothing = re.match(r" *(cdef (inline )?void|def .*-> None)", head) is not None
        depth = 0
        body = False
        for number in range(function.first - 1, function.last):
            line = lines[number].split("#")[0].rstrip()
            before, depth = depth, depth + sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
            if not body:
                body = depth == 0 and line.endswith(":")
                continue
            indent = len(line) - len(line.lstrip())
            at, code = starts[number] + indent, line.strip()
            if before or depth or not code or '"""' in code or not code.isascii():
                continue
            condition = re.fullmatch(r"(?:if|elif|while) (.+):", code)
            if condition is not None:
                edit = f"(not ({condition[1]}))"
                yield NEGATED, at + condition.start(1), at + condition.end(1), edit
            if (less := re.search(r"(?<= )(<=?|>=?)(?= \w)", code)) is not None:
                yield OFF_BY_ONE, at + less.start(), at + less.end(), LESS[less[0]]
            if (plus := re.search(r"(?<= [+-] )\d+\b", code)) is not None:
                yield OFF_BY_ONE, at + plus.start(), at + plus.end(), str(int(plus[0]) + 1)
            if re.fullmatch(r"(\w+\(.*\)|[\w.\[\]]+ [+-]= .+|\w+(\.\w+|\[\w+\]) = .+)", code):
                yield DROPPED, at, at + len(code), "pass"
            pair = re.search(r"(?<=\()(\w+), (\w+)(?=[,)])", code)
            if pair is not None and pair[1] != pair[2] and not code.startswith(("def", "cdef")):
                yield SWAPPED, at + pair.start(), at + pair.end(), f"{pair[2]}, {pair[1]}"
            if returns_nothing and indent and not code.startswith(("cdef", "el", "ex", "fin")):
                yield EARLY, at, at, f"return\n{' ' * indent}"


def _fault(seed: str, file: str, text: str, edit: Edit) -> Fault | None:
    """Return the edit as a fault, whose lines stand in the file only once."""
    what, start, end, new = edit
    source = text.encode()
    changed = (source[:start] + new.encode() + source[end:]).decode()
    lines, others = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    first = source.count(b"\n", 0, start)
    last = source.count(b"\n", 0, end) + 1
    for wider in range(20):
        top, bottom = max(0, first - wider), min(len(lines), last + wider)
        old = "".join(lines[top:bottom])
        put = "".join(others[top : bottom + len(others) - len(lines)])
        if text.count(old) == 1 and changed.count(put) == 1:
            name = f"{seed}:{file}:{first + 1}:{what.replace(' ', '-')}"
            return Fault(name, file, old, put, f"{what}.", ())
    return None


def edits_of(file: str, text: str) -> list[Edit]:
    return list(_edits_of_cython(file, text) if is_compiled(file) else _edits_of_python(text))


def drawn(seed: str, room: str, files: Iterable[tuple[str, str]], count: int) -> list[Fault]:
    """Draw faults of a room in turn from each kind, one of a kind on a line.

    Python compiles each of them. A fault of Cython may turn out to be no code.
    """
    source = random.Random(f"{seed} {room}")
    kinds = defaultdict(list)
    for file, text in files:
        for edit in edits_of(file, text):
            kinds[edit[0]].append((file, text, edit))
    left = [source.sample(kinds[kind], len(kinds[kind])) for kind in sorted(kinds)]
    source.shuffle(left)
    chosen: dict[str, Fault] = {}
    while any(left):
        for edits in filter(None, left):
            file, text, edit = edits.pop()
            fault = _fault(seed, file, text, edit)
            if len(chosen) == count:
                return [chosen[name] for name in sorted(chosen)]
            if fault is not None and (is_compiled(file) or _is_code(fault, text)):
                chosen[fault.name] = fault
    return [chosen[name] for name in sorted(chosen)]


def _is_code(fault: Fault, text: str) -> bool:
    try:
        compile(text.replace(fault.old, fault.new), fault.file, "exec")
    except SyntaxError:
        return False
    return True


def sample(seed: str, root: Path = ROOT) -> list[Fault]:
    """Return the faults of all rooms."""
    rooms: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py*")):
            if path.suffix in (".py", ".pyx"):
                file = str(path.relative_to(root))
                room = "Cython" if path.suffix == ".pyx" else str(Path(file).parent)
                rooms[room].append((file, path.read_text()))
    chosen = []
    for room, files in sorted(rooms.items()):
        lines = sum(1 for _, text in files for line in text.splitlines() if line.strip())
        count = COMPILED if room == "Cython" else round(PER_LINES * lines)
        chosen += drawn(seed, room, files, count)
    return chosen
