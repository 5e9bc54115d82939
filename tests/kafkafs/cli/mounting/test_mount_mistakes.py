"""`kafkafs mount` of the wrong directory, or at the wrong one: it says so, and changes nothing."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from storage import LogManager
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.kafkafs.cli.mounting.test_mount import failed, misconfigured
from tests.storage.logs import append

pytestmark = pytest.mark.programs


def tree(*directories: Path) -> dict[Path, tuple[int, int]]:
    """Every file and directory below these, with its size and time."""
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime_ns)
        for directory in directories
        for path in sorted(directory.rglob("*"))
    }


def fill(data: Path) -> None:
    """Make it a data directory with a topic."""
    with LogManager.open(str(data)) as manager:
        append(manager.create_topic("orders").partitions[0], b"one", b"two")


def refused(place: Place, data: Path, path: Path, *options: str) -> str:
    """Why such a mount was refused; nothing has changed, also not with `-f`."""
    before = tree(place.data.parent)
    line = misconfigured(kafkafs("mount", data, path, *options))
    assert misconfigured(kafkafs("mount", "-f", data, path, *options)) == line
    assert tree(place.data.parent) == before
    return line


def test_swapped_arguments(place: Place) -> None:
    fill(place.data)
    assert refused(place, place.path, place.data) == (
        f"kafkafs: arguments swapped? {place.data} is a data directory. Try: "
        f"kafkafs mount {place.data} {place.path}"
    )
    (place.data / "orders-0").rename(place.data.parent / "orders-0")
    assert "is a data directory. Try: " in refused(place, place.path, place.data), "also without"


def test_a_mount_point_with_files(place: Place) -> None:
    (place.path / "file").write_text("mine\n")
    line = refused(place, place.data, place.path)
    assert line == (
        f"kafkafs: {place.path}: not empty; the mount would hide its files. "
        "To mount over them: -o nonempty"
    )
    place.mount("-o", "nonempty")
    assert os.listdir(place.path) == []
    place.umount()
    assert (place.path / "file").read_text() == "mine\n"


def test_a_mount_point_that_is_the_top_of_a_new_file_system(place: Place) -> None:
    (place.path / "lost+found").mkdir()
    (place.data / "lost+found").mkdir()
    done = kafkafs("mount", place.data, place.path)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "lost+found: not a partition directory" in done.stderr, "no broker starts with it"


@pytest.mark.parametrize("options", [(), ("-o", "ro")], ids=["rw", "ro"])
def test_a_data_directory_with_files_of_others(place: Place, options: tuple[str, ...]) -> None:
    (place.data / "notes").write_text("mine\n")
    # Other programs give directories such names, too.
    (place.data / "openjdk-17").mkdir()
    (place.data / "openjdk-17" / "release").touch()
    (place.data / "python-3").symlink_to("openjdk-17")
    line = refused(place, place.data, place.path, *options)
    assert line.startswith(f"kafkafs: {place.data}: has files, but none of Kafka or kafkafs.")
    assert line.endswith(" To use it anyway: -o create") == (not options)


def test_create_puts_a_log_beside_files_of_others(place: Place) -> None:
    (place.data / "notes").write_text("mine\n")
    place.mount("-o", "create")
    place.umount()
    assert (place.data / "notes").read_text() == "mine\n"
    place.mount()


def test_a_data_directory_that_is_missing(place: Place) -> None:
    missing = place.data.parent / "miss ing"
    assert refused(place, missing, place.path) == (
        f"kafkafs: {missing}: no such data directory. "
        f"To create it: mkdir '{missing}', or mount with -o create"
    )
    place.data = missing
    place.mount("-o", "create")
    assert stat.S_IMODE(missing.stat().st_mode) == 0o750
    place.umount()
    place.mount("-o", "create")


def test_create_makes_no_directories_above(place: Place) -> None:
    missing = place.data.parent / "missing" / "data"
    line = refused(place, missing, place.path, "-o", "create")
    reason = f"No such file or directory: mkdir -p {missing}"
    assert line == f"kafkafs: {missing}: cannot create it: {reason}"


def test_create_is_not_for_read_only_mounts(place: Place) -> None:
    done = kafkafs("mount", place.data, place.path, "-o", "ro,create")
    assert done.returncode == 2
    assert "create" in done.stderr


def test_a_file_in_the_place_of_a_directory(place: Place) -> None:
    file = place.data.parent / "file"
    file.touch()
    expected = f"kafkafs: {file}: a file, not a data directory"
    assert refused(place, file, place.path) == expected
    assert refused(place, file, place.path, "-o", "create") == expected
    assert refused(place, place.data, file).startswith(f"kafkafs: {file}: not a directory")


def test_one_partitions_directory(place: Place) -> None:
    fill(place.data)
    for options in ((), ("-o", "create")):
        line = refused(place, place.data / "orders-0", place.path, *options)
        assert line.endswith(f"not a data directory. Try: kafkafs mount {place.data} {place.path}")


def test_links_to_swapped_directories(place: Place) -> None:
    fill(place.data)
    links = [place.data.parent / name for name in ("a", "b")]
    links[0].symlink_to(place.path)
    links[1].symlink_to(place.data)
    assert "is a data directory. Try: " in refused(place, links[0], links[1])
    loop = place.data.parent / "loop"
    loop.symlink_to(loop)
    assert "symbolic links" in refused(place, loop, place.path)
    assert "symbolic links" in refused(place, place.data, loop)
    (place.data / "link").symlink_to(place.path)
    assert "must not contain each other" in refused(place, place.data, place.data / "orders-0")


def test_a_mount_in_the_place_of_the_data_directory(place: Place) -> None:
    fill(place.data)
    other = place.data.parent / "other"
    other.mkdir()
    place.mount()
    for given, where in (
        (place.path, "a kafkafs mount"),
        (place.path / "orders", "inside a kafkafs mount"),
    ):
        line = misconfigured(kafkafs("mount", given, other))
        assert line == (
            f"kafkafs: {given}: {where} of {place.data}. Try: kafkafs mount {place.data} {other}"
        )
    assert os.listdir(other) == []


def test_a_dead_mount_of_another_program(place: Place) -> None:
    """… in the place of either: the line says how to clear it."""
    dead = place.data.parent / "dead"
    dead.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(
        ["mount", "-i", "-t", "fuse", "-o", options, "dead", dead], pass_fds=[fd], check=True
    )
    os.close(fd)
    try:
        for data, path in ((dead, place.path), (place.data, dead)):
            line = failed(kafkafs("mount", data, path))
            assert line.startswith(f"kafkafs: {dead}: ")
            assert "fusermount3 -u" in line
    finally:
        subprocess.run(["umount", dead], check=True)


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "meta.properties",
        "kafkafs.properties",
        "recovery-point-offset-checkpoint",
        ".kafka_cleanshutdown",
        "__cluster_metadata-0",
        "orders-0",
    ],
)
def test_what_is_kafkas(place: Place, name: str) -> None:
    """… also with a file of others beside it."""
    (place.data / "notes").touch()
    if name.endswith("-0"):
        (place.data / name).mkdir()
    else:
        (place.data / name).touch()
    place.mount("-o", "ro")


@pytest.mark.parametrize("given", ["", "/"], ids=["new", "slash"])
def test_create_makes_nothing_inside_a_mount(place: Place, given: str) -> None:
    """… where mkdir would make a topic."""
    fill(place.data)
    other = place.data.parent / "other"
    other.mkdir()
    place.mount()
    line = misconfigured(kafkafs("mount", "-o", "create", f"{place.path}/new{given}", other))
    assert f"new: inside a kafkafs mount of {place.data}" in line
    assert os.listdir(place.path) == ["orders"]


@pytest.mark.parametrize("options", [(), ("-o", "nonempty")], ids=["plain", "nonempty"])
def test_a_mount_inside_a_mount(place: Place, options: tuple[str, ...]) -> None:
    """… would be detached whenever names are looked up again."""
    fill(place.data)
    other = place.data.parent / "other"
    other.mkdir()
    place.mount()
    line = misconfigured(kafkafs("mount", other, place.path / "orders", *options))
    assert line == (
        f"kafkafs: {place.path / 'orders'}: inside the kafkafs mount {place.path}, "
        "which would detach the new mount; give another directory"
    )


def test_an_empty_mount_point(place: Place) -> None:
    line = failed(kafkafs("mount", place.data, ""), os.EX_CONFIG)
    assert line == "kafkafs: MOUNT is empty (is a shell variable unset?)"
