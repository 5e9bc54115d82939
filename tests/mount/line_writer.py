"""A process that appends numbered lines, in writes that do not keep to lines, and its reader.

    line_writer.py PATH NAME COUNT FLAGS

It opens PATH for appending (with the open flags FLAGS, a number, besides), says so by eight zero
bytes on standard output, waits for a byte on standard input, and writes COUNT lines (0: no end).
After each write() that has returned it puts the number of bytes written so far (eight bytes,
little-endian) on standard output. It ends with status 1 when a write() fails.

Lines and sizes are drawn from a generator that NAME seeds: `lines_of` gives the lines again.
"""

from __future__ import annotations

import itertools
import os
import random
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.waits import HANG_S

_ROOT = Path(__file__).parents[2]

_PATTERN = b"abcdefghijklmnopqrstuvwxyz0123456789" * 1000
_REPORT = 8
# Upper limits of a write's size, and how often each is taken.
_WRITES = (30, 150, 600, 4000, 300_000)
_WEIGHTS = (400, 400, 150, 40, 1)


def lines_of(name: str) -> Iterator[bytes]:
    """The lines of a writer, without end; without their newlines."""
    draw = random.Random(f"lines of {name}")
    for number in itertools.count():
        size = int(draw.expovariate(1 / 60))
        if number % 100 == 99:
            size = draw.randrange(30_000)
        start = number % 36
        yield b"%s %d %s" % (name.encode(), number, _PATTERN[start : start + size])


def writes_of(name: str, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut anywhere: parts of a line, a few lines, many lines."""
    draw = random.Random(f"writes of {name}")
    rest = bytearray()
    size = 1
    for line in lines:
        rest += line
        rest += b"\n"
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
            size = draw.randint(1, draw.choices(_WRITES, _WEIGHTS)[0])
            if draw.random() < 0.2:
                # A write that ends where a line ends.
                size = rest.find(b"\n") + 1 or size
    if rest:
        yield bytes(rest)


def main(path: str, name: str, count: str, flags: str) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | int(flags))
    os.write(1, bytes(_REPORT))
    os.read(0, 1)
    lines = itertools.islice(lines_of(name), int(count) or None)
    written = 0
    for data in writes_of(name, lines):
        try:
            written += os.write(fd, data)
        except OSError as error:
            print(f"{name}: {error.strerror}", file=sys.stderr)
            return 1
        os.write(1, written.to_bytes(_REPORT, "little"))
    os.close(fd)
    return 0


class Writers:
    """Such processes, and what they report. A context manager, which ends them."""

    def __init__(self, path: Path, names: Sequence[str], count: int, flags: Sequence[int]) -> None:
        self.written = dict.fromkeys(names, 0)
        self.reports = 0
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, flag in zip(names, flags, strict=True):
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(path), name, str(count), str(flag)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
            self._processes[name] = process
            assert process.stdout is not None
            self._selector.register(process.stdout, selectors.EVENT_READ, name)
        self._partial = dict.fromkeys(names, b"")
        self.wait(len(names))  # every one has opened the file

    def __enter__(self) -> Writers:
        return self

    def kill(self) -> None:
        """End them wherever they are; what they had reported counts."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.wait(None)

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()
        self._selector.close()

    def go(self) -> None:
        """Let all of them begin."""
        self.reports = 0
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write(b"!")

    def wait(self, reports: int | None) -> None:
        """Wait until `reports` reports have arrived; None: until all processes have ended."""
        while reports is None or self.reports < reports:
            if not self._selector.get_map():
                assert reports is None, f"ended after {self.reports} reports: {self.ends()}"
                return
            ready = self._selector.select(HANG_S)
            assert ready, f"no report behind {self.reports}"
            for key, _ in ready:
                self._take(key.data, os.read(key.fd, 1 << 16), key)

    def _take(self, name: str, data: bytes, key: selectors.SelectorKey) -> None:
        if not data:
            self._selector.unregister(key.fileobj)
            return
        data = self._partial[name] + data
        whole = len(data) // _REPORT * _REPORT
        self._partial[name] = data[whole:]
        if whole:
            self.reports += whole // _REPORT
            self.written[name] = int.from_bytes(data[whole - _REPORT : whole], "little")

    def ends(self) -> dict[str, tuple[int, str]]:
        """Exit status and last words of each, when all have ended."""
        ends = {}
        for name, process in self._processes.items():
            assert process.stderr is not None
            ends[name] = (process.wait(HANG_S), process.stderr.read().decode())
        return ends


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
