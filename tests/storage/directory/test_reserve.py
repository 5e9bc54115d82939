"""The reserve, and what is unlinked on a disk that is found full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Thread

import pytest

from storage import LogManager
from storage.directory.reserve import COUNT, Reserve
from storage.files import Files
from tests.crash.disk import SimulatedDisk
from tests.log_check import check
from tests.storage.logs import NOW_MS, append, opened, values
from tests.waits import HANG_S

SIZE = COUNT * 4096


class SmallDisk(Files):
    """A disk of ``blocks`` free blocks of 4096 bytes and ``inodes`` free inodes: names take an
    inode, bytes nothing but what is allocated.
    """

    def __init__(self, blocks: int, inodes: int = 1000) -> None:
        self.blocks = blocks
        self.inodes = inodes

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._take(inodes=1)
        return super().open(path, flags, mode)

    def allocate(self, fd: int, size: int) -> None:
        self._take(blocks=size // 4096)
        super().allocate(fd, size)

    def unlink(self, path: str) -> None:
        blocks = os.lstat(path).st_blocks // 8
        super().unlink(path)
        self.blocks += blocks
        self.inodes += 1

    def space(self, path: str) -> os.statvfs_result:
        real = list(super().space(path))
        real[:8] = [4096, 4096, 1 << 30, self.blocks, self.blocks, 1000, self.inodes, self.inodes]
        return os.statvfs_result(real)

    def _take(self, blocks: int = 0, inodes: int = 0) -> None:
        if self.blocks < blocks or self.inodes < inodes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.blocks -= blocks
        self.inodes -= inodes


def reserved(path: Path) -> tuple[SmallDisk, Reserve]:
    """A disk that the reserve has filled."""
    files = SmallDisk(COUNT)
    files.room = reserve = Reserve(files, str(path))
    assert reserve.keep(SIZE)
    return files, reserve


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_it_is_given_up_part_by_part_and_taken_again(tmp_path: Path) -> None:
    files = SmallDisk(COUNT + 3)
    reserve = Reserve(files, str(tmp_path))
    assert reserve.is_whole
    assert reserve.keep(SIZE)
    assert len(names(tmp_path)) == COUNT
    assert files.blocks == 3
    was_whole = []
    while reserve.give_up():
        was_whole.append(reserve.is_whole)
    assert was_whole == [False] * COUNT
    assert files.blocks == COUNT + 3
    files.blocks -= 4
    assert not reserve.restore()
    assert len(names(tmp_path)) == COUNT - 1
    files.blocks += 1
    assert reserve.restore()
    assert reserve.is_whole
    assert files.blocks == 0


def test_a_part_that_was_not_allocated_whole_is_made_anew(tmp_path: Path) -> None:
    files = SmallDisk(2 * COUNT)
    assert Reserve(files, str(tmp_path)).keep(SIZE)
    os.truncate(tmp_path / "kafkafs.reserve.3", 0)
    assert Reserve(files, str(tmp_path)).keep(SIZE)
    assert os.stat(tmp_path / "kafkafs.reserve.3").st_blocks == 8


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_part_that_is_no_file_is_made_anew(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = SmallDisk(2 * COUNT)
    part = tmp_path / "kafkafs.reserve.3"
    if kind == "directory":
        (part / "inside").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.symlink_to("elsewhere")
    with LogManager.open(str(tmp_path), files=files) as manager:
        assert manager.reserve.parts == 0
        assert manager.reserve.keep(SIZE)
        assert manager.reserve.parts == COUNT
        append(manager.create_topic("t", 1).partitions[0], b"1")
        for _ in range(COUNT):
            assert manager.reserve.give_up()
        append(manager.log("t", 0), b"2")
        assert values(manager.log("t", 0)) == [b"1", b"2"]
    assert part.is_file()
    assert os.path.lexists(f"{part}.bad")
    assert [str(part) in line for line in caplog.messages] == [True]


def test_a_small_file_system_has_a_small_one_and_none_is_none(tmp_path: Path) -> None:
    files = SmallDisk(1000)
    reserve = Reserve(files, str(tmp_path))
    assert not reserve.keep(1 << 60), "a 64th of it is more than there is"
    assert reserve.keep(0)
    assert names(tmp_path) == []
    with LogManager.open(str(tmp_path), files=files) as manager:
        manager.create_topic("t", 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_may_spend_it_goes_on_until_nothing_is_left(tmp_path: Path, number: int) -> None:
    files, reserve = reserved(tmp_path)
    tries: list[int] = []

    def operation() -> str:
        tries.append(files.blocks)
        if len(tries) <= 2:
            raise OSError(number, os.strerror(number))
        return "done"

    assert files.with_reserve(operation) == "done"
    assert tries == [0, 1, 2]
    with pytest.raises(OSError, match=os.strerror(number)):
        files.with_reserve(lambda: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    assert not reserve.parts


def test_a_rename_spends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory may need a block for the name."""
    files, reserve = reserved(tmp_path)
    (tmp_path / "f").touch()
    rename = os.rename

    def on_a_full_disk(source: str, target: str, **options: int) -> None:
        if files.blocks < 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", on_a_full_disk)
    files.rename(str(tmp_path / "f"), str(tmp_path / "g"))
    assert (tmp_path / "g").exists()
    assert not reserve.is_whole


def test_a_start_that_spends_it_reports_each_fault_once(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path))
    log = manager.create_topic("t").partitions[0]
    for value in (b"a", b"b"):
        append(log, value)
        log.roll(NOW_MS)
    log.flush()
    manager.checkpoint()
    append(log, b"c")
    manager.abandon()
    os.unlink(log.segments[0].log_path)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        faults = manager.faults
    disk = SimulatedDisk(str(tmp_path))
    disk.fail_next("open", errno.ENOSPC, suffix=".snapshot")
    manager = LogManager.open(str(tmp_path), files=disk)
    assert manager.reserve.parts < COUNT
    assert manager.faults == faults
    assert len(faults) == 1
    manager.close()


def test_another_error_spends_nothing(tmp_path: Path) -> None:
    files, reserve = reserved(tmp_path)

    def operation() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output"):
        files.with_reserve(operation)
    assert reserve.is_whole


def test_appends_wait_for_it_to_be_whole(tmp_path: Path) -> None:
    files = SmallDisk(COUNT)
    with opened(tmp_path, files) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        assert manager.reserve.keep(SIZE)
        append(log, b"before")
        assert manager.reserve.give_up()
        files.blocks = 0  # somebody else took it
        with pytest.raises(OSError, match="remaining space is reserved") as refused:
            append(log, b"refused")
        assert refused.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="remaining space is reserved"):
            manager.create_topic("u", 1)
        files.blocks = 1
        append(log, b"after")
        assert values(log) == [b"before", b"after"]


def test_a_part_that_cannot_be_taken_leaves_nothing(tmp_path: Path) -> None:
    class Taken(SmallDisk):
        """Somebody else takes the room between the look at it and the taking."""

        def allocate(self, fd: int, size: int) -> None:
            super().allocate(fd, 4096)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reserve = Reserve(Taken(2 * COUNT), str(tmp_path))
    assert not reserve.keep(2 * SIZE)
    assert names(tmp_path) == []


def test_line_indexes_go_when_it_is_used_up(tmp_path: Path) -> None:
    """They are made again from the log when somebody asks."""
    files = SmallDisk(COUNT)
    with opened(tmp_path, files) as manager:
        for topic in ("t", "u"):
            append(manager.create_topic(topic, 1).partitions[0], topic.encode())
        before = names(tmp_path / "t-0")
        assert manager.reserve.keep(SIZE)
        for name in ("t-0", "u-0"):
            for suffix in (".lines", ".kv.lines", ".words"):
                (tmp_path / name / f"{0:020}{suffix}").write_bytes(b"x")
        for _ in range(COUNT):
            assert manager.reserve.give_up()
        assert len(names(tmp_path / "t-0")) == len(before) + 3
        # A partition's at a time.
        assert manager.reserve.give_up()
        left = len(names(tmp_path / "t-0")) + len(names(tmp_path / "u-0"))
        assert left == 2 * len(before) + 3
        assert manager.reserve.give_up()
        assert names(tmp_path / "t-0") == before
        assert not manager.reserve.give_up()
        files.blocks = COUNT
        assert [values(manager.log(topic, 0)) for topic in ("t", "u")] == [[b"t"], [b"u"]]


def test_a_checkpoint_takes_it_again(tmp_path: Path) -> None:
    """Nobody appends or deletes meanwhile."""
    files = SmallDisk(COUNT)
    with opened(tmp_path, files) as manager:
        manager.create_topic("t", 1)
        assert manager.reserve.keep(SIZE)
        assert manager.reserve.give_up()
        assert not manager.reserve.is_whole
        manager.checkpoint()
        assert manager.reserve.is_whole


# -- a disk that is found full -------------------------------------------------------------------


@pytest.fixture
def left_full(tmp_path: Path) -> tuple[Path, SmallDisk]:
    """A directory that was not closed, with a topic of several segments."""
    manager = open_at(tmp_path, Files(str(tmp_path)))
    log = manager.create_topic("old", 1).partitions[0]
    for number in range(4):
        append(log, f"{number}".encode() * 5000)
        log.roll(NOW_MS)
    manager.abandon()
    return tmp_path, SmallDisk(0)


def open_at(path: Path, files: Files) -> LogManager:
    return LogManager.open(str(path), files=files, clock_ms=lambda: NOW_MS)


def test_the_error_of_a_full_disk_names_files_to_delete(left_full: tuple[Path, SmallDisk]) -> None:
    path, files = left_full
    files.inodes = -100
    with pytest.raises(OSError, match=r"Delete other files .* the oldest segments") as error:
        open_at(path, files)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert "\n" not in str(error.value)
    files.inodes = 100
    with open_at(path, files) as manager:
        assert check(manager) == []


def test_what_was_deleted_goes_before_a_reserve(left_full: tuple[Path, SmallDisk]) -> None:
    """After a kill, no reader needs the files that wait for deletion."""
    path, files = left_full
    (path / "kafkafs.reserve.0").write_bytes(b"")
    topic = path / f"gone-0.{'0' * 32}-delete"
    topic.mkdir()
    (topic / "00000000000000000000.log").write_bytes(bytes(4096))
    segment = path / "old-0" / "00000000000000000000.log.deleted"
    segment.write_bytes(bytes(4096))
    with open_at(path, files) as manager:
        assert not topic.exists()
        assert not segment.exists()
        assert manager.log("old", 0).log_start_offset == 0
    assert (path / "kafkafs.reserve.0").exists()


def test_what_was_removed_may_be_room_only_later(tmp_path: Path) -> None:
    """As on btrfs: when nothing is left each operation waits for it, once."""

    class Slow(Files):
        settled = 0

        def settle(self) -> None:
            super().settle()
            self.settled += 1

    files = Slow(str(tmp_path))
    files.room = reserve = Reserve(files, str(tmp_path))
    assert reserve.keep(COUNT * 4096)

    def full(until: int) -> str:
        if files.settled < until:
            raise OSError(errno.ENOSPC, "full")
        return "done"

    assert files.with_reserve(lambda: full(1)) == "done"
    assert not reserve.parts
    # Others have removed something meanwhile.
    assert files.with_reserve(lambda: full(2)) == "done"
    with pytest.raises(OSError, match="full"):
        files.with_reserve(lambda: full(4))
    assert files.settled == 3


def test_nobody_takes_it_back_while_it_is_needed(tmp_path: Path) -> None:
    """Another thread that appends would, before the operation that it was given up for."""
    files, reserve = reserved(tmp_path)
    attempts = []

    def operation() -> bool:
        attempts.append(reserve.restore())
        fd = files.open(str(tmp_path / "checkpoint"), os.O_WRONLY | os.O_CREAT)
        try:
            files.allocate(fd, 2 * 4096)
        except OSError:
            assert len(attempts) <= COUNT
            files.unlink(str(tmp_path / "checkpoint"))
            raise
        finally:
            files.close(fd)
        return True

    assert files.with_reserve(operation)
    assert attempts == [True, False, False]
    assert not reserve.restore()
    files.unlink(str(tmp_path / "checkpoint"))
    assert reserve.restore()


def test_an_append_does_not_wait_for_what_was_given_up(tmp_path: Path) -> None:
    """Whether the reserve is whole is known at once, however long the disk takes."""

    class Slow(Files):
        answers: list[bool] = []  # noqa: RUF012

        def settle(self) -> None:
            asking = Thread(target=lambda: self.answers.append(reserve.restore()), daemon=True)
            asking.start()
            asking.join(HANG_S)
            assert self.answers, "it waits"

    files = Slow(str(tmp_path))
    files.room = reserve = Reserve(files, str(tmp_path))
    assert reserve.keep(SIZE)

    def full() -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        files.with_reserve(full)
    assert files.answers == [False]
    reserve.keep(0)
    assert not reserve.give_up()
