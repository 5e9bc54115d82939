"""Nothing that a stranger puts into a data directory is followed, waited for or written over."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import UnusableFile
from storage.files import LARGEST_WHOLE, Files, is_temporary
from storage.openat import Opener, by_component, by_openat2

SECRET = b"only for root\n"


class Place:
    """A data directory, and beside it what nobody may reach through it."""

    def __init__(self, base: Path) -> None:
        self.data = base / "data"
        self.inside = self.data / "orders-0"
        self.outside = base / "outside"
        self.secret = self.outside / "secret"
        for directory in (self.data, self.inside, self.outside):
            directory.mkdir()
        self.secret.write_bytes(SECRET)
        self.files = Files(str(self.data))

    def untouched(self) -> bool:
        return self.secret.read_bytes() == SECRET and os.listdir(self.outside) == ["secret"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert made.untouched()


# -- the two ways to open ----------------------------------------------------------------------


@pytest.fixture
def directory(place: Place) -> Iterator[int]:
    fd = os.open(place.data, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


BOTH = pytest.mark.parametrize("opener", [by_openat2, by_component])


@BOTH
def test_what_is_there_is_opened(opener: Opener, place: Place, directory: int) -> None:
    (place.inside / "f").write_bytes(b"x")
    for relative, flags in (("orders-0/f", os.O_RDONLY), (".", os.O_RDONLY | os.O_DIRECTORY)):
        os.close(opener(directory, relative, flags, 0))
    fd = opener(directory, "orders-0/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    os.close(fd)


@BOTH
@pytest.mark.parametrize(
    ("relative", "number"),
    [
        ("link", errno.ELOOP),
        ("links/secret", errno.ELOOP),
        ("inner/f", errno.ELOOP),
        ("loop", errno.ELOOP),
        ("loop/f", errno.ELOOP),
        ("..", errno.EXDEV),
        ("../outside/secret", errno.EXDEV),
        ("orders-0/../../outside/secret", errno.EXDEV),
        ("file/f", errno.ENOTDIR),
        ("orders-0/missing", errno.ENOENT),
        ("missing/f", errno.ENOENT),
    ],
)
def test_nothing_leads_out(
    opener: Opener, place: Place, directory: int, relative: str, number: int
) -> None:
    (place.data / "link").symlink_to(place.secret)
    (place.data / "links").symlink_to(place.outside)
    (place.data / "inner").symlink_to("orders-0")
    (place.data / "loop").symlink_to("loop")
    (place.data / "file").touch()
    (place.inside / "f").touch()
    before = set(os.listdir("/proc/self/fd"))
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH | os.O_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY):
        with pytest.raises(OSError) as e:  # noqa: PT011 - its number is what counts
            opener(directory, relative, flags, 0)
        assert e.value.errno == number
    # Some that earlier tests have left may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before


@BOTH
def test_a_link_is_not_made_into_a_file(opener: Opener, place: Place, directory: int) -> None:
    (place.data / "link").symlink_to(place.outside / "new")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        opener(directory, "link", os.O_WRONLY | os.O_CREAT, 0o600)


# -- what is in the place of a file ------------------------------------------------------------


def hostile(path: Path, kind: str, place: Place) -> None:
    """Put something that is no regular file there."""
    if kind == "link":
        path.symlink_to(place.secret)
    elif kind == "looping link":
        path.symlink_to(path.name)
    elif kind == "dangling link":
        path.symlink_to(place.outside / "new")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "directory":
        path.mkdir()
    else:
        assert kind == "large"
        with path.open("wb") as file:
            file.truncate(LARGEST_WHOLE + 1)


KINDS = ("link", "looping link", "dangling link", "pipe", "socket", "directory")


@pytest.mark.parametrize("where", ["data", "inside"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC]
)
def test_only_regular_files_are_opened(place: Place, kind: str, where: str, flags: int) -> None:
    path = (place.data if where == "data" else place.inside) / "f"
    hostile(path, kind, place)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UnusableFile) as e:
        place.files.open(str(path), flags)
    assert (e.value.errno, e.value.filename) == (errno.EIO, str(path))
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # that of the data directory


@pytest.mark.parametrize("kind", [*KINDS, "large"])
def test_no_other_is_read_whole(place: Place, kind: str) -> None:
    hostile(place.inside / "f", kind, place)
    with pytest.raises(UnusableFile):
        place.files.read_whole(str(place.inside / "f"))


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_what_is_replaced_goes_itself(place: Place, kind: str) -> None:
    path = place.inside / "f"
    hostile(path, kind, place)
    place.files.replace_atomically(str(path), b"new")
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"


def test_a_link_is_renamed_and_removed_itself(place: Place) -> None:
    hostile(place.inside / "f", "link", place)
    place.files.rename(str(place.inside / "f"), str(place.inside / "g"))
    assert (place.inside / "g").is_symlink()
    place.files.utime_ns(str(place.inside / "g"), 1)
    assert place.secret.stat().st_mtime_ns > 1
    place.files.unlink(str(place.inside / "g"))
    hostile(place.inside / "g", "dangling link", place)
    place.files.chown(str(place.inside / "g"), os.getuid(), os.getgid())
    place.files.unlink(str(place.inside / "g"))
    assert os.listdir(place.inside) == []


def test_what_lies_behind_a_link_is_not_touched(place: Place) -> None:
    (place.data / "linked-0").symlink_to(place.outside)
    inside = str(place.data / "linked-0")
    secret, new = f"{inside}/secret", f"{inside}/new"
    files = place.files
    for act in (
        lambda: files.unlink(secret),
        lambda: files.rename(secret, new),
        lambda: files.rename(secret, str(place.data / "taken")),
        lambda: files.mkdir(new),
        lambda: files.rmdir(new),
        lambda: files.utime_ns(secret, 1),
        lambda: files.read_whole(secret),
        lambda: files.replace_atomically(new, b""),
        lambda: files.lock(secret),
        lambda: files.listing(inside),
        lambda: files.sync_directory(inside),
    ):
        with pytest.raises(UnusableFile):
            act()
    assert not files.is_directory(inside)
    assert sorted(os.listdir(place.data)) == ["linked-0", "orders-0"]


def test_a_listing_tells_what_is_a_file(place: Place) -> None:
    for number, kind in enumerate(KINDS):
        hostile(place.inside / str(number), kind, place)
    (place.inside / "linked").symlink_to(place.outside)
    (place.inside / "f").touch()
    listing = dict(place.files.listing(str(place.inside)))
    assert listing.pop("f") == "file"
    assert listing.pop("5") == "directory"
    assert set(listing.values()) == {"other"}


# -- the data directory itself -----------------------------------------------------------------


def test_the_data_directory_may_be_a_link(place: Place, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(place.data)
    files = Files(str(link))
    (place.inside / "f").write_bytes(b"x")
    assert files.is_directory(str(link))
    assert files.read_whole(f"{link}/orders-0/f") == b"x"
    files.replace_atomically(f"{link}/g", b"y")
    assert (place.data / "g").read_bytes() == b"y"
    assert files.listing(str(link)) == Files().listing(str(place.data))
    files.sync_directory(str(link))


def test_elsewhere_no_component_may_be_one(place: Place, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place.outside)
    for files in (Files(), place.files):
        assert files.read_whole(str(place.secret)) == SECRET
        with pytest.raises(UnusableFile):
            files.read_whole(str(tmp_path / "link/secret"))


def test_another_directory_that_takes_the_name_is_another(place: Place, tmp_path: Path) -> None:
    (place.data / "f").write_bytes(b"mine")
    assert place.files.read_whole(str(place.data / "f")) == b"mine"
    place.data.rename(tmp_path / "moved")
    place.data.mkdir()
    (place.data / "f").write_bytes(b"another's")
    assert place.files.read_whole(str(place.data / "f")) == b"mine"
    place.files.replace_atomically(str(place.data / "g"), b"")
    assert (tmp_path / "moved/g").exists()
    assert os.listdir(place.data) == ["f"]


def test_facts_of_a_directory_that_was_moved(place: Place, tmp_path: Path) -> None:
    """All of them: another directory may have its path by now, or none."""
    files, data = place.files, str(place.data)
    file = str(place.inside / "f")
    files.replace_atomically(file, b"")

    def facts() -> tuple[object, ...]:
        files.settle()
        space = files.space(data)
        return files.identity(file), files.mount_id(str(place.inside)), space.f_fsid

    before = facts()
    place.data.rename(tmp_path / "moved")
    assert facts() == before
    place.inside.mkdir(parents=True)
    (place.inside / "f").write_bytes(b"")
    assert facts() == before


def test_a_process_that_is_handed_one_opens_it_itself(place: Place) -> None:
    (place.data / "f").write_bytes(b"x")
    place.files.read_whole(str(place.data / "f"))
    again = pickle.loads(pickle.dumps(place.files))
    assert again.read_whole(str(place.data / "f")) == b"x"


# -- temporary names ---------------------------------------------------------------------------


def test_nobody_can_guess_a_temporary_name(place: Place) -> None:
    names: list[str] = []

    class Watching(Files):
        def rename(self, source: str, target: str) -> None:
            names.append(os.path.basename(source))
            super().rename(source, target)

    path = str(place.inside / "leader-epoch-checkpoint")
    (place.inside / "leader-epoch-checkpoint.tmp").symlink_to(place.secret)
    for _ in range(2):
        Watching(str(place.data)).replace_atomically(path, b"0\n0\n")
    assert len(set(names)) == 2
    assert all(map(is_temporary, names))
    assert not any(map(is_temporary, ("leader-epoch-checkpoint.tmp", "f", ".tmp")))
