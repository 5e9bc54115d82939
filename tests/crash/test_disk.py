"""The simulated disk keeps what was synced, loses what may be lost, and stops when told."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import LogManager, descriptors
from tests.crash.disk import SimulatedDisk
from tests.crash.disk_model import DirectoryModel, Draw, FileModel
from tests.storage.logs import append, opened
from tests.waits import HANG_S

CREATE = os.O_RDWR | os.O_CREAT


def create(disk: SimulatedDisk, path: Path, data: bytes, *, synced: bool) -> int:
    fd = disk.open(str(path), CREATE)
    disk.pwrite(fd, data, 0)
    if synced:
        disk.fsync(fd)
        disk.sync_directory(str(path.parent))
    return fd


def content(model: FileModel, seed: int) -> bytes:
    length, pages = model.survive(Draw(seed))
    data = bytearray(length)
    for number, page in pages.items():
        data[number * 4096 : number * 4096 + len(page)] = page
    return bytes(data)


def test_what_was_synced_survives_every_power_cut(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    fd = create(disk, tmp_path / "log", b"a" * 5000, synced=True)
    disk.pwrite(fd, b"b" * 9000, 5000)
    for seed in range(30):
        assert content(disk._model(fd), seed)[:5000] == b"a" * 5000
    disk.materialise(0)
    assert (tmp_path / "log").read_bytes() == b"a" * 5000


def test_what_was_not_synced_may_be_lost_torn_or_kept(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    fd = create(disk, tmp_path / "log", b"a" * 100, synced=True)
    disk.pwrite(fd, b"b" * 10_000, 100)
    found = {content(disk._model(fd), seed) for seed in range(200)}
    whole = b"a" * 100 + b"b" * 10_000
    assert b"a" * 100 in found  # nothing of it
    assert whole in found
    assert any(len(data) == 10_100 and data != whole for data in found)  # blank blocks
    assert {len(data) for data in found} == {100, 4096, 8192, 10_100}


def test_small_appends_to_one_page_are_lost_from_the_last_on() -> None:
    model = FileModel(b"")
    model.commit(model.event)
    for number in range(5):
        model.write(number, b"%d" % number)
    found = {content(model, seed).rstrip(b"\0") for seed in range(300)}
    assert found == {b"01234"[:count] for count in range(6)}


def test_truncated_bytes_do_not_come_back_under_a_later_length() -> None:
    model = FileModel(b"x" * 6000)
    model.truncate(10)
    model.write(5000, b"new")
    found = {content(model, seed) for seed in range(300)}
    assert b"x" * 6000 in found
    assert b"x" * 10 in found
    for data in found:
        if len(data) < 6000:
            assert b"x" not in data[10:]


@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 20_000), st.integers(1, 9000)),
            st.tuples(st.just("truncate"), st.integers(0, 20_000), st.just(0)),
            st.tuples(st.just("sync"), st.just(0), st.just(0)),
        ),
        max_size=12,
    ),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_extremes_agree_with_plain_bytes(operations: list[tuple[str, int, int]], seed: int) -> None:
    model, now, synced = FileModel(b""), bytearray(), b""
    for number, (kind, position, size) in enumerate(operations, start=1):
        if kind == "write":
            data = bytes([number]) * size
            model.write(position, data)
            now.extend(bytes(max(position + size - len(now), 0)))
            now[position : position + size] = data
        elif kind == "truncate":
            model.truncate(position)
            now = now[:position].ljust(position, b"\0")
        else:
            model.commit(model.event)
            synced = bytes(now)
    assert content(model, 0) == synced
    assert content(model, 1) == bytes(now)
    survivor = content(model, seed)
    if not operations or operations[-1][0] == "sync":
        assert survivor == synced
    assert set(survivor) <= set(range(len(operations) + 1))


def test_directory_operations_survive_in_order(tmp_path: Path) -> None:
    model = DirectoryModel()
    files = [FileModel(b"%d" % n) for n in range(3)]
    model.change(("a", files[0]))
    model.commit()
    model.change(("b", files[1]))
    model.change(("c", files[1]), ("b", None))
    model.change(("a", None))
    found = {tuple(sorted(model.survive(Draw(seed)))) for seed in range(200)}
    assert found == {("a",), ("a", "b"), ("a", "c"), ("c",)}


def test_an_unsynced_name_is_lost_although_its_bytes_were_synced(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    fd = disk.open(str(tmp_path / "new"), CREATE)
    disk.pwrite(fd, b"data", 0)
    disk.fsync(fd)
    disk.materialise(0)
    assert list(tmp_path.iterdir()) == []


def test_an_unsynced_removal_comes_back_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "older").write_bytes(b"older")
    disk = SimulatedDisk(str(tmp_path))
    disk.unlink(str(tmp_path / "old"))
    disk.rename(str(tmp_path / "older"), str(tmp_path / "moved"))
    disk.materialise(0)
    assert (tmp_path / "old").read_bytes() == b"old"
    assert (tmp_path / "older").read_bytes() == b"older"
    assert not (tmp_path / "moved").exists()


def test_removed_and_made_directories(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    disk.mkdir(str(tmp_path / "kept"))
    disk.sync_directory(str(tmp_path))
    create(disk, tmp_path / "kept" / "file", b"1", synced=True)
    disk.mkdir(str(tmp_path / "lost"))
    create(disk, tmp_path / "lost" / "file", b"2", synced=True)
    disk.rename(str(tmp_path / "kept"), str(tmp_path / "renamed"))
    assert disk.exists(str(tmp_path / "renamed" / "file"))
    disk.materialise(0)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_bytes() == b"1"


def test_a_dead_process_is_asked_for_no_descriptor(tmp_path: Path) -> None:
    def fail() -> descriptors.Descriptor:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("dead", "alive"):
        (tmp_path / name).mkdir()
    disk = SimulatedDisk(str(tmp_path / "dead"))
    dead = LogManager.open(str(tmp_path / "dead"), files=disk)
    append(dead.create_topic("t", 1).partitions[0], b"1")
    disk.kill()
    with opened(tmp_path / "alive") as manager:
        log = manager.create_topic("t", 1).partitions[0]
        with pytest.raises(OSError, match="Too many open files"):
            descriptors.open_for(log.active, fail)


def test_a_held_fsync_covers_only_what_was_written_before(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    fd = create(disk, tmp_path / "log", b"", synced=True)
    disk.pwrite(fd, b"before", 0)
    release = threading.Event()
    reached = disk.delay("fsync", release, suffix="log")
    thread = threading.Thread(target=disk.fsync, args=(fd,))
    thread.start()
    assert reached.wait(HANG_S)
    disk.pwrite(fd, b"after", 6)
    release.set()
    thread.join(HANG_S)
    disk.materialise(0)
    assert (tmp_path / "log").read_bytes() == b"before"
