"""The seam does what it says on a real disk, also when calls come back short."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.byte_source import FileSource
from storage.errors import LogLocked
from storage.files import Files
from storage.openat import DirectoryFd
from tests.crash.disk import SimulatedDisk

files = Files()
CREATE = os.O_RDWR | os.O_CREAT


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On the disk: what is in memory has no RWF_NOWAIT."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = files.open(str(tmp_path / "file"), CREATE)
    yield descriptor
    files.close(descriptor)


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A low limit on descriptors, and all that it leaves taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 10
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    yield limit
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_write_and_read(fd: int) -> None:
    files.pwrite(fd, b"hello", 0)
    files.pwrite(fd, memoryview(b"world"), 7)
    assert files.pread(fd, 5, 0) == b"hello"
    assert files.pread(fd, 100, 5) == b"\0\0world"
    assert files.pread(fd, 4, 12) == b""
    assert files.size(fd) == 12
    buffer = bytearray(3)
    assert files.preadv(fd, buffer, 7) == 3
    assert buffer == b"wor"
    assert files.preadv(fd, memoryview(buffer)[:2], 11) == 1
    assert files.preadv(fd, buffer, 12) == 0
    files.ftruncate(fd, 3)
    files.fsync(fd)
    files.fdatasync(fd)
    assert files.pread(fd, 100, 0) == b"hel"


def test_short_calls_are_repeated(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_read, real_readv = os.pwrite, os.pread, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: real_write(f, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda f, size, at: real_read(f, min(size, 4), at))
    monkeypatch.setattr(
        os, "preadv", lambda f, buffers, at: real_readv(f, [memoryview(buffers[0])[:4]], at)
    )
    data = bytes(range(50))
    files.pwrite(fd, data, 0)
    files.pwrite(fd, memoryview(data), 50)
    assert files.pread(fd, 100, 0) == data + data
    assert files.pread(fd, 200, 0) == data + data
    buffer = bytearray(70)
    assert files.preadv(fd, buffer, 0) == 70
    assert buffer == (data + data)[:70]
    assert files.preadv(fd, buffer, 50) == 50


def test_reading_without_waiting(fd: int, tmp_path: Path) -> None:
    files.pwrite(fd, b"x" * 8192, 0)
    buffer = bytearray(100)
    count = files.preadv_nowait(fd, buffer, 0)
    # The page cache has the bytes that were just written.
    assert count == 100
    assert buffer == b"x" * 100
    files.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert files.preadv_nowait(fd, buffer, 0) in (None, 100)


def without_nowait(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have the system refuse RWF_NOWAIT."""
    preadv = os.preadv

    def refuse(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, position, flags)

    monkeypatch.setattr("storage.files._preadv", refuse)


def test_what_would_wait_is_none(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_nowait(monkeypatch, errno.EAGAIN)
    files.pwrite(fd, b"x", 0)
    assert files.preadv_nowait(fd, bytearray(1), 0) is None


def test_who_cannot_tell_is_read_at_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmpfs and overlayfs have no RWF_NOWAIT: "not now" for ever would be never."""
    without_nowait(monkeypatch, errno.EOPNOTSUPP)
    files.pwrite(fd, b"xyz", 0)
    buffer = bytearray(5)
    assert files.preadv_nowait(fd, buffer, 1) == 2
    assert buffer[:2] == b"yz"


def test_other_errors_of_reading_without_waiting_are_errors(tmp_path: Path) -> None:
    fd = files.open(str(tmp_path / "f"), os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.preadv_nowait(fd, bytearray(1), 0)
    finally:
        files.close(fd)


def test_names(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    files.mkdir(a, 0o755)
    assert files.listing(str(tmp_path)) == [("a", "directory")]
    files.close(files.open(os.path.join(a, "f"), CREATE))
    assert files.names(a) == ["f"]
    files.rename(a, b)
    files.sync_directory(str(tmp_path))
    assert files.exists(os.path.join(b, "f"))
    assert not files.exists(a)
    files.utime_ns(os.path.join(b, "f"), 1_700_000_000_123_456_789)
    assert files.file_stat(os.path.join(b, "f")).st_mtime_ns == 1_700_000_000_123_456_789
    files.unlink(os.path.join(b, "f"))
    files.rmdir(b)
    assert files.names(str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        files.names(a)


@pytest.mark.parametrize(("directory", "file"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
@pytest.mark.parametrize("beneath", [True, False])
def test_what_is_made_gives_nobody_more_than_its_directory(
    tmp_path: Path, directory: int, file: int, *, beneath: bool
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    made.chmod(directory)
    own = Files(str(tmp_path)) if beneath else files
    own.close(own.open(str(made / "new"), CREATE))
    own.replace_atomically(str(made / "replaced"), b"x")
    own.mkdir(str(made / "below"))
    assert [made.joinpath(name).stat().st_mode & 0o777 for name in ("new", "replaced")] == [
        file
    ] * 2
    assert (made / "below").stat().st_mode & 0o777 == directory
    own.chmod(str(made / "new"), 0o604)
    own.chmod(str(made / "below"), 0o711)
    assert (made / "new").stat().st_mode & 0o777 == 0o604
    assert (made / "below").stat().st_mode & 0o777 == 0o711
    # Whatever the directory says of its owner, he may read and write what he has made.
    made.chmod(0o055)
    own.close(own.open(str(made / "other"), CREATE))
    assert (made / "other").stat().st_mode & 0o777 == 0o644


def test_descriptors_close_on_exec(fd: int) -> None:
    assert not os.get_inheritable(fd)


def test_replace_atomically(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    files.replace_atomically(path, b"one")
    files.replace_atomically(path, b"two", sync=False)
    assert files.read_whole(path) == b"two"
    assert files.listing(str(tmp_path)) == [("f", "file")]
    with pytest.raises(FileNotFoundError):
        files.read_whole(str(tmp_path / "none"))


@pytest.mark.parametrize("seed", range(6))
def test_a_replacement_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    (tmp_path / "f").write_bytes(b"one")
    disk = SimulatedDisk(str(tmp_path))
    disk.replace_atomically(str(tmp_path / "f"), b"two")
    disk.materialise(seed)
    assert (tmp_path / "f").read_bytes() == b"two"


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(OSError, match="directory"):
        files.replace_atomically(str(target), b"data")
    assert files.listing(str(tmp_path)) == [("f", "directory")]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.replacing(str(tmp_path / "f")):
        raise KeyboardInterrupt
    assert files.names(str(tmp_path)) == []


def test_running_out_of_descriptors_names_the_limit(tmp_path: Path, few_descriptors: int) -> None:
    for use in (files.listing, files.sync_directory, files.read_whole, files.lock):
        with pytest.raises(
            OSError, match=rf"may open {few_descriptors} files \(RLIMIT_NOFILE\)"
        ) as e:
            use(str(tmp_path))
        assert e.value.errno == errno.EMFILE
        assert e.value.filename == str(tmp_path)


def test_the_systems_limit_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(DirectoryFd, "open", refuse)
    with pytest.raises(OSError, match=r"fs\.file-max") as e:
        files.open(str(tmp_path / "f"), os.O_RDONLY)
    assert e.value.errno == errno.ENFILE


def test_byte_source(fd: int) -> None:
    files.pwrite(fd, b"abcdef", 0)
    source = FileSource(files, fd, "name")
    assert (source.path, source.size()) == ("name", 6)
    assert source.read_at(2, 2) == b"cd"
    assert source.read_at(5, 10) == b"f"


TAKE = "import sys; from storage.files import Files; Files().lock(sys.argv[1])"
HOLD = TAKE + "; print('locked', flush=True); sys.stdin.read()"


def test_a_lock_is_refused_to_another_process_with_our_pid(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    fd = files.lock(path)
    taker = subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, text=True)
    assert f"in use by process {os.getpid()}" in taker.stderr
    files.unlock(fd)
    subprocess.run([sys.executable, "-c", TAKE, path], check=True)


def test_a_lock_of_another_process_is_refused_with_its_pid(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert files.locked_by(path) == holder.pid
        assert files.is_locked(path)
        with pytest.raises(LogLocked) as e:
            files.lock(path)
        assert e.value.pid == holder.pid
        assert holder.stdin is not None
        holder.stdin.close()
    files.unlock(files.lock(path))


def test_a_lock_is_refused_to_the_same_process_and_stays(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    fd = files.lock(path)
    with pytest.raises(LogLocked) as e:
        files.lock(path)
    assert e.value.pid == os.getpid()
    # The refusal must not have dropped it, as closing any descriptor of the file would.
    taker = subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, text=True)
    assert "LogLocked" in taker.stderr
    files.unlock(fd)


def test_asking_for_the_holder_leaves_our_own_lock(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    assert files.locked_by(path) is None
    fd = files.lock(path)
    assert files.locked_by(path) == os.getpid()
    assert not files.is_locked(path)
    done = subprocess.run([sys.executable, "-c", TAKE, path], capture_output=True, text=True)
    assert "in use by process" in done.stderr
    files.unlock(fd)
    assert files.locked_by(path) is None


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    files.unlock(files.lock(path))
    start = threading.Barrier(3)
    taken: list[int] = []

    def take() -> None:
        start.wait()
        try:
            taken.append(files.lock(path))
        except LogLocked:
            files.locked_by(path)
        start.wait()

    for _ in range(300):
        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        start.wait()
        for thread in threads:
            thread.join()
        (fd,) = taken
        taken.clear()
        files.unlock(fd)


def test_a_lock_file_that_is_removed_before_it_is_locked(tmp_path: Path) -> None:
    class Removed(Files):
        """Its holder goes, with the file, right after we have opened it."""

        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            fd = super().open(path, flags, mode)
            self.open = super().open  # type: ignore[method-assign]
            self.unlink(path)
            return fd

    path = str(tmp_path / ".lock")
    fd = Removed().lock(path)
    assert os.fstat(fd).st_ino == os.stat(path).st_ino
    files.unlock(fd)


def test_a_lock_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    old = files.lock(path)
    files.unlink(path)
    new = files.lock(path)
    assert os.fstat(new).st_ino == os.stat(path).st_ino
    files.unlock(old)
    files.unlock(new)
