"""Ends commands with an exit status and a line that says what is wrong, without a traceback.

    0    done, and nothing is wrong
    1    done, and something was found
    2    the command line is wrong; nothing was done
    3    not done, or only in part; also if something was found

`grep` has the statuses of grep(1), `dump` those of DumpLogSegments.

A command raises `fail`, or lets an OSError or a StorageError pass: the group of all commands runs
each command inside `ended_in_order`. Errors of standard output have its name as their path. If the
reader of standard output exits, the command ends silently.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from kafkafs.printable import one_line

FOUND = 1
NOT_DONE = 3

#: Stands for the path in errors of standard output.
_STANDARD_OUTPUT = "standard output"
_TYPED = "kafkafs.typed"
#: A group without arguments. Before 8.2, click prints its help without an error.
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())


def say(line: object, *, err: bool = False, wrong: bool = False) -> None:
    """Print a line to standard output, or to standard error.

    `wrong`: the line names something that is wrong, and is red on a terminal, unless the
    environment has NO_COLOR.
    """
    text = one_line(str(line))
    if wrong and not os.environ.get("NO_COLOR"):
        text = click.style(text, fg="red")
    click.echo(text, err=err)


def warn(line: object, *, wrong: bool = False) -> None:
    """Print a line of kafkafs to standard error. `wrong`: as for `say`."""
    say(f"kafkafs: {line}", err=True, wrong=wrong)


class _Failure(click.ClickException):
    exit_code = NOT_DONE
    problem: tuple[str | None, int | None, str] = (None, None, "FAILED")
    """Path, offset and code for `--json`."""

    def show(self, file: object = None) -> None:
        warn(self.message, wrong=True)


def fail(message: str, status: int = NOT_DONE) -> click.ClickException:
    """Return an exception that prints one line on standard error and exits with `status`."""
    failure = _Failure(message)
    failure.exit_code = status  # type: ignore[misc]  # which click looks up in the instance
    return failure


def wrong_usage(error: click.UsageError) -> click.ClickException:
    """Return an error of click's parser as one line, with the command to type."""
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
    """Return a path as it was typed, if it is a path of the command line or lies below one."""
    context = click.get_current_context(silent=True)
    known = {} if context is None else context.meta.get(_TYPED, {})
    for real, typed in known.items():
        if path == real or path.startswith(f"{real}/"):
            return os.path.join(typed, path.removeprefix(real).lstrip("/")).rstrip("/")
    return path


def note_typed(typed: str, real: str) -> None:
    """Record how a path was typed."""
    click.get_current_context().meta.setdefault(_TYPED, {})[real] = typed


def failure(error: Exception) -> click.ClickException | None:
    """Return an exception that prints the path and the reason of an error, and exits as `fail`.

    The result is `error` itself if click prints it, and None if the error is a bug, or cancels the
    command.
    """
    if isinstance(error, click.ClickException):
        return error
    from storage.errors import LogLocked, StorageError, TaskCancelled, refusal_of

    if not isinstance(error, OSError | StorageError) or isinstance(error, TaskCancelled):
        return None
    if isinstance(error, LogLocked):
        from kafkafs.data_directory import in_use

        return fail(in_use(error))
    if isinstance(error, OSError) and error.filename == _STANDARD_OUTPUT:
        _print_nowhere()
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return fail("the working directory was deleted")
    reason = refusal_of(error)
    offset = getattr(error, "offset", None)
    where = getattr(error, "filename" if isinstance(error, OSError) else "path", None)
    path = None if where is None else as_typed(str(where))
    failed = _Failure(reason if path is None or str(where) in reason else f"{path}: {reason}")
    failed.problem = path, offset if isinstance(offset, int) else None, code_of(error)
    return failed


def code_of(error: Exception) -> str:
    """Return the name of an errno, or of an error of the storage: ENOENT, CORRUPT_RECORD."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, "EIO")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()


@contextmanager
def ended_in_order() -> Iterator[None]:
    """End a program without a traceback if it is cancelled, or the storage or the disk fails."""
    try:
        yield
    except KeyboardInterrupt:
        cancelled()
    except click.UsageError as error:
        if isinstance(error, _NO_ARGUMENTS):  # click prints the help
            raise
        raise wrong_usage(error) from None
    except BrokenPipeError:
        _unread()
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        from storage.errors import TaskCancelled

        if isinstance(error, TaskCancelled):
            cancelled()
        failed = failure(error)
        if failed is None:
            raise
        raise failed from None


@contextmanager
def failing_with(status: int) -> Iterator[None]:
    """Give errors the exit status that another program has for them."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        failed = failure(error)
        if failed is None:
            raise
        failed.exit_code = status  # type: ignore[misc]  # which click looks up in the instance
        raise failed from None


class _StandardError(io.FileIO):
    """Discards what standard error does not take: its disk is full, or its reader has ended.

    A command that only warns still does its work, and ends with the status of that work.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _StandardOutput(io.BufferedWriter):
    """Gives its errors the name of standard output as their path."""

    def write(self, data: Any) -> int:
        with naming_output():
            return super().write(data)

    def flush(self) -> None:
        with naming_output():
            super().flush()


@contextmanager
def naming_output() -> Iterator[None]:
    """Give errors of writing to standard output its name as their path."""
    try:
        yield
    except OSError as error:
        error.filename = _STANDARD_OUTPUT
        raise


def open_standard_streams() -> None:
    """Prepare the standard streams, before a program opens a file or prints.

    If a standard stream is closed, no other file gets its number. A program that prints to a
    closed standard output gets EBADF. Standard output has a buffer even under PYTHONUNBUFFERED:
    without a buffer, a write that a signal interrupts would write only a part.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stderr is sys.__stderr__:  # else the caller collects the errors in memory
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_StandardError(2, "w", closefd=False)),
            encoding=None if sys.stderr is None else sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
    before = sys.stdout
    if before is not sys.__stdout__:  # the caller collects the output in memory
        return
    sys.stdout = io.TextIOWrapper(
        _StandardOutput(io.FileIO(1, "w", closefd=False)),
        encoding=None if before is None else before.encoding,
        errors=None if before is None else before.errors,
        line_buffering=before is not None and before.line_buffering,
    )


def _print_nowhere() -> None:
    """Discard the buffer of standard output: a write at exit would fail, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def signalled_fd() -> int:
    """Return a descriptor that is readable after a signal for which there is a handler.

    A wait must include it: Python handles a signal that comes just before a wait only after the
    wait.
    """
    fd, written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(written)
    return fd


def cancelled(number: int = signal.SIGINT) -> NoReturn:
    """End a command that a signal has cancelled, with the status that a shell gives it."""
    warn("cancelled")
    sys.exit(128 + number)


def _unread() -> NoReturn:
    """End a command whose reader, such as `head`, has exited: silently, with SIGPIPE's status."""
    _print_nowhere()
    sys.exit(128 + signal.SIGPIPE)


def did_you_mean(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a suggestion to add to the error about an unknown name: the most similar name; or "".

    `cutoff`: how similar the names must be, from 0 to 1.
    """
    from difflib import get_close_matches

    near = get_close_matches(given, sorted(known), n=1, cutoff=cutoff)
    return f": did you mean {near[0]!r}?" if near else ""
