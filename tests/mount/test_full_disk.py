"""A disk that is full to the last byte, or to the last inode: every way out of it works."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.file_systems import file_system, fill_bytes, fill_inodes
from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, check_data, fails
from tests.waits import until

MIB = 1 << 20
SETTINGS = """\
log.initial.task.delay.ms=86400000
log.segment.delete.delay.ms=0
"""
LINE_BYTES = {"btrfs": 40_000}
"""Of a line, by kind of file system: btrfs takes for itself some of what a deletion frees."""
LINES = 400
RESERVE_FILES = 8

Filler = Callable[[Path], Path]
Way = tuple[str, Filler]
WAYS = [("ext4", fill_bytes), ("tmpfs", fill_inodes)]
MORE_WAYS = [
    # A deletion needs an inode there.
    ("overlay", fill_inodes),
    # These make inodes from bytes.
    ("xfs", fill_bytes),
    ("btrfs", fill_bytes),
]


@pytest.fixture(
    params=[*WAYS, *(pytest.param(way, marks=pytest.mark.soak) for way in MORE_WAYS)],
    ids=[f"{kind}-{fill.__name__}" for kind, fill in [*WAYS, *MORE_WAYS]],
)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def disk(way: Way, tmp_path: Path) -> Iterator[Path]:
    kind, _ = way
    # The smallest that mkfs.xfs makes, and room for three topics on btrfs.
    size = {"xfs": 300, "btrfs": 256}.get(kind, 64) * MIB
    with file_system(kind, tmp_path, size, 400) as made:
        yield made


@pytest.fixture
def fill(way: Way, mount: Mount) -> Filler:
    """Fill a disk, except the reserve of the mount on it.

    While the disk fills up, a duty of the daemon may give part of the reserve up, which the filler
    takes. Then the daemon takes its reserve back, as an append does, and the disk is filled again.
    """

    def is_whole_again() -> bool:
        with contextlib.suppress(OSError):
            orders = mount / "orders/0"
            append(orders, line(mount, len(numbers(orders))))
        return len(reserve_of(mount)) == RESERVE_FILES

    def filled(disk: Path) -> Path:
        had = reserve_of(mount)
        while True:
            filler = way[1](disk)
            if reserve_of(mount) == had:
                return filler
            remove(filler)
            until(is_whole_again)

    return filled


@pytest.fixture
def mount(disk: Path, tmp_path: Path) -> Iterator[Mount]:
    """A mount whose data lie on the disk; topics `orders` and `other` have something to lose."""
    (disk / "data").mkdir()
    (disk / "data" / "kafkafs.properties").write_text(SETTINGS)
    mount = Mount(tmp_path)
    mount.data.rmdir()
    mount.data = disk / "data"
    try:
        mount.start()
        for topic in ("orders", "other"):
            mount.topic(topic)
            tell(mount, f"{topic}/.config", "internal.segment.bytes=65536")
            for first in range(0, LINES, 20):
                text = "".join(line(mount, n) for n in range(first, first + 20))
                append(mount / topic / "0", text)
        yield mount
        if mount.process is not None:
            mount.stop()
    finally:
        mount.end()
    check_data(mount.data)


def reserve_of(mount: Mount) -> list[Path]:
    """Return the files of the daemon's reserve."""
    return sorted(mount.data.glob("kafkafs.reserve.*"))


def line(mount: Mount, number: int) -> str:
    kind = mount.data.parent.name
    return f"{number} {'x' * LINE_BYTES.get(kind, 1000)}\n"


def append(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        assert os.write(fd, text.encode()) == len(text)
    finally:
        os.close(fd)


def numbers(path: Path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()]


def fill_by_appending(mount: Mount, topic: str) -> int:
    """Append lines until the disk takes no more; how many lines the partition has then."""
    count = len(numbers(mount / topic / "0"))
    while True:
        try:
            append(mount / topic / "0", line(mount, count))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return count
        count += 1


def tell(mount: Mount, file: str, line: str) -> None:
    """Write a line to a file below the mount, in one write."""
    append(mount / file, f"{line}\n")


def kafkafs(*words: str | Path) -> str:
    done = subprocess.run(
        [*KAFKAFS, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_retention_makes_room(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    tell(mount, "orders/.config", "retention.bytes=131072")
    tell(mount, "orders/.control/retention", "run")
    kept = numbers(mount / "orders/0")
    assert kept == list(range(kept[0], count))
    assert kept[0] > 0
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")
    assert numbers(mount / "other/0") == list(range(LINES))


def a_large_topic(mount: Mount, *settings: str) -> int:
    """Topic `large` with 12 MiB of lines that were just written; how many lines."""
    mount.topic("large")
    for setting in settings:
        tell(mount, "large/.config", setting)
    for first in range(0, 192, 16):
        append(
            mount / "large/0", "".join(f"{n} {'x' * 65_000}\n" for n in range(first, first + 16))
        )
    return 192


def frees(mount: Mount) -> str:
    tell(mount, "large/.control/retention", "dry-run")
    said = (mount / "large/.control/retention").read_text().splitlines()
    return next(line for line in said if line.startswith("last_frees "))


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_one_large_topic_with_retention(mount: Mount, fill: Filler, disk: Path) -> None:
    count = a_large_topic(mount, "retention.bytes=16MiB")
    fill(disk)
    tell(mount, "large/.config", "retention.bytes=4MiB")
    assert " now" in frees(mount)
    tell(mount, "large/.control/retention", "run")
    kept = numbers(mount / "large/0")
    assert kept == list(range(kept[0], count))
    assert 64 <= len(kept) <= 100, "4 MiB, and at most 2 MiB more"
    mount.run("until echo more >> large/0; do sleep 0.1; done 2>/dev/null")


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_one_large_topic_without_retention(mount: Mount, fill: Filler, disk: Path) -> None:
    """All bytes are in the newest segment, which retention keeps and delete-records frees."""
    count = a_large_topic(mount)
    fill(disk)
    whole = "last_frees 0 all 11.9MiB are in the newest segment; "
    assert frees(mount) == whole + "retention.bytes and retention.ms are not set: nothing is freed"
    tell(mount, "large/.config", "retention.bytes=4MiB\nretention.ms=1h")
    # The segment is closed at once, and goes as a whole.
    mount.run("until test -e large/.raw/0/00000000000000000192.log; do sleep 0.1; done")
    assert frees(mount).startswith(
        "last_frees 0 11.9MiB are in 1 segment; retention.bytes=4194304 frees 11.9MiB once 4.0MiB "
        "more are appended; retention.ms=3600000 frees 11.9MiB at 20"
    )
    tell(mount, "large/.control/retention", "run")
    assert numbers(mount / "large/0") == list(range(count))
    tell(mount, "large/.control/delete-records", "0 -1")
    tell(mount, "large/.control/retention", "run")
    mount.run("until echo more >> large/0; do sleep 0.1; done 2>/dev/null")
    assert (mount / "large/0").read_text() == "more\n"


def test_records_are_deleted(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    tell(mount, "orders/.control/delete-records", "0 300")
    assert numbers(mount / "orders/0") == list(range(300, count))
    tell(mount, "orders/.control/retention", "run")
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")


def test_a_topic_is_deleted(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    (mount / "other").rmdir()
    assert os.listdir(mount.path) == ["orders"]
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")
    mount.run("until mkdir other; do sleep 0.1; done 2>/dev/null")
    assert (mount / "other/0").read_bytes() == b""
    assert [
        int(line.split()[0]) for line in (mount / "orders/0").read_text().splitlines()[:count]
    ] == list(range(count))


def test_it_is_unmounted_and_mounted_again(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    mount.stop()
    assert (mount.data / ".kafka_cleanshutdown").exists()
    mount.start()
    assert numbers(mount / "orders/0") == list(range(count))
    fails(errno.ENOSPC, append, mount / "orders/0", "more\n")


def test_it_is_killed_and_mounted_again(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    mount.kill()
    mount.start()
    assert numbers(mount / "orders/0") == list(range(count))
    (mount / "other").rmdir()
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")


def test_commands_make_room_in_what_is_not_mounted(mount: Mount, fill: Filler, disk: Path) -> None:
    fill(disk)
    count = fill_by_appending(mount, "orders")
    mount.kill()
    kafkafs("config", mount.data, "orders", "retention.bytes=131072")
    assert "segments" in kafkafs("prune", mount.data)
    kafkafs("repair", "--apply", mount.data)
    mount.start()
    kept = numbers(mount / "orders/0")
    assert kept == list(range(kept[0], count))
    assert kept[0] > 0
    append(mount / "orders/0", "more\n")


def test_undelete_refuses_to_open_a_directory_that_would_lose_the_topic(
    mount: Mount, way: Way, disk: Path
) -> None:
    tell(mount, "other/.config", "file.delete.delay.ms=3600000")
    mount.stop()
    kafkafs("delete", mount.data, "other")
    filler = way[1](disk)
    command = [*KAFKAFS, "undelete", str(mount.data), "other"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert "the disk is full" in done.stderr
    remove(filler)
    kafkafs("undelete", mount.data, "other")
    mount.start()
    assert numbers(mount / "other/0") == list(range(LINES))


def something_dirty(mount: Mount) -> Path:
    """A compacted topic of 300 keys, which the clock leaves alone."""
    mount.topic("keyed")
    settings = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=1")
    tell(mount, "keyed/.config", "\n".join([*settings, "internal.segment.bytes=65536"]))
    for number in range(LINES):
        append(mount / "keyed/.kv/0", f"{number % 300}\t{line(mount, number)}")
    tell(mount, "keyed/.control/roll", "run")
    return mount / "keyed/.kv/0"


def remove(filler: Path) -> None:
    if filler.is_dir():
        shutil.rmtree(filler)
    else:
        filler.unlink()


def test_compaction_fails_clearly_and_works_when_there_is_room(
    mount: Mount, fill: Filler, disk: Path
) -> None:
    """It does not use the reserve. When it fails, it deletes the files that it has written."""
    keyed, control = something_dirty(mount), mount / "keyed/.control/compaction"
    before = keyed.read_bytes()
    filler = fill(disk)
    fill_by_appending(mount, "orders")
    for _ in range(2):
        tell(mount, "keyed/.control/compaction", "run")
        done = subprocess.run([*KAFKAFS, "wait", str(control)], capture_output=True, text=True)
        assert done.returncode == 3
        said = control.read_text()
        assert "\nlast_outcome failed\n" in said
        assert f"\nlast_reason {os.strerror(errno.ENOSPC)}" in said
        assert keyed.read_bytes() == before
        assert not list((mount.data / "keyed-0").glob("*.cleaned"))
    remove(filler)
    tell(mount, "keyed/.control/compaction", "run")
    kafkafs("wait", control)
    latest = dict(text.split("\t") for text in before.decode().splitlines())
    assert dict(text.split("\t") for text in keyed.read_text().splitlines()) == latest
    assert len(keyed.read_text().splitlines()) == 300


def test_an_unmounted_directory_is_compacted_when_there_is_room(
    mount: Mount, fill: Filler, disk: Path
) -> None:
    before = something_dirty(mount).read_bytes()
    filler = fill(disk)
    fill_by_appending(mount, "orders")
    mount.stop()
    command = [*KAFKAFS, "compact", str(mount.data), "keyed"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr
    mount.start()
    assert (mount / "keyed/.kv/0").read_bytes() == before
    mount.stop()
    remove(filler)
    kafkafs("compact", mount.data, "keyed")
    mount.start()
    assert len((mount / "keyed/.kv/0").read_text().splitlines()) == 300


def test_without_a_reserve_a_mount_says_what_to_delete(
    mount: Mount, fill: Filler, disk: Path
) -> None:
    mount.kill()
    for spare in [*reserve_of(mount), *mount.data.glob("*/*.lines")]:
        spare.unlink()
    filler = fill(disk)
    done = subprocess.run(
        [*KAFKAFS, "mount", mount.data, mount.path], capture_output=True, text=True
    )
    assert done.returncode
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Delete other files on this disk" in done.stderr
    assert "Traceback" not in done.stderr
    remove(filler)
    mount.start()
    for topic in ("orders", "other"):
        assert numbers(mount / topic / "0") == list(range(LINES))


# (XFS and btrfs have no use for the room of a few small files at once.)
@pytest.mark.parametrize("way", [*WAYS, ("overlay", fill_bytes)], indirect=True)
def test_without_a_reserve_line_indexes_make_room(mount: Mount, disk: Path) -> None:
    """They go before anything fails, and are made again."""
    mount.restart()
    assert list(mount.data.glob("orders-0/*.lines"))
    for reserved in reserve_of(mount):
        reserved.unlink()
    (disk / "fillers").mkdir()
    fill_bytes(disk)
    fill_inodes(disk)
    tell(mount, "orders/.control/delete-records", "0 300")
    assert numbers(mount / "orders/0") == list(range(300, LINES))
    assert numbers(mount / "other/0") == list(range(LINES))
    tell(mount, "orders/.control/retention", "run")
    fails(errno.ENOSPC, append, mount / "orders/0", "more\n")
    (disk / "filler").unlink()
    remove(disk / "fillers")
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")
    assert len(reserve_of(mount)) == RESERVE_FILES


def test_a_topic_that_cannot_be_deleted_stays(mount: Mount, disk: Path) -> None:
    """On a completely full disk, deleting a topic either succeeds or changes nothing."""
    fill_bytes(disk)
    count = fill_by_appending(mount, "orders")
    for reserved in reserve_of(mount):
        reserved.unlink()
    fill_bytes(disk)
    try:
        (mount / "other").rmdir()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        assert numbers(mount / "other/0") == list(range(LINES))
    else:
        assert os.listdir(mount.path) == ["orders"]
    assert numbers(mount / "orders/0") == list(range(count))
    (disk / "filler").unlink()


def test_what_was_given_up_is_not_for_appends_and_comes_back(
    mount: Mount, fill: Filler, disk: Path
) -> None:
    fill(disk)
    fill_by_appending(mount, "orders")
    number = 0
    while len(reserve_of(mount)) == RESERVE_FILES:
        number += 1
        tell(mount, "orders/.config", f"segment.ms={3600000 + number}")
    # Somebody else was faster.
    filler = fill_bytes(disk)
    fails(errno.ENOSPC, append, mount / "orders/0", "more\n")
    fails(errno.ENOSPC, (mount / "new").mkdir)
    assert "the remaining space is reserved for deleting" in mount.events()
    remove(filler)
    mount.run("until echo more >> orders/0; do sleep 0.1; done 2>/dev/null")
    assert len(reserve_of(mount)) == RESERVE_FILES


def test_what_is_reserved_counts_as_used(mount: Mount, disk: Path) -> None:
    reserve = [file.stat() for file in reserve_of(mount)]
    assert len(reserve) == RESERVE_FILES
    assert all(file.st_blocks * 512 >= file.st_size for file in reserve)
    assert sum(file.st_size for file in reserve) <= shutil.disk_usage(mount.path).used


@pytest.mark.parametrize("is_mounted", [False, True], ids=["directory", "mount"])
def test_append_names_the_lines_of_which_some_were_appended(
    tmp_path: Path, *, is_mounted: bool
) -> None:
    """A write of lines for several partitions appends to one partition after the other."""
    mount = Mount(tmp_path)
    with file_system("tmpfs", tmp_path, 24 * MIB, 400) as disk:
        mount.data.rmdir()
        mount.data = disk / "data"
        mount.data.mkdir()
        kafkafs("create", mount.data, "t", "--partitions", "4")
        text = "".join(f"{number}\t{'x' * 1000}\n" for number in range(40_000))
        try:
            if is_mounted:
                mount.start()
            command = [*KAFKAFS, "append", str(mount.data), "t", "--view", "kv"]
            done = subprocess.run(command, input=text, capture_output=True, text=True)
            lines = kafkafs("cat", mount.data, "t", "--view", "kv").splitlines()
            if is_mounted:
                mount.stop()
        finally:
            mount.end()
    assert (done.returncode, done.stdout) == (3, "")
    *closing, line = done.stderr.splitlines()
    assert closing in ([], [f"kafkafs: {mount.data}: closing failed: No space left on device"])
    found = re.fullmatch(
        r"kafkafs: line (\d+) of standard input: No space left on device.*; all lines before it "
        r"were appended; some of the lines \1 to (\d+) may have been appended",
        line,
    )
    assert found is not None, line
    first, last = int(found[1]) - 1, int(found[2])
    appended = {int(line.partition("\t")[0]) for line in lines}
    assert len(appended) == len(lines)
    assert set(range(first)) <= appended < set(range(last))
