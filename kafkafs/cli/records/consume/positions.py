"""Stores the positions of a consumer, and finds the partitions that it may read.

Positions        stores nothing: the consumer begins at the same record each time
FilePositions    stores them in a file of the user (`--positions`), for one consumer at a time
GroupPositions   stores them in `.groups/G` of the mount. Several consumers share the partitions:
                 the daemon grants them through an open file (`.claims`)
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kafkafs.cli.common.ending import fail, warn
from kafkafs.cli.common.output import write_all
from kafkafs.cli.records.consume.sources import Directories, Partition, Sources
from storage.paths import CONSUMER_OFFSETS

_COLUMNS = ("topic", "partition", "position", "committed", "topic_id")
_READ_BYTES = 1 << 16


class Positions:
    """See the module. `fd` reports a change of the share by POLLPRI; -1: there are no shares."""

    fd = -1
    keeps = False
    """Whether `commit` stores positions."""
    is_waiting = False
    """Whether there are partitions that this consumer gets once others return them."""
    asked_back: Collection[Partition] = ()
    """Partitions that this consumer must return, also if it never began them. `granted` sets it."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    def granted(self) -> Iterable[Partition]:
        """Return the partitions to consume now. Errors: OSError."""
        return self._directories.present()

    def position(self, partition: Partition) -> int | None:
        """Return the committed position; None: there is none. Errors: OSError."""
        return None

    def begin(self, partition: Partition, point: str) -> int | None:
        """Commit the start `point`, a word of `N@POINT`, so that others continue from there.

        Return the position; None: it is not stored. Errors: OSError.
        """
        return None

    def commit(self, partition: Partition, position: int) -> None:
        """Store the position of a partition. Errors: OSError."""

    def give_back(self, partition: Partition) -> None:
        """Return a partition, so that another consumer gets it. Errors: OSError."""

    def close(self) -> None:
        """Return all partitions, so that others get them."""


class FilePositions(Positions):
    """Stores a line with the names of `_COLUMNS`, and then a line for each partition.

    Each commit replaces the file by a new one. The file is locked while it is in use. If a topic is
    deleted and created again, the new topic has no position.
    """

    keeps = True

    def __init__(self, directories: Directories, path: str) -> None:
        """Lock the file, and read it. Errors: ClickException, OSError."""
        super().__init__(directories)
        self._path = os.path.realpath(path)
        self._lock = self._locked()
        self._lines: dict[Partition, tuple[int, int]] = {}
        self._parse(Path(path).read_text(errors="replace").splitlines())

    def _locked(self) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise fail(f"{self._path}: in use by another consumer") from None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            os.close(fd)

    def _parse(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if number == 1 and words == list(_COLUMNS):
                continue
            try:
                topic, partition, position, committed, *rest = words
                key = Partition(topic, int(partition), rest[0] if rest else "")
                self._lines[key] = int(position), int(committed)
            except ValueError:
                names = " ".join(_COLUMNS)
                raise fail(
                    f"{self._path}: line {number} does not have the columns {names}"
                ) from None

    def position(self, partition: Partition) -> int | None:
        found = self._lines.get(partition)
        return None if found is None else found[0]

    def commit(self, partition: Partition, position: int) -> None:
        self._lines[partition] = position, time.time_ns() // 1_000_000
        rows = [
            _COLUMNS,
            *(
                (key.topic, key.number, *facts, key.topic_id)
                for key, facts in sorted(self._lines.items())
            ),
        ]
        text = "".join(" ".join(map(str, row)).rstrip() + "\n" for row in rows)
        made = f"{self._path}.new"
        mode = os.fstat(self._lock).st_mode & 0o777
        fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Lock the new file before others see it, so that no other process locks it first.
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.fchmod(fd, mode)
            write_all(fd, text.encode())
            os.fsync(fd)
            os.replace(made, self._path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._lock)
        self._lock = fd

    def close(self) -> None:
        os.close(self._lock)


class GroupPositions(Positions):
    """See the module."""

    keeps = True

    def __init__(self, directories: Directories, sources: Sources, group: str) -> None:
        """Create the group if it does not exist, and claim the partitions.

        Errors: ClickException, OSError.
        """
        super().__init__(directories)
        from kafkafs.tree.files.group_names import file_name

        self._path = Path(sources.mount, ".groups", file_name(group))
        self._topic = Path(sources.mount, CONSUMER_OFFSETS)
        self._is_first_commit = not self._topic.exists()
        try:
            with suppress(FileExistsError):
                os.mkdir(self._path)
            self.fd = os.open(self._path / ".claims", os.O_RDWR)
        except OSError as error:
            why = f"{self._path}: {error.strerror} (see {sources.mount}/.kafkafs/log)"
            if error.errno == errno.EROFS:
                why = (
                    f"{sources.mount}: read-only, so no offsets can be committed. To keep them in "
                    f"a file: --positions FILE instead of -g {shlex.quote(group)}"
                )
            raise fail(why) from None
        lines = [
            f"claim {topic}" if numbers is None else f"claim {topic} {number}"
            for topic, numbers in sources.topics.items()
            for number in (sorted(numbers) if numbers is not None else (0,))
        ]
        self._write(*lines)

    def _write(self, *lines: str) -> None:
        write_all(self.fd, "".join(f"{line}\n" for line in lines).encode())

    def granted(self) -> Iterable[Partition]:
        text = b""
        while data := os.pread(self.fd, _READ_BYTES, len(text)):
            text += data
        states: dict[Partition, str] = {}
        for line in text.decode().splitlines():
            topic, number, state, *rest = line.split(" ")
            states[Partition(topic, int(number), rest[0] if rest else "")] = state
        self.is_waiting = "wait" in states.values()
        self.asked_back = [partition for partition, state in states.items() if state == "return"]
        return [partition for partition, state in states.items() if state == "held"]

    def position(self, partition: Partition) -> int | None:
        found = self._facts(partition)["position"]
        return None if found == "none" else int(found)

    def _facts(self, partition: Partition) -> dict[str, str]:
        text = (self._path / partition.topic / str(partition.number)).read_text()
        return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)

    def begin(self, partition: Partition, point: str) -> int | None:
        self._commit(partition, "earliest" if point == "start" else point)
        return self.position(partition)

    def commit(self, partition: Partition, position: int) -> None:
        self._commit(partition, str(position))

    def _commit(self, partition: Partition, position: str) -> None:
        """Commit a position.

        If the log no longer has the offset, commit `earliest`. If it does not have the offset yet,
        commit `latest`.
        """
        command = f"commit {partition.topic} {partition.number}"
        try:
            self._write(f"{command} {position}")
        except OSError as error:
            if error.errno != errno.EINVAL or not position.isdecimal():
                raise
            facts = self._facts(partition)
            is_gone = int(position) < int(facts["log_start"])
            if not is_gone and int(position) <= int(facts["log_end"]):
                raise
            self._write(f"{command} {'earliest' if is_gone else 'latest'}")
        if self._is_first_commit:
            self._is_first_commit = False
            self._name_topic()

    def _name_topic(self) -> None:
        """Print a line about the directories that the first commit has created."""
        with suppress(OSError):
            count = sum(name.isdecimal() for name in os.listdir(self._topic))
            directories = f"{CONSUMER_OFFSETS}-0 to -{count - 1}"
            warn(
                f"the data directory has new directories {directories} for committed "
                f"offsets; a Kafka broker needs all {count}"
            )

    def give_back(self, partition: Partition) -> None:
        self._write(f"return {partition.topic} {partition.number}")

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.fd)
