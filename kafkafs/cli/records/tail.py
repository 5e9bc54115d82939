"""`kafkafs tail`: prints the last lines of files in a mount, and with `-f` what is appended.

tail(1) looks for new lines once a second. This command waits in epoll(7) instead (the reference,
"Waiting for more: poll"). An open file shows all later appends, even if older records of the
partition are deleted or compacted. So `-F` never starts again because of that. It looks for a name
again only if the topic was deleted or the mount has ended. If the name then leads to the same file,
the command continues at the same position.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shlex
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import LOGS, check_paths
from kafkafs.cli.common.ending import NOT_DONE, fail, naming_output, signalled_fd, warn
from kafkafs.cli.common.mount_files import (
    mounted_places,
    partitions_among,
    path_of,
    patiently,
    resolve_mounted,
)
from kafkafs.cli.common.mounts import mount_around
from kafkafs.cli.common.output import write_all
from kafkafs.cli.common.serving import has_gone, why_gone
from kafkafs.cli.common.words import FILE, Logs, Topic, words_argument
from kafkafs.mount_table import resolve
from storage.paths import ABOUT, GROUPS

_READ_BYTES = 1 << 20
#: The size of the first read that searches for the last lines.
_FIRST_BYTES = 8 << 10
#: Seconds between two attempts of `-F` to open a file that does not exist.
_LOOK_S = 1.0
# With O_NONBLOCK, opening a file of another kind, such as a FIFO, does not wait either.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
#: An extended attribute that only files of partitions have.
_MARK = "user.kafkafs.log_end"

#: The errors after which `-F` waits for a file, besides those of a mount that has ended.
_PASSING = (errno.ENOENT, errno.ESTALE)

# The directories of a topic that have a growing file for each partition.
_VIEWS = frozenset({".kv", ".jsonl", ".batches", ".follow"})
_COUNT = re.compile(r"([+-]?)([0-9]{1,18})([A-Za-z]*)")
_UNITS: dict[str, int] = {"": 1, "b": 512, "kB": 1000, "K": 1024} | {
    name + ending: base ** (power + 1)
    for power, name in enumerate("KMGTPE")
    for ending, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


class _Start:
    """The place to begin: the last `count` lines or bytes; with `from_start`, that line or byte."""

    def __init__(self, text: str, unit: str) -> None:
        found = _COUNT.fullmatch(text)
        if found is None or found[3] not in _UNITS:
            raise click.BadParameter(f"{text!r} is not a number of {unit}, such as 10, +1 or 4K")
        self.count = int(found[2]) * _UNITS[found[3]]
        self.from_start = found[1] == "+"
        self.in_lines = unit == "lines"

    def position(self, fd: int) -> int:
        """Return the position of the first byte to print of an open file. Errors: OSError."""
        size = os.fstat(fd).st_size
        if self.from_start:
            skipped = max(self.count - 1, 0)
            return _behind_lines(fd, skipped) if self.in_lines else skipped
        if self.in_lines:
            return _of_last_lines(fd, size, self.count)
        return max(size - self.count, 0)


class _File:
    """A file that is followed. `fd` is -1 while the file is not open."""

    def __init__(self, path: str, *, follow: bool) -> None:
        self.path = path
        self.fd = -1
        self._follow = follow
        self._inode = 0
        self._position = 0
        self.is_cut = False
        """Whether the last read has ended within a line."""
        self.told = ""
        """The last message about the file; empty after new bytes."""

    def open(self, start: _Start) -> None:
        """Open the file at `start`; if it was open before, open it at its last position.

        Errors: OSError, also if it is not a partition's file.
        """
        fd = patiently(lambda: os.open(self.path, _FLAGS))
        try:
            found = patiently(lambda: os.fstat(fd))
            self._check(fd, found)
            if found.st_ino != self._inode or found.st_size < self._position:
                # Like tail(1), read a new file of that name from its beginning.
                is_first = not self._inode
                self._position = patiently(lambda: start.position(fd)) if is_first else 0
            self._inode, self.fd = found.st_ino, fd
        finally:
            if self.fd != fd:
                os.close(fd)

    def _check(self, fd: int, found: os.stat_result) -> None:
        """Raise OSError for a directory, and for a file whose appends epoll would not report."""
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        try:
            os.getxattr(fd, _MARK)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
            instead = f"tail {'-f ' if self._follow else ''}{shlex.quote(self.path)}"
            reason = f"not a partition of a kafkafs mount; for other files use: {instead}"
            raise OSError(errno.ENODATA, reason) from None

    def read(self) -> bytes:
        """Return the next bytes, whole lines if possible; empty at the end. Errors: OSError."""
        data = patiently(partial(os.pread, self.fd, _READ_BYTES, self._position))
        self.is_cut = len(data) == _READ_BYTES and not data.endswith(b"\n")
        if self.is_cut:
            # If the rest of the last line is deleted, nothing of the line is printed.
            data = data[: data.rfind(b"\n") + 1] or data
        self._position += len(data)
        return data

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        # close(2) of a file of a dead mount returns an error, but closes the file.
        with suppress(OSError):
            os.close(fd)


@click.command(
    "tail",
    epilog=examples(
        "kafkafs tail mnt/orders/0",
        "kafkafs tail -f mnt orders:0 payments",
        "kafkafs tail -f -n +1 mnt/orders/.jsonl/0",
        "kafkafs tail -F -n 0 mnt/orders/* | grep --line-buffered error",
    ),
)
@click.option(
    "-n",
    "--lines",
    default="10",
    metavar="[+]N",
    help=(
        "Begin N lines before the end. With +N, begin at line N. N can have the suffixes of "
        "tail(1), such as K and MB."
    ),
)
@click.option(
    "-c",
    "--bytes",
    "size",
    metavar="[+]N",
    help="Begin N bytes before the end. With +N, begin at byte N.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines, as they are appended.")
@click.option(
    *("-F", "--retry", "by_name"),
    is_flag=True,
    help=(
        "Like -f, but also wait for files that do not exist yet, and for files whose topic was "
        "deleted or whose mount has ended. If the same file comes back, continue at the same place."
    ),
)
@click.option(
    *("-s", "--sleep-interval"),
    metavar="SECONDS",
    type=float,
    expose_value=False,
    help="No effect, because each append wakes the command.",
)
@click.option("-q", "--quiet", "--silent", is_flag=True, help="Never print file names.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Always print file names. By default, tail prints them only if there are several files.",
)
@click.option(
    "--pid", type=click.IntRange(min=1), help="With -f: end when the process with this id ends."
)
@words_argument(f"{LOGS}|FILE...", Logs(Topic(partition=True), first=FILE))
def command(
    lines: str,
    size: str | None,
    follow: bool,
    by_name: bool,
    quiet: bool,
    verbose: bool,
    pid: int | None,
    words: Sequence[str],
) -> None:
    """Print the last ten lines of partitions in a mount. With -f, also print new lines.

    For a topic, tail prints all partitions that exist now. FILE is a file of a partition in the
    mount, in any view: mnt/orders/0, mnt/orders/.jsonl/0, mnt/orders/0@-15m.

    kafkafs tail has the options of tail(1). With -f, kafkafs tail prints a new line at once,
    because each append wakes the command. tail(1) looks for new lines only once a second. If old
    records are deleted or compacted, kafkafs tail neither skips nor repeats a remaining line. For
    files outside of a mount, use tail(1).

    If lines are deleted before they are read, for example because the output waits, `tail -f` exits
    with status 3. `tail -F` begins again at the first line of the file: after a compaction, it
    repeats lines.

    Some files have an end: snapshots, and names such as 0@10..20. If all files have an end, `tail
    -f` exits with status 0 when it has reached all ends. If a topic is deleted or the file system
    is unmounted, `tail -f` exits with status 3, but `tail -F` waits until the topic or the mount is
    back.
    """
    follow = follow or by_name
    if pid is not None and not follow:
        raise click.UsageError("--pid requires -f")
    start = _Start(lines, "lines") if size is None else _Start(size, "bytes")
    try:
        check_paths(words)
    except click.ClickException as error:
        if not by_name:
            raise
        error.show()
    paths = [file for path in _paths_of(words, follow=follow) for file in _files_of(path)]
    has_headers = not quiet and (verbose or len(paths) > 1)
    tail = _Tail(start, follow=follow, by_name=by_name, has_headers=has_headers)
    sys.exit(tail.run([_File(path, follow=follow) for path in paths], pid))


def _paths_of(words: Sequence[str], *, follow: bool) -> list[str]:
    """Return the topics and partitions that the words name, as paths below a mount.

    Words that are paths stay as they are, also if the paths name something else.

    Errors: ClickException.
    """
    mounted, path = mount_around(words[0])
    address = resolve_mounted(words) if mounted is None or path == mounted.path else None
    if address is None:
        _refuse_unmounted(words, follow=follow)
        return list(words)
    return [path_of(str(address.mount), topic, number) for topic, number in mounted_places(address)]


def _files_of(path: str) -> list[str]:
    """Return the files of a topic's partitions. `path`: the topic, or one of its views.

    Any other path is the path of a file, and is returned unchanged.
    """
    mounted, place = mount_around(path)
    if mounted is None:
        return [path]
    topic, *view = os.path.relpath(place, mounted.path).split(os.sep)
    if topic in (os.curdir, ABOUT, GROUPS) or (view and (len(view) > 1 or view[0] not in _VIEWS)):
        return [path]
    numbers: list[int] = []
    with suppress(OSError):  # opening the path reports the error
        found = patiently(lambda: os.listdir(path))
        numbers = partitions_among(found)
    return [os.path.join(path, str(number)) for number in numbers] or [path]


def _refuse_unmounted(words: Sequence[str], *, follow: bool) -> None:
    """Raise click's error, with the line to type, for a data directory that is not mounted."""
    from kafkafs.data_directory import contents_or_mistake
    from storage.directory.contents import Contents

    data_dir, *places = words
    if contents_or_mistake(data_dir) is not Contents.PARTITIONS:
        return
    if follow:
        instead = f"To mount it: kafkafs mount {shlex.quote(data_dir)} MOUNT"
    else:
        last = [f"{place}@-10" for place in places or ["TOPIC"]]
        instead = f"To print the last records: {shlex.join(['kafkafs', 'cat', data_dir, *last])}"
    raise fail(f"{data_dir}: not mounted. {instead}")


class _Tail:
    """Prints files to standard output until all have ended."""

    def __init__(self, start: _Start, *, follow: bool, by_name: bool, has_headers: bool) -> None:
        self._start = start
        self._follow = follow
        self._by_name = by_name
        self._has_headers = has_headers
        self._shown: _File | None = None
        self._epoll = select.epoll()
        self._open: dict[int, _File] = {}
        # The files that `-F` waits for.
        self._missing: list[_File] = []
        self._status = 0

    def run(self, files: Sequence[_File], pid: int | None) -> int:
        """Print the files, and return the exit status. Errors: BrokenPipeError."""
        process = self._watch_process(pid)
        self._epoll.register(signalled_fd(), select.EPOLLIN)
        output = sys.stdout.fileno()
        # epoll reports that the reader of the output has exited. It accepts no plain file.
        with suppress(PermissionError):
            self._epoll.register(output, 0)
        for file in files:
            self._begin(file)
        look_at = time.monotonic() + _LOOK_S
        while (self._open or self._missing) and process != 0:
            left_s = max(look_at - time.monotonic(), 0) if self._missing else None
            for fd, events in self._epoll.poll(left_s):
                if fd == output:
                    raise BrokenPipeError
                if fd == process:
                    return self._status
                self._go_on(self._open[fd], events)
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                missing, self._missing = self._missing, []
                for file in missing:
                    self._begin(file)
        return self._status

    def _watch_process(self, pid: int | None) -> int | None:
        """Return a descriptor that reports the end of a process; 0: it has ended; None: no pid."""
        if pid is None:
            return None
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return 0
        except OSError as error:
            raise fail(f"--pid {pid}: {error.strerror}") from None
        self._epoll.register(fd, select.EPOLLIN)
        return fd

    def _begin(self, file: _File) -> None:
        """Open a file, and print its present contents."""
        try:
            file.open(self._start)
        except OSError as error:
            self._lose(file, error)
            return
        self._open[file.fd] = file
        if not file.told:
            self._name(file)
        if not self._print(file, to_end=True):
            return
        if self._follow:
            self._epoll.register(file.fd, select.EPOLLPRI)
        else:
            self._close(file)

    def _go_on(self, file: _File, events: int) -> None:
        """Print new bytes of a file, and close the file if it cannot grow any more."""
        has_ended = bool(events & (select.EPOLLHUP | select.EPOLLERR))
        if not self._print(file, to_end=has_ended) or not has_ended:
            return
        if events & select.EPOLLERR:
            self._lose(file, FileNotFoundError(errno.ENOENT, "deleted"))
        else:
            self._close(file)

    def _print(self, file: _File, *, to_end: bool) -> bool:
        """Print the next bytes of a file, or all to its end. Return False if a read has failed."""
        while True:
            try:
                data = file.read()
            except OSError as error:
                self._lose(file, error)
                return False
            if data:
                file.told = ""
                self._name(file)
                _write(data)
            if not data or not (to_end or file.is_cut):
                return True

    def _name(self, file: _File) -> None:
        """Print the name of the file, like tail(1), if the last output was of another file."""
        if self._has_headers and file is not self._shown:
            before = "" if self._shown is None else "\n"
            _write(f"{before}==> {file.path} <==\n".encode(errors="surrogateescape"))
        self._shown = file

    def _lose(self, file: _File, error: OSError) -> None:
        """Handle a file that cannot be read: wait for it to come back, or stop following it."""
        self._close(file)
        waits = self._by_name and (has_gone(error) or error.errno in _PASSING)
        what = error.strerror or str(error)
        if has_gone(error):
            what = why_gone(resolve(file.path))
        elif error.errno == errno.ESTALE:
            what = "the next lines are deleted"
        elif what == os.strerror(errno.ENOENT):
            what = "does not exist"
        what += "; waiting for it" if waits else ""
        if file.told != what:
            file.told = what
            warn(f"{file.path}: {what}")
        if waits:
            self._missing.append(file)
        else:
            self._status = NOT_DONE

    def _close(self, file: _File) -> None:
        if self._open.pop(file.fd, None) is not None:
            file.close()


def _write(data: bytes) -> None:
    """Write bytes to standard output. Errors: OSError, such as BrokenPipeError."""
    with naming_output():
        write_all(sys.stdout.fileno(), data)


def _behind_lines(fd: int, count: int) -> int:
    """Return the position after the first `count` lines, or the end."""
    position = 0
    while count and (data := os.pread(fd, _READ_BYTES, position)):
        found = data.count(b"\n")
        if found < count:
            count -= found
            position += len(data)
            continue
        at = 0
        for _ in range(count):
            at = data.index(b"\n", at) + 1
        return position + at
    return position


def _of_last_lines(fd: int, size: int, count: int) -> int:
    """Return the position of the last `count` lines of the first `size` bytes; 0 if fewer exist."""
    end, wanted = size, _FIRST_BYTES
    if not count:
        return size
    while end:
        begin = max(end - wanted, 0)
        data = os.pread(fd, end - begin, begin)
        at = len(data)
        if end == size and data.endswith(b"\n"):
            at -= 1
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            count -= 1
            if not count:
                return begin + at + 1
        end, wanted = begin, _READ_BYTES
    return 0
