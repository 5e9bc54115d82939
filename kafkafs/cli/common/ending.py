"""How commands end: with a line that says what is wrong and a status, and with no traceback.

    0    done, and nothing is wrong
    1    done, and something was found
    2    the command line is wrong; nothing was done
    3    not done, or only in part; also if something was found

A command raises `fail`, or works within `one_line_errors`; the group of all commands runs each
within `ended_in_order`. Errors of standard output have its name for a path, and who reads it no
more ends a command silently.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from kafkafs.printable import one_line

FOUND = 1
NOT_DONE = 3

#: What errors of standard output have for a path.
_STANDARD_OUTPUT = "standard output"
_TYPED = "kafkafs.typed"


def say(line: object, *, err: bool = False, wrong: bool = False) -> None:
    """Print a line to standard output, or to standard error.

    `wrong`: the line names something that is wrong, and is red on a terminal, unless the
    environment has NO_COLOR.
    """
    text = one_line(str(line))
    if wrong and not os.environ.get("NO_COLOR"):
        text = click.style(text, fg="red")
    click.echo(text, err=err)


class _Failure(click.ClickException):
    def show(self, file: object = None) -> None:
        say(f"kafkafs: {self.message}", err=True, wrong=True)


def fail(message: str, status: int = NOT_DONE) -> click.ClickException:
    """An exception that prints one line on standard error and exits with this status."""
    failure = _Failure(message)
    failure.exit_code = status  # type: ignore[misc]  # which click looks up in the instance
    return failure


def wrong_usage(error: click.UsageError) -> click.ClickException:
    """An error of click's parser as one line, with what to type."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    is_enough = error.ctx is None or "Try: " in message or message.endswith("?")
    hint = "" if is_enough or error.ctx is None else f"{error.ctx.command_path} --help"
    return fail(f"{message}. Try: {hint}" if hint else message, error.exit_code)


def end(*, found: bool = False, failed: bool = False) -> None:
    """Exit unless all is well. `failed`: something was not done."""
    if found or failed:
        sys.exit(NOT_DONE if failed else FOUND)


def as_typed(path: str) -> str:
    """A path as the command line has it, if it leads there."""
    context = click.get_current_context(silent=True)
    known = {} if context is None else context.meta.get(_TYPED, {})
    for real, typed in known.items():
        if path == real or path.startswith(f"{real}/"):
            return os.path.join(typed, path.removeprefix(real).lstrip("/")).rstrip("/")
    return path


def note_typed(typed: str, real: str) -> None:
    """Note how the command line has a path."""
    click.get_current_context().meta.setdefault(_TYPED, {})[real] = typed


def failure(error: Exception) -> click.ClickException:
    """As `fail`, with an error's reason behind the path of its file or directory."""
    from storage.errors import refusal_of

    if isinstance(error, OSError) and error.filename == _STANDARD_OUTPUT:
        _print_nowhere()
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return fail("the working directory was deleted")
    reason = refusal_of(error)
    where = getattr(error, "filename" if isinstance(error, OSError) else "path", None)
    if where is None or str(where) in reason:
        return fail(reason)
    return fail(f"{as_typed(str(where))}: {reason}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line where the storage or the disk fails, or it is cancelled."""
    try:
        yield
    except KeyboardInterrupt:
        cancelled()
    except Exception as error:
        from storage.errors import LogLocked, StorageError, TaskCancelled

        if isinstance(error, TaskCancelled):
            cancelled()
        if isinstance(error, BrokenPipeError):
            raise
        if isinstance(error, LogLocked):
            from kafkafs.data_directory import in_use

            raise fail(in_use(error)) from None
        if isinstance(error, OSError | StorageError):
            raise failure(error) from None
        raise


@contextmanager
def ended_in_order() -> Iterator[None]:
    """End a program without a traceback where it is cancelled, or the system refuses something."""
    try:
        yield
    except KeyboardInterrupt:
        cancelled()
    except click.UsageError as error:
        if not error.message:  # click shows the help
            raise
        raise wrong_usage(error) from None
    except BrokenPipeError:
        _unread()
    except OSError as error:
        raise failure(error) from None


class _StandardOutput(io.BufferedWriter):
    """Its errors have its name for a path."""

    def write(self, data: Any) -> int:
        with naming_output():
            return super().write(data)

    def flush(self) -> None:
        with naming_output():
            super().flush()


@contextmanager
def naming_output() -> Iterator[None]:
    """Errors of writing to standard output get its name for a path."""
    try:
        yield
    except OSError as error:
        error.filename = _STANDARD_OUTPUT
        raise


def open_standard_streams() -> None:
    """Before a program opens a file or prints.

    No file gets the number of a standard stream that is closed; who prints to such a standard
    output gets EBADF. It has a buffer also under PYTHONUNBUFFERED: without one, a write that a
    signal interrupts writes a part.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    before = sys.stdout
    if before is not sys.__stdout__:  # somebody collects it in memory
        return
    sys.stdout = io.TextIOWrapper(
        _StandardOutput(io.FileIO(1, "w", closefd=False)),
        encoding=None if before is None else before.encoding,
        errors=None if before is None else before.errors,
        line_buffering=before is not None and before.line_buffering,
    )


def _print_nowhere() -> None:
    """What is still in the buffer of standard output cannot be written at the end either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def cancelled() -> NoReturn:
    """End a command that a signal has cancelled, with the status that a shell gives it."""
    say("kafkafs: cancelled", err=True)
    sys.exit(128 + signal.SIGINT)


def _unread() -> NoReturn:
    """End a command whose reader has gone, as `head` does: silently, with the status of SIGPIPE."""
    _print_nowhere()
    sys.exit(128 + signal.SIGPIPE)


def did_you_mean(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """What to add to the error of a name that is not there: one that it may be a slip of; or "".

    `cutoff`: how alike they must be, from 0 to 1.
    """
    from difflib import get_close_matches

    near = get_close_matches(given, sorted(known), n=1, cutoff=cutoff)
    return f": did you mean {near[0]!r}?" if near else ""
