"""A disk that can lose power: ``Files`` over a real directory, with a memory of what is durable.

Every operation is done for real below ``root``, so that maps and reads see it, and followed in
the model of ``disk_model``.  Syncs are only noted, and take no time.

- ``crash_at=n``: the n-th mutating operation (from 1) and everything after it raises ``Crashed``.
- ``kill()``: the process died.  Everything is kept.
- ``materialise(seed)``: the power failed.  The directory is rewritten as ``disk_model`` has it.
  Seed 0 loses all that was not synced, seed 1 keeps all, others are drawn.
- ``fail_next`` and ``delay`` make single operations fail or wait.  If an fsync fails, a later one
  does not write the same bytes either, as with Linux.

A crash is no ``Exception``: the code under test never handles it.  Reopen with the disk that
`after_stop` returns, or with a new one, for which all that is there is durable.

Not modelled: times, modes, owners, renames between directories; what lies outside of ``root``.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading

from storage import descriptors
from storage.files import Files, Kind
from storage.segment.segment import Segment
from tests.crash.disk_model import PAGE, DirectoryModel, Draw, FileModel, Model

_NOT_NORMAL = {"", os.curdir, os.pardir}
"""A path that has one of these parts is not normal."""


class Crashed(BaseException):
    """The simulated machine stopped."""


@dataclasses.dataclass(slots=True, eq=False)
class _Injection:
    operation: str
    suffix: str

    def concerns(self, operation: str, path: str) -> bool:
        return self.operation == operation and path.endswith(self.suffix)


@dataclasses.dataclass(slots=True, eq=False)
class _Fault(_Injection):
    error: int
    partial: int
    times: int


@dataclasses.dataclass(slots=True, eq=False)
class _Delay(_Injection):
    release: threading.Event
    reached: threading.Event


class SimulatedDisk(Files):
    """See the module.  ``root`` is an existing directory; what it holds counts as durable."""

    def __init__(self, root: str, *, crash_at: int | None = None) -> None:
        self.root = os.path.abspath(root)
        self.crashed = False
        self.operations = 0
        """Mutating operations so far: the values of ``crash_at`` worth trying."""
        self._crash_at = crash_at
        self._mutex = threading.RLock()
        self._tree = self._read_directory(self.root)
        self._open: dict[int, tuple[str, Model | None]] = {}
        self._locks: set[int] = set()
        self._faults: list[_Fault] = []
        self._delays: list[_Delay] = []

    def _read_directory(self, path: str) -> DirectoryModel:
        model = DirectoryModel()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    model.entries[entry.name] = self._read_directory(entry.path)
                else:
                    with open(entry.path, "rb") as file:
                        model.entries[entry.name] = FileModel(file.read())
        model.commit()
        return model

    # -- control -------------------------------------------------------------------------------

    def crash_after(self, count: int) -> None:
        """From the ``count``-th mutating operation from now on (from 1) everything raises."""
        self._crash_at = self.operations + count

    def fail_next(
        self, operation: str, error: int, *, suffix: str = "", partial: int = 0, times: int = 1
    ) -> None:
        """Let the next ``times`` calls of a method, on paths that end so, fail with ``error``.

        With -1, all calls fail until `heal`. A ``pwrite`` writes ``partial`` bytes first.
        """
        self._faults.append(_Fault(operation, suffix, error, partial, times))

    def heal(self) -> None:
        """From now on, no call fails."""
        self._faults.clear()

    def delay(
        self, operation: str, release: threading.Event, *, suffix: str = ""
    ) -> threading.Event:
        """Hold the next call of a method until ``release``; the event returned says it waits.

        What is written after a held fsync began is not covered by it.
        """
        reached = threading.Event()
        self._delays.append(_Delay(operation, suffix, release, reached))
        return reached

    def kill(self) -> None:
        """The process is dead: nothing is lost, its descriptors and locks are released."""
        self.crashed = True
        # A log of another test that needs descriptors must not ask the dead process for its own.
        for holder in list(descriptors._holders):
            if isinstance(holder, Segment) and holder.disk is self:
                holder.close_descriptors()
        with self._mutex:
            for fd in list(self._open):
                if fd in self._locks:
                    super().unlock(fd)
                else:
                    os.close(fd)
            self._open.clear()
            self._locks.clear()

    def after_stop(self, seed: int | None = None) -> SimulatedDisk:
        """Kill the process or, with a seed, cut the power; return the disk of the next process.

        After a kill, what the dead process has not synced still is not.
        """
        if seed is not None:
            self.materialise(seed)
            return SimulatedDisk(self.root)
        self.kill()
        disk = SimulatedDisk(self.root)
        disk._tree = self._tree
        return disk

    def materialise(self, seed: int) -> None:
        """The power has failed: rewrite ``root`` as it may be found, by ``seed``."""
        self.kill()
        draw = Draw(seed)
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        self._materialise(self.root, self._tree, draw)

    def _materialise(self, path: str, directory: DirectoryModel, draw: Draw) -> None:
        for name, model in sorted(directory.survive(draw).items(), key=lambda entry: entry[0]):
            child = os.path.join(path, name)
            if isinstance(model, DirectoryModel):
                os.mkdir(child)
                self._materialise(child, model, draw)
            else:
                length, pages = model.survive(draw)
                with open(child, "wb") as file:
                    file.truncate(length)
                    for number, page in pages.items():
                        file.seek(number * PAGE)
                        file.write(page)

    # -- bookkeeping ---------------------------------------------------------------------------

    def _enter(self, operation: str, path: str) -> _Fault | None:
        """Before any operation; the fault of a ``pwrite`` that writes a part before it fails."""
        self._alive()
        if not self._delays and not self._faults:
            return None
        with self._mutex:
            delay = next((d for d in self._delays if d.concerns(operation, path)), None)
            if delay is not None:
                self._delays.remove(delay)
            fault = next((f for f in self._faults if f.concerns(operation, path)), None)
            if fault is not None:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
        if delay is not None:
            delay.reached.set()
            delay.release.wait()
            self._alive()
        if fault is None:
            return None
        if fault.partial and operation == "pwrite":
            return fault
        raise OSError(fault.error, os.strerror(fault.error), path)

    def _alive(self) -> None:
        if self.crashed:
            raise Crashed

    def _mutate(self, what: str, path: str) -> None:
        """Count a mutating operation, and crash if that is the one."""
        self.operations += 1
        if self._crash_at is not None and self.operations >= self._crash_at:
            self.crashed = True
        self._alive()

    def _relative(self, path: str) -> str:
        """Return `os.path.relpath(path, self.root)`."""
        name = path.removeprefix(self.root + os.sep)
        # Most paths are normal already; `relpath` takes long.
        if name != path and _NOT_NORMAL.isdisjoint(name.split(os.sep)):
            return name
        return os.path.relpath(path, self.root)

    def _locate(self, path: str) -> tuple[DirectoryModel, str] | None:
        """The directory that holds a name; None outside of ``root``, and for it."""
        parts = self._relative(path).split(os.sep)
        if parts[0] in (os.pardir, os.curdir):
            return None
        directory = self._tree
        for part in parts[:-1]:
            child = directory.entries[part]
            assert isinstance(child, DirectoryModel), path
            directory = child
        return directory, parts[-1]

    def _path(self, fd: int) -> str:
        return self._open[fd][0] if fd in self._open else ""

    def _model(self, fd: int) -> FileModel:
        model = self._open[fd][1]
        assert isinstance(model, FileModel)
        return model

    # -- bytes ---------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._enter("open", path)
        with self._mutex:
            exists = os.path.exists(path)
            creates = bool(flags & os.O_CREAT) and not exists
            if creates or flags & os.O_TRUNC:
                self._mutate("create" if creates else "open", path)
            fd = super().open(path, flags, mode)
            place = self._locate(path)
            model: Model | None = None
            if place is not None:
                directory, name = place
                if creates:
                    directory.change((name, FileModel(b"")))
                model = directory.entries[name]
                if flags & os.O_TRUNC and isinstance(model, FileModel):
                    model.truncate(0)
            self._open[fd] = (path, model)
            return fd

    def close(self, fd: int) -> None:
        with self._mutex:
            # After a crash the descriptors have gone with the process.
            if self._open.pop(fd, None) is not None:
                self._locks.discard(fd)
                super().close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        path = self._path(fd)
        fault = self._enter("pwrite", path)
        with self._mutex:
            self._mutate(f"pwrite {position}+{len(data)}", path)
            written = bytes(data if fault is None else data[: fault.partial])
            super().pwrite(fd, written, position)
            self._model(fd).write(position, written)
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error), path)

    def ftruncate(self, fd: int, size: int) -> None:
        path = self._path(fd)
        self._enter("ftruncate", path)
        with self._mutex:
            self._mutate(f"ftruncate {size}", path)
            super().ftruncate(fd, size)
            self._model(fd).truncate(size)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, operation: str, fd: int) -> None:
        path = self._path(fd)
        with self._mutex:
            self._alive()
            model = self._model(fd)
            event = model.event
        try:
            self._enter(operation, path)
        except OSError:
            with self._mutex:
                model.forget(event)
            raise
        with self._mutex:
            self._mutate(operation, path)
            model.commit(event)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter("pread", self._path(fd))
        return super().pread(fd, size, position)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._enter("preadv", self._path(fd))
        return super().preadv(fd, buffer, position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        self._enter("preadv_nowait", self._path(fd))
        return super().preadv_nowait(fd, buffer, position)

    def size(self, fd: int) -> int:
        self._enter("size", self._path(fd))
        return super().size(fd)

    # -- names ---------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        self._enter("exists", path)
        return super().exists(path)

    def file_stat(self, path: str) -> os.stat_result:
        self._enter("file_stat", path)
        return super().file_stat(path)

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        self._enter("listing", path)
        return super().listing(path)

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", source)
        with self._mutex:
            self._mutate(f"rename {os.path.basename(target)} from", source)
            super().rename(source, target)
            old, new = self._locate(source), self._locate(target)
            if old is not None and new is not None and old != new:
                assert old[0] is new[0], "renames between directories are not modelled"
                directory, name = old
                directory.change((new[1], directory.entries[name]), (name, None))

    def link(self, source: str, target: str) -> None:
        self._enter("link", target)
        with self._mutex:
            self._mutate("link", target)
            super().link(source, target)
            old, new = self._locate(source), self._locate(target)
            if old is not None and new is not None:
                new[0].change((new[1], old[0].entries[old[1]]))

    def unlink(self, path: str) -> None:
        self._remove("unlink", path)

    def rmdir(self, path: str) -> None:
        self._remove("rmdir", path)

    def _remove(self, operation: str, path: str) -> None:
        self._enter(operation, path)
        with self._mutex:
            if not os.path.lexists(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._mutate(operation, path)
            if operation == "unlink":
                super().unlink(path)
            else:
                super().rmdir(path)
            place = self._locate(path)
            if place is not None:
                place[0].change((place[1], None))

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self._enter("mkdir", path)
        with self._mutex:
            self._mutate("mkdir", path)
            super().mkdir(path, mode)
            place = self._locate(path)
            if place is not None:
                place[0].change((place[1], DirectoryModel()))

    def chmod(self, path: str, mode: int) -> None:
        self._enter("chmod", path)
        with self._mutex:
            self._mutate("chmod", path)
            super().chmod(path, mode)

    def utime_ns(self, path: str, ns: int) -> None:
        self._enter("utime_ns", path)
        with self._mutex:
            self._mutate("utime_ns", path)
            super().utime_ns(path, ns)

    def sync_directory(self, path: str) -> None:
        self._enter("sync_directory", path)
        with self._mutex:
            self._mutate("sync_directory", path)
            place = self._locate(path)
            model: Model | None = self._tree
            if place is not None:
                model = place[0].entries[place[1]]
            assert isinstance(model, DirectoryModel), path
            model.commit()

    # -- the lock ------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        self._enter("lock", path)
        fd = super().lock(path)
        self._locks.add(fd)
        return fd

    def unlock(self, fd: int) -> None:
        if fd in self._open:
            super().unlock(fd)
