"""A data directory: the lock, topics, checkpoints, settings, periodic work, the cost of opening."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.directory.deleted import SWEPT_AT_ONCE
from storage.directory.open import Progress
from storage.errors import (
    CorruptCheckpoint,
    InvalidConfig,
    InvalidTopic,
    LogLocked,
    TopicExists,
    UnknownTopicOrPartition,
)
from storage.files import Files
from storage.segment.reader import SegmentReader
from storage.state import checkpoint_file
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import (
    NOW_MS,
    CountedReads,
    append,
    opened,
    remove_head,
    sweep,
    values,
    write_settings,
)
from tests.waits import HANG_S


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    holder = (
        "import sys\nfrom storage import LogManager\n"
        f"with LogManager.open({str(tmp_path)!r}):\n"
        "    print('open', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(LogLocked) as caught:
            LogManager.open(str(tmp_path))
        assert caught.value.pid == process.pid
        with LogManager.open(str(tmp_path), read_only=True):
            pass
        process.communicate("")
        assert process.returncode == 0
    with opened(tmp_path), pytest.raises(LogLocked):
        LogManager.open(str(tmp_path))


def test_a_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        LogManager.open(str(tmp_path / "none"))


def still_open(base: Path) -> list[str]:
    """Return the files there that this process has open or mapped."""
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    names += Path("/proc/self/maps").read_text().splitlines()
    return [name for name in names if str(base) in name]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("end", ["close", "abandon"])
def test_nothing_is_open_after_the_end(tmp_path: Path, read_only: bool, end: str) -> None:
    """The file system can be unmounted, whatever still refers to the manager."""
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"a")
        log.roll(NOW_MS)
    manager = LogManager.open(str(tmp_path), read_only=read_only)
    assert values(manager.log("t", 0)) == [b"a"]
    assert still_open(tmp_path)
    getattr(manager, end)()
    assert still_open(tmp_path) == []


def test_topics_and_partitions(tmp_path: Path) -> None:
    write_settings(tmp_path, num_partitions=3)
    with opened(tmp_path) as manager:
        assert sorted(manager.create_topic("orders").partitions) == [0, 1, 2]
        manager.create_topic("my-topic", 1)
        with pytest.raises(TopicExists):
            manager.create_topic("orders")
        for name in ("a b", ".", "", "x" * 250, "ü"):
            with pytest.raises(InvalidTopic):
                manager.create_topic(name)
        manager.create_topic("a.b", 1)
        with pytest.raises(TopicExists, match="collides"):
            manager.create_topic("a_b")
        with pytest.raises(InvalidTopic, match="next partition"):
            manager.create_partition("my-topic", 2)
        append(manager.create_partition("my-topic", 1), b"x")
        with pytest.raises(UnknownTopicOrPartition):
            manager.log("my-topic", 2)
        with pytest.raises(UnknownTopicOrPartition):
            manager.topic("none")
    with opened(tmp_path) as manager:
        assert {name: sorted(t.partitions) for name, t in manager.topics.items()} == {
            "a.b": [0],
            "my-topic": [0, 1],
            "orders": [0, 1, 2],
        }
        assert values(manager.log("my-topic", 1)) == [b"x"]
        ids = {log.topic_id for log in manager.topic("orders").partitions.values()}
        assert len(ids) == 1
        metadata = (tmp_path / "orders-2" / "partition.metadata").read_text()
        assert metadata == f"version: 0\ntopic_id: {ids.pop()}"


def test_a_deleted_topic_can_be_read_until_its_files_go(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("gone", 2).partitions[1]
        manager.change_topic_settings("gone", {"file.delete.delay.ms": "0"})
        append(log, b"x" * 100)
        log.roll(NOW_MS)
        segment = log.segments[0]
        segment.lease()
        manager.delete_topic("gone")
        assert "gone" not in manager.topics
        assert all(name.endswith("-delete") for name in os.listdir(tmp_path) if "gone" in name)
        manager.create_topic("gone", 1)
        assert manager.log("gone", 0).log_end_offset == 0
        assert sweep(manager, manager.clock_ms())
        assert len([name for name in os.listdir(tmp_path) if name.endswith("-delete")]) == 1
        assert SegmentReader(segment).window(bytearray(10), 0) == 10
        segment.release()
        assert sweep(manager, manager.clock_ms())
        assert not [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
        assert manager.sweep(manager.clock_ms()) is None


def test_a_topic_whose_deletion_is_refused_is_as_it_was(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        append(manager.create_topic("t", 3).partitions[2], b"x")
        before = sorted(os.listdir(tmp_path))
        disk.fail_next("rename", errno.EIO, suffix="t-2")  # the last one that is renamed
        with pytest.raises(OSError, match="Input/output"):
            manager.delete_topic("t")
        assert sorted(os.listdir(tmp_path)) == before
        append(manager.log("t", 2), b"y")
        assert values(manager.log("t", 2)) == [b"x", b"y"]


def test_a_large_topic_is_let_go_of_some_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        topic = manager.create_topic("gone", 2)
        for log in topic.partitions.values():
            for _ in range(SWEPT_AT_ONCE):
                append(log, b"x")
                log.roll(NOW_MS)
        logs = list(topic.partitions.values())
        manager.delete_topic("gone")
        turns = 0
        while (remove := manager.deleted.remove(2 * manager.clock_ms())) is not None:
            turns += 1
            left = sum(len(log.retired) for log in logs)
            assert left == max(2 * (SWEPT_AT_ONCE + 1) - turns * SWEPT_AT_ONCE, 0)
            remove()
        assert turns == 3
        assert not [name for name in os.listdir(tmp_path) if "gone" in name]


def test_a_topic_whose_directory_has_vanished_can_be_deleted(tmp_path: Path) -> None:
    """A user who has removed it by hand can delete its name, too."""
    write_settings(tmp_path, num_partitions=2)
    with opened(tmp_path) as manager:
        append(manager.create_topic("t").partitions[0], b"one")
        append(manager.create_topic("other").partitions[0], b"two")
        shutil.rmtree(tmp_path / "t-0")
        manager.delete_topic("t")
        assert sorted(manager.topics) == ["other"]
        assert sweep(manager, 2**62)
        assert values(manager.create_topic("t").partitions[0]) == []
    with opened(tmp_path) as manager:
        assert manager.clean
        assert sorted(manager.topics) == ["other", "t"]
        assert values(manager.topic("other").partitions[0]) == [b"two"]


def test_the_marker_of_a_clean_stop_does_not_come_back(tmp_path: Path) -> None:
    """It would vouch for logs that were open when the power failed."""
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"a")
    marker = tmp_path / ".kafka_cleanshutdown"
    assert marker.exists()
    disk = SimulatedDisk(str(tmp_path))
    LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    disk.materialise(0)
    assert not marker.exists()


def test_a_file_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for _ in range(3):
            append(log, b"a")
            log.roll(NOW_MS)
        manager.change_topic_settings("t", {"file.delete.delay.ms": "0"})
        remove_head(log, 2, NOW_MS)
        disk.fail_next("unlink", errno.EIO, suffix=f"{0:020}.log.deleted")
        for left in ([f"{0:020}.log.deleted"], []):
            remove = manager.sweep(NOW_MS)
            assert remove is not None
            with pytest.raises(OSError, match="Input/output") if left else contextlib.nullcontext():
                remove()
            assert [name for name in os.listdir(tmp_path / "t-0") if "deleted" in name] == left


class Vanishing(Files):
    """A directory in which another process removes a file while it is being removed."""

    def names(self, path: str) -> list[str]:
        found = super().names(path)
        if path.endswith("-delete"):
            os.unlink(os.path.join(path, found[0]))
        return found


def test_a_file_that_vanishes_does_not_keep_its_deleted_directory(tmp_path: Path) -> None:
    with opened(tmp_path, Vanishing()) as manager:
        append(manager.create_topic("gone", 1).partitions[0], b"a")
        manager.delete_topic("gone")
        assert sweep(manager, 2 * manager.clock_ms())
        assert not [name for name in os.listdir(tmp_path) if "gone" in name]


def test_a_snapshot_that_found_no_room_is_tried_again(tmp_path: Path) -> None:
    """Though the log has not grown since; and none is there that says less than it should."""
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"a")
        disk.fail_next("pwrite", errno.ENOSPC, suffix=".snapshot", times=2)
        with pytest.raises(OSError, match="No space left"):
            manager.checkpoint()
        path = Path(log.snapshots.path(1))
        assert not path.exists()
        manager.checkpoint()
        assert path.read_bytes() == log.producers.encode()


def test_a_snapshot_that_waits_for_the_disk_delays_no_other_checkpoint(tmp_path: Path) -> None:
    disk, release = SimulatedDisk(str(tmp_path)), threading.Event()
    with opened(tmp_path, disk) as manager:
        log, other = (manager.create_topic(name, 1).partitions[0] for name in "ab")
        append(log, b"1")
        waits = disk.delay("pwrite", release, suffix=".snapshot")
        checkpoint = threading.Thread(target=manager.start_checkpoint())
        checkpoint.start()
        waits.wait()
        deletion = threading.Thread(target=manager.delete_topic, args=(other.topic,))
        deletion.start()
        deletion.join(HANG_S)
        is_waiting = deletion.is_alive()
        release.set()
        checkpoint.join()
        assert not is_waiting


def test_a_snapshot_of_a_deleted_topic_is_not_written_to_a_new_one(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"1")
        write = manager.start_checkpoint()
        manager.delete_topic("t")
        manager.create_topic("t", 1)
        write()
        assert not list((tmp_path / "t-0").glob("*.snapshot"))


def test_a_recovery_point_waits_for_the_manifest(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.checkpoint()
        append(log, b"1")
        log.roll(NOW_MS)
        log.flush()
        disk.fail_next("pwrite", errno.EIO, suffix="kafkafs.segments.tmp", times=2)
        path = str(tmp_path / paths.RECOVERY_POINTS)
        with pytest.raises(OSError, match="Input/output"):
            manager.checkpoint_logs([log], Task())
        with pytest.raises(OSError, match="Input/output"):
            manager.write_checkpoints()
        assert read_offsets(disk, path) == {("t", 0): 0}
        manager.write_checkpoints()
        assert read_offsets(disk, path) == {("t", 0): 1}


def test_checkpoints_and_the_marker(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        log = manager.create_topic("t", 1).partitions[0]
        for _ in range(3):
            append(log, b"a")
            log.roll(NOW_MS)
        append(log, b"b")
        manager.checkpoint()
        assert read_offsets(Files(), f"{tmp_path}/recovery-point-offset-checkpoint") == {
            ("t", 0): 0
        }
        log.log_start_offset = 2
        manager.checkpoint()
        assert read_offsets(Files(), f"{tmp_path}/log-start-offset-checkpoint") == {("t", 0): 2}
    assert read_offsets(Files(), f"{tmp_path}/recovery-point-offset-checkpoint") == {("t", 0): 4}
    assert read_offsets(Files(), f"{tmp_path}/replication-offset-checkpoint") == {("t", 0): 4}
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "t-0" / f"{4:020d}.snapshot").exists()
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.clean
        assert manager.log("t", 0).log_start_offset == 2
        assert manager.log("t", 0).durability.recovery_point == 4


def test_a_malformed_checkpoint_is_set_aside_and_all_is_checked(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)
        manager.change_topic_settings("t", {"index.interval.bytes": "1"})
        for _ in range(3):
            append(manager.log("t", 0), b"v")
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n2\nt 0 0\n")
    with opened(tmp_path) as manager:
        assert manager.opening_bytes == manager.log("t", 0).size
        assert "expected 2 entries" in manager.faults[0]
    assert (tmp_path / f"{checkpoint.name}.bad").read_text() == "0\n2\nt 0 0\n"
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert manager.opening_bytes < manager.log("t", 0).size


def test_partitions_of_one_topic_share_its_id(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        first = manager.create_topic("t", 3).id
    (tmp_path / "t-1" / "partition.metadata").unlink()
    with opened(tmp_path) as manager:
        assert manager.log("t", 1).topic_id == first
    assert first in (tmp_path / "t-1" / "partition.metadata").read_text()
    (tmp_path / "t-2" / "partition.metadata").write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )
    with pytest.raises(CorruptCheckpoint, match="differs"):
        LogManager.open(str(tmp_path))


def test_a_topic_without_an_id_has_the_same_one_each_time_it_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        for topic in ("t", "u"):
            manager.create_topic(topic, 2)
    for path in tmp_path.glob("*/partition.metadata"):
        path.unlink()
    ids = []
    for _ in range(2):
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            ids.append([log.topic_id for log in manager.logs()])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
    assert not list(tmp_path.glob("*/partition.metadata"))


def test_other_things_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "t-0.0123456789abcdef0123456789abcdef-stray").mkdir()
    with opened(tmp_path) as manager:
        assert manager.topics == {}
        assert len(manager.skipped) == 2
    assert (tmp_path / "lost+found").is_dir()
    assert (tmp_path / "meta.properties").read_text() == "version=1\n"


def test_opening_costs_per_segment_and_not_per_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]

    def cost() -> tuple[int, int]:
        files = CountedReads()
        LogManager.open(str(tmp_path), files=files).close()
        files = CountedReads()
        manager = LogManager.open(str(tmp_path), files=files)
        operations, read = files.operations, files.bytes_read
        manager.close()
        return operations, read

    def add(segments: int, size: int) -> None:
        with opened(tmp_path) as manager:
            log = manager.log("t", 0)
            for _ in range(segments):
                for _ in range(20):
                    append(log, b"x" * size)
                log.roll(NOW_MS)
            # Before an empty one the end of its predecessor is looked at.
            append(log, b"x")

    assert log.closed
    add(5, 10)
    small = cost()
    add(5, 20_000)
    large = cost()
    add(5, 20_000)
    larger = cost()
    assert larger[0] - large[0] == large[0] - small[0], "as many operations for each segment"
    assert larger[1] - large[1] == large[1] - small[1] < 5 * 400, "and a few headers' bytes"


def test_progress_of_opening(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        for partition in manager.create_topic("t", 3).partitions.values():
            append(partition, b"x" * 1000)
        manager.abandon()
    seen: list[Progress] = []
    with LogManager.open(str(tmp_path), progress=seen.append):
        pass
    assert seen[-1].partitions == seen[-1].partitions_total == 3
    assert seen[-1].bytes_read > 3000


def test_a_log_gets_on_with_few_descriptors(tmp_path: Path) -> None:
    """… and an error that is not the log's own tells the limit."""
    script = f"""
import resource
from storage import LogManager
from tests.storage.logs import append, values
manager = LogManager.open({str(tmp_path)!r})
log = manager.create_topic("t", 1).partitions[0]
append(log, b"first")
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
for n in range(30):
    log.roll(n)
    append(log, b"%d" % n)
assert log.log_end_offset == len(values(log)) == 31
held = []
try:
    while True:
        held.append(manager.files.open(log.active.log_path, 0))
except OSError as error:
    print(error.errno, error)
manager.files.close(held.pop())
append(log, b"again")
assert len(values(log)) == 32
for fd in held:
    manager.files.close(fd)
append(log, b"goes on")
manager.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{errno.EMFILE} ")
    assert "RLIMIT_NOFILE" in done.stdout
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0))[-1] == b"goes on"


def test_the_complete_example_of_the_readme_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/dev/storage-library.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "data").mkdir()
    for round_number in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == f"{2 * round_number} b'k1' b'first' ()"


class Replacing(Files):
    """Counts the files that are replaced, by name; the fsync of a directory fails while ``bad``."""

    bad = False

    def __init__(self) -> None:
        self.replaced: Counter[str] = Counter()

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.replaced[os.path.basename(path)] += 1
        super().replace_atomically(path, data, sync=sync)

    def sync_directory(self, path: str) -> None:
        if self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().sync_directory(path)


def test_a_checkpoint_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    files = Replacing()
    with opened(tmp_path, files) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"one")
        log.flush()
        manager.checkpoint()
        files.replaced.clear()
        manager.checkpoint()
        assert not files.replaced
        append(log, b"two")
        log.flush()
        files.bad = True
        with pytest.raises(OSError, match="Input/output"):
            manager.checkpoint_logs([log], Task())
        files.bad = False
        # It may be there or not; what it said before has to be written, too.
        log.durability.recovery_point = 1
        manager.checkpoint_logs([log], Task())
        recorded = read_offsets(files, str(tmp_path / paths.RECOVERY_POINTS))
        assert recorded == {("t", 0): 1}
        log.durability.recovery_point = 2


def test_a_log_that_cannot_be_closed_keeps_none_from_being_closed(tmp_path: Path) -> None:
    """… by whatever error, also one that is our own bug."""

    class Broken(Files):
        def fdatasync(self, fd: int) -> None:
            if "/t-1/" in os.readlink(f"/proc/self/fd/{fd}"):
                raise ZeroDivisionError
            super().fdatasync(fd)

    manager = LogManager.open(str(tmp_path), files=Broken(), clock_ms=lambda: NOW_MS)
    logs = manager.create_topic("t", 3).partitions.values()
    for log in logs:
        append(log, b"a")
    with pytest.raises(ZeroDivisionError):
        manager.close()
    assert all(log.closed for log in logs)
    assert not checkpoint_file.has_marker(Files(), str(tmp_path))
    points = read_offsets(Files(), str(tmp_path / "recovery-point-offset-checkpoint"))
    assert points == {("t", 0): 1, ("t", 1): 0, ("t", 2): 1}


def test_a_log_is_closed_though_somebody_has_a_lease(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"a")
    log.roll(NOW_MS)
    append(log, b"b")
    segments = log.segments
    for segment in segments:
        segment.lease()
    remove_head(log, 1, NOW_MS)
    manager.close()
    assert checkpoint_file.has_marker(Files(), str(tmp_path))
    for segment in segments:
        segment.release()
    assert still_open(tmp_path) == []


def test_a_state_that_is_noted_during_a_write_is_written_by_the_next(tmp_path: Path) -> None:
    class Noting(Files):
        meanwhile = ""

        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            if self.meanwhile and path.endswith(f"-{self.meanwhile}.tmp"):
                self.meanwhile = ""
                append(log, b"a")
                log.flush()
                manager.note([log])
                manager.checkpoints.forget([("other", 0)])
            return super().open(path, flags, mode)

    def lines(name: str = paths.RECOVERY_POINTS) -> dict[tuple[str, int], int]:
        return read_offsets(files, str(tmp_path / name))

    files = Noting(str(tmp_path))
    with opened(tmp_path, files) as manager:
        manager.create_topic("other", 1)
        log = manager.create_topic("t", 1).partitions[0]
        manager.checkpoints.cleaned["other", 0] = 0
        manager.note(manager.logs())
        files.meanwhile = paths.RECOVERY_POINTS
        manager.write_checkpoints()
        assert lines() == {("other", 0): 0, ("t", 0): 0}
        manager.write_checkpoints()
        assert lines() == {("t", 0): 1}
        assert lines(paths.CLEANER_OFFSETS) == {}
        log.roll(NOW_MS)
        manager.note([log])
        files.meanwhile = "kafkafs.segments"
        manager.write_checkpoints()
        assert lines() == {("t", 0): 2}


def test_a_checkpoint_of_one_log_leaves_the_lines_of_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        logs = [manager.create_topic(name, 1).partitions[0] for name in "ab"]
        for log in logs:
            append(log, b"1")
            log.flush()
        manager.checkpoint()
        for log in logs:
            append(log, b"2")
            log.flush()
        manager.checkpoint_logs([logs[0]], Task())
        points = read_offsets(manager.files, str(tmp_path / "recovery-point-offset-checkpoint"))
        assert points == {("a", 0): 2, ("b", 0): 1}


@pytest.mark.parametrize("name", ["t-1", "t-0/kafkafs-topic.properties"])
def test_a_refused_start_leaves_the_directory_closed(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
    path = tmp_path / name
    if path.exists():
        path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with pytest.raises((OSError, InvalidConfig), match="symbolic link"):
        LogManager.open(str(tmp_path))
    assert before == {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert (tmp_path / ".kafka_cleanshutdown") in before


def test_of_what_could_not_be_opened_nobody_says_that_it_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
    marker = tmp_path / ".kafka_cleanshutdown"
    (tmp_path / "t-1").rename(tmp_path / "aside")
    (tmp_path / "t-1").symlink_to(tmp_path / "aside")
    for is_clean in (True, False):
        if not is_clean:
            marker.unlink()
        manager = LogManager.open(str(tmp_path), keeps_faulty=True, clock_ms=lambda: NOW_MS)
        assert manager.topics.faulty == [("t", 1)]
        manager.close()
        assert marker.exists() == is_clean
