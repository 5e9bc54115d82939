"""Make small file systems for one test, which may fill them, of each kind that can hold a log.

Root makes and mounts them; other users need sudo.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.waits import until

KINDS = ("ext4", "tmpfs", "overlay", "xfs", "btrfs")


def _run(*command: str) -> str:
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    done = subprocess.run([*as_root, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)} (as root): {done.stdout}{done.stderr}"
    return done.stdout.strip()


@contextlib.contextmanager
def file_system(kind: str, base: Path, size: int, inodes: int | None = None) -> Iterator[Path]:
    """Mount a new file system of `size` bytes; return its path.

    `inodes`: the number of inodes, for kinds that have such an option.
    """
    where = base / kind
    where.mkdir()
    with contextlib.ExitStack() as stack:
        if kind == "overlay":
            below = stack.enter_context(file_system("ext4", base, size, inodes))
            for name in ("lower", "upper", "work"):
                (below / name).mkdir()
            layers = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
            source, options = "overlay", ["-t", "overlay", "-o", layers]
        elif kind == "tmpfs":
            count = "" if inodes is None else f",nr_inodes={inodes}"
            source, options = "tmpfs", ["-t", "tmpfs", "-o", f"size={size}{count}"]
        else:
            source, options = stack.enter_context(_device(kind, base, size, inodes)), []
        _run("mount", *options, source, str(where))
        stack.callback(_run, "umount", "--lazy", str(where))
        _run("chown", f"{os.getuid()}:{os.getgid()}", str(where))
        yield where


@contextlib.contextmanager
def _device(kind: str, base: Path, size: int, inodes: int | None) -> Iterator[str]:
    """A loop device that holds a file system."""
    image = base / f"{kind}.image"
    with image.open("wb") as file:
        file.truncate(size)
    make = {
        # None of it is kept for root, who fills it.
        "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0", *(["-N", str(inodes)] if inodes else [])],
        "xfs": ["mkfs.xfs", "-q", "-f"],
        "btrfs": ["mkfs.btrfs", "-q", "-f"],
    }
    _run(*make[kind], str(image))
    device = _run("losetup", "--find", "--show", str(image))
    try:
        yield device
    finally:
        _run("losetup", "--detach", device)
        image.unlink()


def fill_bytes(directory: Path) -> Path:
    """Take every byte that is left, with one file."""
    path = directory / "filler"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        size = 1 << 20
        with contextlib.suppress(OSError):  # at the end of the room
            while True:
                os.posix_fallocate(fd, os.lseek(fd, 0, os.SEEK_END), size)
        os.lseek(fd, 0, os.SEEK_END)
        while size:
            try:
                os.write(fd, b"\1" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    finally:
        os.close(fd)
    return path


def fill_inodes(directory: Path) -> Path:
    """Take every inode that is left, with empty files in a directory of their own."""
    path = directory / "fillers"
    path.mkdir(exist_ok=True)
    number = 0
    while True:
        try:
            (path / str(number)).touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return path
        number += 1


class LossyDisk:
    """An ext4 file system whose device can lose its last writes.

    `remember` copies the device in the state that a power cut would leave now. `lose` mounts that
    copy in its place. Before that, all processes that use the file system have to end.
    """

    def __init__(self, base: Path, size: int) -> None:
        self._image, self._copy = base / "lossy.image", base / "lossy.copy"
        self.path = base / "lossy"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()
        _run("chown", f"{os.getuid()}:{os.getgid()}", str(self.path))

    def _mount(self) -> None:
        # While a test runs, the kernel keeps unsynced writes in memory.
        _run("mount", "-o", "loop,commit=300", str(self._image), str(self.path))

    def remember(self) -> None:
        _run("cp", "--sparse=always", str(self._image), str(self._copy))

    def lose(self) -> None:
        _run("umount", str(self.path))
        _run("mv", str(self._copy), str(self._image))
        self._mount()

    def close(self) -> None:
        _run("umount", "--lazy", str(self.path))


@contextlib.contextmanager
def lossy_disk(base: Path, size: int) -> Iterator[LossyDisk]:
    """See ``LossyDisk``."""
    with contextlib.closing(LossyDisk(base, size)) as disk:
        yield disk


def unmount(path: Path) -> None:
    """Unmount as a user does, with ``fusermount3 -u``, and repeat it while it is refused.

    A process that reads the links in /proc/PID/fd, as the commands of other tests do, holds each
    file for a moment.
    """
    until(lambda: not subprocess.run(["fusermount3", "-u", str(path)]).returncode)
