"""The handlers, through a real mount of a tree that does what is rare in the real one."""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkafs.fuse.answers import Entries
from kafkafs.fuse.operations import SYNC_THREADS
from kafkafs.tree.errnos import ERRNO, errno_of
from kafkafs.tree.inodes import FIRST_KEEP_S, KEEP_S, Attributes, Node
from storage import errors
from tests.kafkafs.fuse.conftest import serving
from tests.kafkafs.fuse.odd_tree import MANY


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("odd")
    data = place / "data"
    data.mkdir()
    with serving(place, "tests.kafkafs.fuse.odd_tree", str(data)) as mount:
        yield mount.path
        mount.unmounted()


@contextmanager
def refused_with(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number says which
        yield
    assert errno.errorcode[raised.value.errno or 0] == errno.errorcode[number]


def log_of(odd: Path) -> str:
    return (odd / "log").read_text()


# -- errors --------------------------------------------------------------------------------------


def test_every_storage_error_has_an_errno() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    direct = {kind for kind in kinds if errors.StorageError in (kind, *kind.__bases__)}
    assert direct == set(ERRNO)


def test_an_error_without_an_entry_counts_as_its_base() -> None:
    class New(errors.RecordTooLarge):
        pass

    assert errno_of(New(1, 2)) == errno.EMSGSIZE
    assert errno_of(errors.OutOfOrderSequence("gap", 7)) == errno.EINVAL
    assert errno_of(OSError(errno.ENOSPC, "full")) == errno.ENOSPC
    assert errno_of(BlockingIOError()) == errno.EAGAIN
    assert errno_of(OSError("without a number")) is None
    assert errno_of(KeyError(1)) is None


def test_reasons_are_the_messages() -> None:
    assert errors.reason_of(OSError(errno.ENOSPC, "full", "/x")) == "full (/x)"
    assert errors.reason_of(OSError(errno.ENOSPC, "full")) == "full"
    assert errors.reason_of(errors.CorruptRecord("bad", position=3)) == "bad (position 3)"


def test_errors_reach_the_caller(odd: Path) -> None:
    numbers = {
        "CorruptRecord": errno.EIO,
        "OffsetOutOfRange": errno.ERANGE,
        "RecordTooLarge": errno.EMSGSIZE,
        "InvalidRecord": errno.EINVAL,
        "TopicExists": errno.EEXIST,
        "ReadOnlyLog": errno.EROFS,
        "SegmentGone": errno.ESTALE,
        "LogClosed": errno.ESHUTDOWN,
        str(errno.ENOSPC): errno.ENOSPC,
    }
    for kind, number in numbers.items():
        with refused_with(number):
            (odd / f"error-{kind}").read_bytes()


def test_errors_have_a_line_with_the_file_everyday_ones_have_none(odd: Path) -> None:
    before = log_of(odd).splitlines()
    for name, number in (
        ("error-CorruptRecord", errno.EIO),
        ("error-28", errno.ENOSPC),
        ("error-OffsetOutOfRange", errno.ERANGE),
        ("missing", errno.ENOENT),
    ):
        with refused_with(number):
            (odd / name).read_bytes()
    added = [line.partition(" ")[2] for line in log_of(odd).splitlines() if line not in before]
    assert [line.partition(" … ")[0] for line in added] == [
        "read of error-CorruptRecord: the message",
        "read of error-28: No space left on device",
        "read of error-OffsetOutOfRange refused: "
        "offset 5 is outside the log, which runs from 1 to 3",
    ]


def test_what_nobody_foresaw_is_eio_with_a_traceback_and_the_daemon_lives_on(odd: Path) -> None:
    with refused_with(errno.EIO):
        (odd / "bug").read_bytes()
    descriptor = os.open(odd / "bug", os.O_WRONLY)
    try:
        with refused_with(errno.EIO):
            os.write(descriptor, b"x")
        with refused_with(errno.EIO):
            os.fsync(descriptor)
        select.select([], [descriptor], [])
    finally:
        with refused_with(errno.EIO):
            os.close(descriptor)
    with refused_with(errno.EIO):
        os.getxattr(odd / "bug", "user.x")
    with refused_with(errno.EIO):
        os.listdir(odd / "unlisted")
    log = log_of(odd)
    for what in ("read", "write", "fsync", "poll", "flush", "release"):
        assert f"{what} of bug: unexpected error, answered with EIO\n    Traceback" in log
    assert "readdir of unlisted: unexpected error, answered with EIO\n    Traceback" in log
    assert "RuntimeError: nobody foresaw this" in log


def test_the_first_attributes_of_a_file_are_kept_for_a_moment_only() -> None:
    """A notice that overtakes them finds no inode to drop them of."""
    attributes = Attributes(5, stat.S_IFREG | 0o644, 9, 0, 1, 0, 0, 0, KEEP_S, KEEP_S)
    node = Node(5)
    assert Entries().first_of(node, attributes).attr_timeout == FIRST_KEEP_S
    node.lookups = 1
    assert Entries().first_of(node, attributes).attr_timeout == KEEP_S


# -- waiting -------------------------------------------------------------------------------------


def test_a_read_that_must_wait_is_repeated_in_a_thread(odd: Path) -> None:
    with open(odd / "file", "ab", buffering=0) as file:
        file.write(b"hello\n")
    assert (odd / "file").read_bytes().endswith(b"hello\n")


def test_attributes_that_must_wait(odd: Path) -> None:
    assert (odd / "sized").stat().st_size == 77


def test_attributes_that_a_thread_has_told_are_not_kept(odd: Path) -> None:
    """Attributes from a worker thread may be outdated when they are sent.

    So the kernel must not cache them.
    """
    with open(odd / "restless", "rb", buffering=0) as file:
        sizes = [os.fstat(file.fileno()).st_size for _ in range(5)]
    assert sizes == list(range(sizes[0], sizes[0] + 5))


def test_changes_of_the_tree_run_one_at_a_time_in_a_worker_thread(odd: Path) -> None:
    threads = [threading.Thread(target=(odd / f"new{n}").mkdir) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"new{n}" for n in range(8)} <= set(os.listdir(odd))
    (odd / "thread").write_bytes(b"x")
    assert (odd / "thread").read_bytes() == b"worker\n"


def test_fsync_and_synchronous_writes(odd: Path) -> None:
    for flags, synced in ((0, 0), (os.O_SYNC, 1), (os.O_DSYNC, 2)):
        with os.fdopen(os.open(odd / "syncs", os.O_WRONLY | flags), "wb", buffering=0) as file:
            file.write(b"x")
            assert (odd / "syncs").read_bytes() == b"synced\n" * synced
    with open(odd / "syncs", "ab", buffering=0) as file:
        os.fsync(file)
        os.fdatasync(file)
    assert (odd / "syncs").read_bytes() == b"synced\n" * 4


def test_a_flush_that_fails_is_ended(odd: Path) -> None:
    with open(odd / "unsynced", "ab", buffering=0) as file, refused_with(errno.EIO):
        os.fsync(file)
    assert (odd / "unsynced").read_bytes() == b"synced\n"


def test_fsyncs_run_at_once(odd: Path) -> None:
    def sync(number: int) -> None:
        with open(odd / f"together-{number}", "ab", buffering=0) as file:
            os.fsync(file)

    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        list(pool.map(sync, range(SYNC_THREADS)))


# -- directories ---------------------------------------------------------------------------------


def test_a_directory_of_thousands_of_entries_that_must_wait(odd: Path) -> None:
    names = {f"{number:05}" for number in range(MANY)}
    shown = {name for name in names if not name.endswith("777")}
    listed = os.listdir(odd / "many")
    assert len(listed) == len(shown)
    assert set(listed) == shown
    with os.scandir(odd / "many") as entries:
        assert all(entry.is_file() for entry in entries)


def test_two_who_list_at_once_see_everything(odd: Path) -> None:
    with os.scandir(odd / "many") as one, os.scandir(odd / "many") as other:
        pairs = list(zip(one, other, strict=True))
    assert all(first.name == second.name for first, second in pairs)


def test_the_kernel_forgets_what_it_was_given(odd: Path) -> None:
    # The table asserts that nothing is forgotten more often than it was handed out.
    for _ in range(3):
        os.listdir(odd / "many")
        for name in ("00001", "00002", "04999"):
            os.stat(odd / "many" / name)
        Path("/proc/sys/vm/drop_caches").write_text("2\n")
    os.stat(odd / "file")
    assert "forget" not in log_of(odd)


# -- entries that the kernel must forget ---------------------------------------------------------


def test_an_entry_that_changed_is_forgotten_before_the_write_is_answered(odd: Path) -> None:
    seen = set()
    for _ in range(50):
        seen.add(os.stat(odd / "swap").st_ino)
        with open(odd / "swap", "ab", buffering=0) as file:
            file.write(b"x")
        assert os.stat(odd / "swap").st_ino not in seen


# -- what there is not ---------------------------------------------------------------------------


def test_what_this_file_system_does_not_do_is_said_explicitly(odd: Path) -> None:
    file = odd / "file"
    refused: list[Callable[[], object]] = [
        lambda: os.link(file, odd / "other"),
        lambda: os.symlink("x", odd / "other"),
        lambda: os.rename(file, odd / "other"),
        lambda: os.mkfifo(odd / "other"),
        lambda: os.truncate(file, 0),
    ]
    for call in refused:
        with refused_with(errno.EPERM):
            call()
    with refused_with(errno.EOPNOTSUPP):
        os.setxattr(file, "user.x", b"")
    with refused_with(errno.EOPNOTSUPP):
        os.removexattr(file, "user.x")


def test_attributes_and_figures(odd: Path) -> None:
    status = os.stat(odd / "sized")
    assert stat.S_ISREG(status.st_mode)
    assert status.st_nlink == 1
    figures, disk = os.statvfs(odd), os.statvfs(odd.parent / "data")
    assert (figures.f_blocks, figures.f_frsize) == (disk.f_blocks, disk.f_frsize)
    assert os.getxattr(odd, "user.kafkafs.pid").isdigit()
    with refused_with(errno.ENODATA):
        os.getxattr(odd / "file", "user.missing")
