"""Prints facts and tables of commands: for people, or with `--json` for programs.

A command takes the options by `output_options` and prints by the `Output` that it gets. A size is a
`Size`, a time a `TimeMs`: `--bytes` and `--epoch` say how they are written.

    text    a fact is `name value`; a table has a line of names and plain columns; sizes are like
            1.5MiB, times ISO 8601 in local time, to the second
    JSON    one object a command (`kafkafs/cli/output.schema.json`): sizes are numbers of bytes,
            times have milliseconds

With `--json`, standard output has nothing else. Errors are still printed to standard error. The
object is printed when the command ends with the status 0, 1 or 3, by `grep` also after errors that
give it the status 2.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, TypeVar

import click

from kafkafs.cli.common.ending import code_of, failure, say, warn
from kafkafs.printable import one_line
from kafkafs.quantities import Size, TimeMs, Value, human_size, local_time

_F = TypeVar("_F", bound=Callable[..., Any])

SCHEMA = 1
"""The version of what `--json` prints."""
_OUTPUT = "kafkafs.output"
#: From this exit status on, a signal has ended the command.
_SIGNALLED = 128


class Problem(NamedTuple):
    """Something that is wrong, as `--json` has it."""

    path: str | None
    offset: int | None
    code: str
    message: str


@contextmanager
def binary_stdout() -> Iterator[BinaryIO]:
    """Yield standard output for bytes. Each write writes all bytes."""
    out = sys.stdout.buffer
    yield out
    out.flush()


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, even if the descriptor is non-blocking. Errors: OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll()


class Output:
    """Prints the results of a command in the form that its options select."""

    def __init__(
        self,
        command: str = "",
        *,
        as_json: bool = False,
        epoch: bool = False,
        in_bytes: bool = False,
    ) -> None:
        """`command`: its path."""
        self._command = command
        self.as_json = as_json
        self.epoch = epoch
        self.in_bytes = in_bytes
        self._result: object = None
        self._problems: list[Problem] = []
        self.has_failed = False
        """Whether `report` was called."""

    def say(self, line: object, *, wrong: bool = False) -> None:
        """Print a line for people."""
        if not self.as_json:
            say(line, wrong=wrong)

    def facts(self, facts: Mapping[str, Value]) -> None:
        """Print facts in either form."""
        if self.as_json:
            self.json(facts)
        for name, value in facts.items():
            self.say(f"{name} {self.text(value)}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Print a table in either form. As text, numbers are aligned right."""
        if self.as_json:
            self.json(objects(columns, rows))
            return
        cells = [list(columns), *([self.text(value) for value in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        is_text = [any(isinstance(row[n], str) for row in rows) for n in range(len(columns))]
        for row in cells:
            aligned = (
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, is_text, strict=True)
            )
            self.say("  ".join(aligned).rstrip())

    def listing(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Mapping[str, Value]],
        notes: Sequence[str] = (),
    ) -> None:
        """Print columns of facts as a table, and notes below it. JSON has all facts."""
        self.json({name: rows, "notes": notes})
        if not self.as_json:
            self.table(columns, [[row[column] for column in columns] for row in rows])
        for note in notes:
            self.say(f"# {note}")

    def json(self, value: object) -> None:
        """Set the result for `--json`: nested lists, mappings and values."""
        self._result = value

    def problem(
        self, message: str, code: str, *, path: str | None = None, offset: int | None = None
    ) -> None:
        """Note something that is wrong, for `--json`."""
        self._problems.append(Problem(path, offset, code, message))

    def report(self, reason: object, *, path: str | None = None) -> None:
        """Print why something was not done, each reason once, and note it for `--json`."""
        code = code_of(reason) if isinstance(reason, Exception) else "FAILED"
        place: tuple[str | None, int | None, str] = getattr(reason, "problem", (path, None, code))
        problem = Problem(*place, str(reason))
        if problem not in self._problems:
            self._problems.append(problem)
            warn(reason, wrong=True)
        self.has_failed = True

    def end(self, failure: click.ClickException | None = None) -> None:
        """Print the object of `--json`; nothing without it. `failure`: what ends the command."""
        if not self.as_json:
            return
        if failure is not None:
            path, offset, code = getattr(failure, "problem", (None, None, "FAILED"))
            self.problem(failure.message, code, path=path, offset=offset)
        value = {
            "schema": SCHEMA,
            "command": self._command.partition(" ")[2],
            "result": self._plain(self._result),
            "problems": [each._asdict() for each in self._problems],
        }
        # A name may have bytes that are no UTF-8; JSON writes them as \udcXX.
        text = json.dumps(value, indent=2, ensure_ascii=False)
        click.echo(text.encode(errors="backslashreplace"))

    def text(self, value: Value) -> str:
        """Return a value as text for people, in a column or after a name."""
        if value is None:
            return "-"
        if isinstance(value, Size):
            return str(int(value)) if self.in_bytes else human_size(value)
        if isinstance(value, TimeMs):
            return str(int(value)) if self.epoch else local_time(value, timespec="seconds")
        if isinstance(value, float):
            return f"{value:.3f}".rstrip("0").rstrip(".")
        return str(value).lower() if isinstance(value, bool) else one_line(str(value))

    def size(self, size: int) -> str:
        """Return a size as text in a sentence."""
        return f"{size} bytes" if self.in_bytes else human_size(size)

    def _plain(self, value: object) -> object:
        """Return a value in the form for JSON."""
        if isinstance(value, Mapping):
            # A column of sizes is named for people: here it has the unit, as all sizes.
            return {
                "bytes" if name == "size" else name: self._plain(each)
                for name, each in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._plain(each) for each in value]
        return local_time(value) if isinstance(value, TimeMs) else value


@contextmanager
def printing_json(meta: MutableMapping[str, Any]) -> Iterator[None]:
    """Print the object of `--json` when the command ends. `meta`: that of the click context.

    Nothing is printed if the command line is wrong, or if a signal ends the command.
    """
    try:
        yield
    except (click.UsageError, click.exceptions.Exit, BrokenPipeError):
        raise
    except SystemExit as ended:
        if ended.code in range(_SIGNALLED):
            meta.pop(_OUTPUT, Output()).end()
        raise
    except Exception as error:
        failed = failure(error)
        if failed is None:
            raise
        meta.pop(_OUTPUT, Output()).end(failed)
        raise failed from None
    meta.pop(_OUTPUT, Output()).end()


def objects(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[dict[str, Value]]:
    """Return the rows of a table for `Output.json`."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _flag(attribute: str, option: str, text: str) -> Callable[[_F], _F]:
    """Return an option that sets an attribute of the command's `Output`."""

    def noted(context: click.Context, parameter: click.Parameter, value: bool) -> Output:
        out: Output = context.meta.setdefault(_OUTPUT, Output(context.command_path))
        setattr(out, attribute, value)
        return out

    is_exposed = attribute == "as_json"
    return click.option(
        *(option, "out" if is_exposed else attribute),
        is_flag=True,
        is_eager=True,  # so that errors of other parameters are printed as JSON, too
        expose_value=is_exposed,
        callback=noted,
        help=text,
    )


def output_options(
    content: str = "", *, times: bool = False, sizes: bool = False
) -> Callable[[_F], _F]:
    """Add the option `--json`, with `times` `--epoch`, with `sizes` `--bytes`.

    The parameter of the command is `out`, an `Output`. `content`: the names in the JSON.
    """

    def decorate(function: _F) -> _F:
        if sizes:
            function = _flag("in_bytes", "--bytes", "Print sizes as numbers of bytes.")(function)
        if times:
            text = "Print times as milliseconds since 1970. In JSON, times stay in ISO 8601."
            function = _flag("epoch", "--epoch", text)(function)
        text = f"Print JSON: {content}." if content else "Print JSON."
        return _flag("as_json", "--json", text)(function)

    return decorate
