"""Writes batches to standard output, to a command (`--exec`), or to a dead-letter topic."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

from kafkafs.cli.common.ending import fail, naming_output, signalled_fd
from kafkafs.cli.common.output import write_all
from kafkafs.cli.records.consume.reader import Batch

#: The first and the longest pause between two checks of the pipe, in seconds.
_FIRST_S, _MOST_S = 0.0002, 0.02


class Output:
    """Accepts batches. A batch is handled once `put` has returned 0."""

    fd = -1
    """Reports by POLLERR that its reader has exited."""

    def put(self, batch: Batch) -> int:
        """Write a batch. Return the exit status of a failed command, else 0. Errors: OSError."""
        raise NotImplementedError

    def stop(self, number: int) -> None:
        """Handle a second signal: stop waiting."""


class StandardOutput(Output):
    """Writes to standard output.

    With `is_taken`, a batch is handled once the reader has taken all of it from the pipe. If the
    reader then fails, nobody notices: the reader gets each record at most once.
    """

    def __init__(self, *, is_taken: bool) -> None:
        self.fd = sys.stdout.fileno()
        mode = os.fstat(self.fd).st_mode
        self._ask = 0
        if is_taken and stat.S_ISFIFO(mode):
            self._ask = termios.FIONREAD
        elif is_taken and stat.S_ISSOCK(mode):
            self._ask = termios.TIOCOUTQ
        self._errors = select.poll()
        self._errors.register(self.fd, 0)

    def put(self, batch: Batch) -> int:
        with naming_output():
            write_all(self.fd, batch.data)
        if self._ask and batch.data:
            self._wait()
        return 0

    def _wait(self) -> None:
        """Wait until the reader has taken all bytes. Errors: BrokenPipeError if it exits first."""
        pause_s = _FIRST_S
        while True:
            unread = struct.unpack("i", fcntl.ioctl(self.fd, self._ask, bytes(4)))[0]
            # Check this last: if the reader still exists, it has taken all that is not in the pipe.
            if self._errors.poll(0):
                raise BrokenPipeError
            if not unread:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _MOST_S)

    def stop(self, number: int) -> None:
        raise SystemExit(128 + number)


class Command(Output):
    """Runs a shell command for each batch, with the lines of the batch on standard input.

    The batch is a file in memory. So a command never sees only a part of it, even if the consumer
    is killed. Ctrl-C in a terminal does not reach the command, so that the command can finish.
    """

    def __init__(self, command: str, descriptors: int | None = None) -> None:
        """`descriptors`: the command's limit, if this process has raised its own limit."""
        limit = "" if descriptors is None else f"ulimit -S -n {descriptors}; "
        self._command = limit + command
        self._process: subprocess.Popen[bytes] | None = None
        # While a process starts, `_stopped_by` stores a signal, so that no command survives it.
        self._is_starting = False
        self._stopped_by = 0

    def put(self, batch: Batch) -> int:
        environment = {
            **os.environ,
            "KAFKAFS_TOPIC": batch.partition.topic,
            "KAFKAFS_PARTITION": str(batch.partition.number),
            "KAFKAFS_FIRST_OFFSET": str(batch.first),
            "KAFKAFS_LAST_OFFSET": str(batch.last),
        }
        fd = os.memfd_create("batch")
        try:
            write_all(fd, batch.data)
            os.lseek(fd, 0, os.SEEK_SET)
            self._start(fd, environment)
        finally:
            os.close(fd)
        assert self._process is not None
        status = self._process.wait()
        self._process = None
        return 128 - status if status < 0 else status

    def _start(self, fd: int, environment: dict[str, str]) -> None:
        self._is_starting = True
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self._command], stdin=fd, env=environment, process_group=0
        )
        self._is_starting = False
        if self._stopped_by:
            self.stop(self._stopped_by)

    def stop(self, number: int) -> None:
        process = self._process
        if self._is_starting:
            self._stopped_by = number
        elif process is None:
            raise SystemExit(128 + number)
        else:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


class Interrupts:
    """Handles SIGINT and SIGTERM. After the first signal, the consumer finishes the batch.

    The second signal stops the batch, too. `number`: the first signal; 0: none. After it, `fd` is
    readable.
    """

    def __init__(self, output: Output) -> None:
        self.number = 0
        self._output = output
        self.fd = signalled_fd()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        if self.number:
            self._output.stop(number)
        else:
            self.number = number


class DeadLetters:
    """Appends the batches that a command has refused to a topic of the same mount.

    Keys, values, headers and timestamps stay the same. Headers of each record are added that say
    where it comes from, and why it was refused: kafkafs.topic, kafkafs.partition, kafkafs.offset,
    kafkafs.group, kafkafs.reason.
    """

    def __init__(self, mount: str, topic: str, group: str) -> None:
        """Check that the topic exists. Errors: ClickException."""
        self._path = os.path.join(mount, topic, ".jsonl", "append")
        self._group = group
        if not os.path.exists(self._path):
            path = os.path.join(mount, topic)
            create = f"mkdir {shlex.quote(path)}"
            raise fail(f"{path}: the dead-letter topic does not exist. To create it: {create}")

    def put(self, batch: Batch, lines: bytes, reason: str) -> None:
        """Append the records of a batch, and wait until they are on the disk.

        `lines`: the records in the format of `.jsonl`.

        Errors: OSError.
        """
        text = "".join(self._line(line, batch, reason) for line in lines.splitlines())
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            write_all(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def _line(self, line: bytes, batch: Batch, reason: str) -> str:
        record = json.loads(line)
        said = {
            "kafkafs.topic": batch.partition.topic,
            "kafkafs.partition": str(batch.partition.number),
            "kafkafs.offset": str(record["offset"]),
            "kafkafs.group": self._group,
            "kafkafs.reason": reason,
        }
        record["headers"] += [[name, value] for name, value in said.items() if value]
        return json.dumps(record, ensure_ascii=False) + "\n"
