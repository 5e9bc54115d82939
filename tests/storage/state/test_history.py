"""The nonce stays while the past does, and never longer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.record.control import COMMIT
from storage.record.header import size_at
from storage.segment.reader import SegmentReader
from storage.task import Task
from tests.broker_files import BrokerDirectory, start_epochs_at
from tests.crash.disk import SimulatedDisk
from tests.oracle import crc32c
from tests.storage.logs import NOW_MS, append, batch, flip, opened, opened_log, values
from tests.storage.recovery.test_partition import fill, last_log
from tests.storage.transactions import marker, produced


def nonce(data: Path, **options: bool) -> int:
    with LogManager.open(str(data), **options) as manager:  # type: ignore[arg-type]
        return manager.log("t", 0).history.nonce


def test_it_stays_over_appends_rolls_and_clean_restarts(tmp_path: Path) -> None:
    fill(tmp_path)
    first = nonce(tmp_path)
    with opened_log(tmp_path) as log:
        log.history.set_base("values", 0, -17)
        append(log, b"more")
        log.roll(NOW_MS)
        append(log, b"more")
    with opened(tmp_path) as manager:
        history = manager.log("t", 0).history
        assert history.nonce == first
        assert history.base("values") == (0, -17)
        assert history.base("other") == (-1, 0)


def test_a_segment_counts_as_changed_if_the_history_is_first_read_after_a_truncation(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with opened(tmp_path):
        pass
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        manager.truncate(log, 9)
        assert log.active.base_offset < log.history.unchanged_from


def test_a_segment_that_was_changed_counts_as_changed_in_a_new_history(tmp_path: Path) -> None:
    fill(tmp_path)
    nonce(tmp_path)
    path = tmp_path / "t-0" / "kafkafs.history"
    lines = [line for line in path.read_text().splitlines() if "unchanged" not in line]
    lines = [line.replace("sealed ", "sealed 1") for line in lines]
    path.write_text("\n".join([*lines, "unchanged-from 100", ""]))
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).history.unchanged_from == 100


@pytest.mark.parametrize("size", [1, 60, 61, 62, 3000])
def test_it_stays_where_a_kill_fell_into_a_write(tmp_path: Path, size: int) -> None:
    """Of a batch that was not acknowledged nothing has ever been shown."""
    fill(tmp_path)
    first, follow = nonce(tmp_path), follow_nonce(tmp_path)
    manager = LogManager.open(str(tmp_path))
    append(manager.log("t", 0), b"more")
    manager.abandon()
    with last_log(tmp_path).open("ab") as file:
        file.write(batch([b"x" * 9000])[:size].replace(b"\0", b"\1", 1))
    assert (nonce(tmp_path), follow_nonce(tmp_path)) == (first, follow)
    assert list((tmp_path / "t-0").glob("*.cut"))


def test_a_new_one_where_recovery_has_cut_what_was_shown(tmp_path: Path) -> None:
    fill(tmp_path)
    first = nonce(tmp_path)
    manager = LogManager.open(str(tmp_path))
    append(manager.log("t", 0), b"more")
    manager.abandon()
    flip(last_log(tmp_path), -3)
    assert nonce(tmp_path) != first


def test_a_new_one_after_the_machine_went_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    first = nonce(tmp_path)
    monkeypatch.setattr("storage.state.history.boot_id", lambda: "another")
    assert nonce(tmp_path) == first, "closed cleanly before"
    manager = LogManager.open(str(tmp_path))
    assert manager.log("t", 0).history.nonce == first
    manager.abandon()
    monkeypatch.setattr("storage.state.history.boot_id", lambda: "a third")
    assert nonce(tmp_path) != first


def mark_as_brokers(data: Path) -> None:
    """Make it a broker's directory, so that missing segments were deleted or cleaned."""
    (data / "meta.properties").write_text("version=1\nnode.id=1\n")


@pytest.mark.parametrize("change", ["head", "sealed", "last batch", "its bytes"])
def test_a_new_one_where_another_program_rewrote_the_log(tmp_path: Path, change: str) -> None:
    fill(tmp_path)
    first = nonce(tmp_path)
    mark_as_brokers(tmp_path)
    logs = sorted((tmp_path / "t-0").glob("*.log"))
    if change == "head":
        for path in (tmp_path / "t-0").glob(f"{0:020d}.*"):
            path.unlink()
    elif change == "sealed":
        data = logs[0].read_bytes()
        logs[0].write_bytes(data[: len(data) // 4])
        for suffix in (".index", ".timeindex"):
            logs[0].with_suffix(suffix).unlink()
    elif change == "its bytes":
        other = bytearray(logs[-1].read_bytes())
        at = 0
        while (behind := at + size_at(other, at)) < len(other):
            at = behind
        other[at + 42] ^= 1
        other[at + 17 : at + 21] = crc32c(bytes(other[at + 21 :])).to_bytes(4, "big")
        logs[-1].write_bytes(other)
    else:
        data = logs[-1].read_bytes()
        logs[-1].write_bytes(data[: 3 * len(data) // 4])
        for suffix in (".index", ".timeindex"):
            logs[-1].with_suffix(suffix).write_bytes(b"")
    assert nonce(tmp_path) != first


def test_read_only_it_is_the_same_each_time_and_nothing_is_written(tmp_path: Path) -> None:
    fill(tmp_path)
    before = sorted(os.listdir(tmp_path / "t-0"))
    assert nonce(tmp_path, read_only=True) == nonce(tmp_path, read_only=True)
    assert sorted(os.listdir(tmp_path / "t-0")) == before
    first = nonce(tmp_path)
    assert nonce(tmp_path, read_only=True) == first


def nonce_aside(data: Path, aside: Path) -> int:
    """The nonce for a reader that keeps the history elsewhere."""
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        log.history_directory = str(aside)
        return log.history.nonce


def test_one_that_is_kept_aside(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    data.mkdir()
    fill(data)
    before = sorted(os.listdir(data / "t-0"))

    drawn = {nonce_aside(data, aside) for _ in range(2)}
    assert len(drawn) == 2, "there is no such directory"
    aside.mkdir()
    first = nonce_aside(data, aside)
    assert first not in drawn
    os.utime(aside / "kafkafs.history", (0, 0))
    assert nonce_aside(data, aside) == first
    assert (aside / "kafkafs.history").stat().st_mtime == 0, "the same content is not written again"
    assert sorted(os.listdir(data / "t-0")) == before
    logs = sorted((data / "t-0").glob("*.log"))
    with open(logs[-1], "ab") as file:
        file.write(b"half a batch")
    assert nonce_aside(data, aside) == first, "it may be that it is just being written"
    os.truncate(logs[-1], logs[-1].stat().st_size // 2)
    for suffix in (".index", ".timeindex"):
        logs[-1].with_suffix(suffix).write_bytes(b"")
    cut = nonce_aside(data, aside)
    assert cut != first
    (aside / "kafkafs.history").write_text("nonsense")
    assert nonce_aside(data, aside) not in (first, cut)


@pytest.mark.parametrize("is_clean", [True, False])
def test_one_that_is_kept_aside_begins_anew_after_a_reboot_without_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    data.mkdir()
    aside.mkdir()
    fill(data)
    if is_clean:
        with LogManager.open(str(data)):
            pass

    first = nonce_aside(data, aside)
    assert nonce_aside(data, aside) == first
    restart_elsewhere(monkeypatch, "boot")
    assert (nonce_aside(data, aside) == first) == is_clean


def test_a_new_one_where_a_transaction_is_open_that_was_decided(tmp_path: Path) -> None:
    """A cleaner has removed its marker, and a broker that starts removes the snapshot below the log
    start that knew of it.
    """
    data, aside = tmp_path / "data", tmp_path / "aside"
    aside.mkdir()
    partition = BrokerDirectory(data).partition()
    partition.put(bytes(produced([b"a"], transactional=True)), b"a")
    size = partition.active.stat().st_size
    partition.put(bytes(marker(7, COMMIT)))
    os.truncate(partition.active, size)
    partition.roll()
    partition.append(b"b")

    def opened() -> tuple[int, int, int]:
        with LogManager.open(str(data), read_only=True) as manager:
            log = manager.log("t", 0)
            log.history_directory = str(aside)
            return log.last_stable_offset, log.history.nonce, log.history.follow_nonce

    first = opened()
    assert first[0] == partition.next_offset
    assert opened() == first
    for snapshot in partition.directory.glob(f"*{paths.SNAPSHOT}"):
        snapshot.unlink()
    then = opened()
    assert then[0] == 0
    assert then[1] != first[1]
    assert then[2] != first[2]


def test_one_that_is_kept_aside_begins_as_the_writers(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    data.mkdir()
    aside.mkdir()
    fill(data)
    first = nonce(data)
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        log.history_directory = str(aside)
        assert log.history.nonce == first
        log.history.now = log.history.now._replace(nonce=7)
        log.history.save(log.segments)
        again = log.history.nonce
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        log.history_directory = str(aside)
        assert log.history.nonce == again
    assert nonce(data) == first


@pytest.mark.parametrize("is_read", [False, True])
def test_one_that_is_kept_aside_has_the_positions_of_the_writer_if_these_have_begun(
    tmp_path: Path, is_read: bool
) -> None:
    """Else each of the two begins with the log start that it finds when it is read."""
    data, aside = tmp_path / "data", tmp_path / "aside"
    data.mkdir()
    aside.mkdir()
    fill(data)
    with LogManager.open(str(data)) as manager:
        log = manager.log("t", 0)
        if is_read:
            log.history.set_base("values", log.segments[0].base_offset, 0)
        log.save_history()
        writers = log.history.follow_nonce

    def opened() -> int:
        with LogManager.open(str(data), read_only=True) as manager:
            log = manager.log("t", 0)
            log.history_directory = str(aside)
            return log.history.follow_nonce

    first = opened()
    assert (first == writers) == is_read
    assert opened() == first
    assert follow_nonce(data) == writers


def test_a_file_that_is_none_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path)
    nonce(tmp_path)
    path = tmp_path / "t-0" / "kafkafs.history"
    path.write_text("version 0\nnonce zz\n")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert manager.log("t", 0).history.nonce
    assert str(path) in caplog.text
    assert path.read_text() == "version 0\nnonce zz\n"
    first = nonce(tmp_path)
    assert path.with_name("kafkafs.history.bad").read_text() == "version 0\nnonce zz\n"
    assert nonce(tmp_path) == first


def follow_nonce(data: Path) -> int:
    with LogManager.open(str(data)) as manager:
        return manager.log("t", 0).history.follow_nonce


def delete(data: Path, base: int) -> None:
    """As a broker does."""
    mark_as_brokers(data)
    for path in (data / "t-0").glob(f"{base:020d}.*"):
        path.unlink()
    start_epochs_at(data / "t-0", bases(data)[0])


def bases(data: Path) -> list[int]:
    return [int(path.stem) for path in sorted((data / "t-0").glob("*.log"))]


def test_the_base_holds_while_the_segments_behind_it_do(tmp_path: Path) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        first = history.nonce, history.follow_nonce
        second = bases(tmp_path)[1]
        history.set_base("values", second, 700)
    delete(tmp_path, 0)
    assert nonce(tmp_path) != first[0]
    assert follow_nonce(tmp_path) == first[1]
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.log("t", 0).history.base("values") == (second, 700)
    delete(tmp_path, second)
    assert follow_nonce(tmp_path) != first[1]
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.log("t", 0).history.base("values") == (-1, 0)


def test_a_later_base_takes_the_place_of_one_that_others_have_deleted(tmp_path: Path) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        history.set_when_known("values", 5, 5)
        assert history.base("values") == (-1, 0), "later than none"
        history.set_base("values", 0, -3)
        last = bases(tmp_path)[-1]
        history.set_when_known("values", last, 900)
        assert history.base("values") == (0, -3)
        first = history.follow_nonce
    delete(tmp_path, 0)
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        assert history.follow_nonce == first
        assert history.base("values") == (last, 900)
        assert history.now.passed.get("values", ()) == ((0, -3),)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_what_is_written_ahead_holds_before_and_after(tmp_path: Path, is_carried_out: bool) -> None:
    fill(tmp_path)
    second = bases(tmp_path)[1]
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    history = log.history
    history.set_base("values", 0, 0)
    old, follow = history.nonce, history.follow_nonce
    past = history.now.moved(4711, second, {"values": ((0, 0), (second, 50))})
    version, last, left = history.version, SegmentReader(log.active).last_batch(), log.segments[1:]
    assert history.save_ahead(history.now, past, left, last, version)
    assert not history.save_ahead(history.now, past, left, None, version), "too late"
    assert (history.nonce, history.base("values")) == (old, (0, 0))
    manager.abandon()
    if is_carried_out:
        delete(tmp_path, 0)
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        assert (history.nonce == 4711) == is_carried_out
        assert history.nonce != old
        assert (history.follow_nonce, history.base("values")) == (follow, (second, 50))
        assert history.now.passed.get("values", ()) == ((0, 0),)


def test_segments_below_the_log_start_do_not_count(tmp_path: Path) -> None:
    """Nothing is shown of them: they may be there or not."""
    fill(tmp_path)
    second = bases(tmp_path)[1]
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        assert log.history.nonce
        log.raise_log_start(second + 1)
        manager.checkpoint()
        first = log.history.nonce
    delete(tmp_path, 0)
    assert nonce(tmp_path) == first


def test_a_base_is_durable_when_it_is_saved(tmp_path: Path) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        history = log.history
        assert history.is_durable("values")
        history.set_base("values", 0, 0)
        assert not history.is_durable("values")
        history.save(log.segments)
        assert history.is_durable("values")


def test_positions_that_hang_on_a_segment_below_the_log_start_stay_after_a_kill(
    tmp_path: Path,
) -> None:
    """All is deleted, and the segment that it was in is sealed later: nobody has prepared for that
    one to go.
    """
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        history = log.history
        history.set_base("values", log.active.base_offset, 1234)
        history.save(log.segments)
        follow = history.follow_nonce
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    base, end = log.active.base_offset, log.log_end_offset
    delete_records(manager, log, end, Task())
    log.roll(NOW_MS)
    append(log, b"after")
    manager.abandon()
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert log.log_start_offset == end
        assert values(log) == [b"after"]
        assert log.history.follow_nonce == follow
        assert log.history.base("values") == (base, 1234)
        # A segment that no position depends on is deleted.
        assert log.segments[0].base_offset == base
        retain(manager, [log], Task(), NOW_MS)
        assert log.segments[0].base_offset == end


# -- what `.follow` has shown --------------------------------------------------------------------


def restart_elsewhere(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """From now on it is another boot, or the file system was mounted again."""
    if where == "boot":
        monkeypatch.setattr("storage.state.history.boot_id", lambda: "another")
    elif where == "mount":
        monkeypatch.setattr(Files, "mount_id", lambda *_: "another")


def has_line(data: Path) -> bool:
    return "\nshown-above " in (data / "t-0" / "kafkafs.history").read_text()


LOST = ["", "unflushed", "damaged"]


@pytest.mark.parametrize(
    ("where", "shown", "lost", "is_kept"),
    [
        # A kill alone changes nothing; recovery that cuts records does.
        ("here", "unflushed", "", True),
        ("here", "unflushed", "damaged", False),
        ("here", "unflushed", "torn", False),
        *(
            (where, shown, lost, shown != "unflushed")
            for where in ("boot", "mount")
            for shown in ("flushed", "since flushed", "unflushed")
            for lost in (LOST if shown == "flushed" else LOST[:1])
        ),
        # A disk that ignores fsync may lose flushed records, too.
        ("boot", "flushed", "flushed", False),
    ],
)
def test_positions_begin_anew_only_where_what_was_shown_may_be_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    shown: str,
    lost: str,
    is_kept: bool,
) -> None:
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    history = log.history
    history.set_base("values", 0, 0)
    append(log, b"flushed")
    log.flush()
    manager.checkpoint()
    history.save(log.segments)
    before = history.follow_nonce
    assert not history.note_shown(log.log_end_offset)
    log.roll(NOW_MS)
    flushed_log, flushed_size = last_log(tmp_path), 0
    append(log, b"sealed")
    log.roll(NOW_MS)
    append(log, b"last")
    # Its fingerprint has what is not flushed.
    history.save(log.segments)
    if shown != "flushed":
        assert history.note_shown(log.log_end_offset)
        assert not history.note_shown(log.log_end_offset), "it is written already"
        assert has_line(tmp_path)
        history.save(log.segments)
        assert has_line(tmp_path), "nothing is flushed yet"
    if shown == "since flushed":
        log.flush()
        history.save(log.segments)
        manager.checkpoint()
    assert has_line(tmp_path) == (shown == "unflushed")
    manager.abandon()
    if lost == "damaged":
        flip(last_log(tmp_path), -3)
    elif lost == "torn":
        os.truncate(last_log(tmp_path), last_log(tmp_path).stat().st_size - 3)
    elif lost:
        last_log(tmp_path).unlink()
        if lost == "flushed":
            flushed_log = sorted((tmp_path / "t-0").glob("*.log"))[-2]
            flushed_size = 1
        os.truncate(flushed_log, flushed_size)
    restart_elsewhere(monkeypatch, where)
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        assert (history.follow_nonce == before) == is_kept
        assert history.base("values") == ((0, 0) if is_kept else (-1, 0))
    assert not has_line(tmp_path), "closed cleanly"


def test_positions_begin_anew_where_flushed_records_are_lost_that_the_history_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    before, size = log.history.follow_nonce, log.active.size
    append(log, b"flushed")
    log.flush()
    manager.checkpoint()
    manager.abandon()
    os.truncate(last_log(tmp_path), size)
    restart_elsewhere(monkeypatch, "boot")
    with LogManager.open(str(tmp_path)) as manager:
        assert manager.log("t", 0).lost_end
        assert manager.log("t", 0).history.follow_nonce != before


def test_a_start_that_nobody_looked_at_forgets_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    before = log.history.nonce, log.history.follow_nonce
    append(log, b"lost")
    log.history.note_shown(log.log_end_offset)
    manager.abandon()
    restart_elsewhere(monkeypatch, "boot")
    with LogManager.open(str(tmp_path)):
        pass
    with LogManager.open(str(tmp_path)) as manager:
        history = manager.log("t", 0).history
        assert history.nonce != before[0]
        assert history.follow_nonce != before[1]


def test_a_line_of_the_last_process_goes_with_the_flush(tmp_path: Path) -> None:
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    append(log, b"shown")
    log.history.note_shown(log.log_end_offset)
    manager.abandon()
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    log.history.save(log.segments)
    assert has_line(tmp_path)
    log.flush()
    log.history.save(log.segments)
    assert not has_line(tmp_path)
    manager.abandon()


def test_a_line_that_the_disk_refuses_lets_nothing_be_shown(tmp_path: Path) -> None:
    fill(tmp_path)
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = manager.log("t", 0)
    history = log.history
    append(log, b"shown")
    disk.fail_next("fsync", errno.EIO, suffix="kafkafs.history.tmp")
    with pytest.raises(OSError, match="Input/output"):
        history.note_shown(log.log_end_offset)
    assert not has_line(tmp_path)
    assert history.note_shown(log.log_end_offset)
    assert has_line(tmp_path)
    log.flush()
    disk.fail_next("fsync", errno.EIO, suffix="kafkafs.history.tmp")
    with pytest.raises(OSError, match="Input/output"):
        history.save(log.segments)
    # It may be there or not: more is shown only after it is written again.
    append(log, b"more")
    assert history.note_shown(log.log_end_offset)
    log.flush()
    history.save(log.segments)
    assert not has_line(tmp_path)
    manager.abandon()
