"""The owner puts in what others have cleaned, or refuses it and changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.swap_request import SwapRequest
from storage.errors import InvalidRecord, SwapRefused, TaskCancelled, UnknownTopicOrPartition
from storage.log.append import append_batches
from storage.owner.request_kinds import SWAP, decode
from storage.settings.setting_files import TOPIC_FILE
from storage.task import Task
from tests.storage.compaction.cleaned import Clock, clean, compacted, contents, put, roll
from tests.storage.compaction.staging import staged, staged_request
from tests.storage.compaction.test_publishing import remove
from tests.storage.logs import NOW_MS, NOW_NS, flip
from tests.storage.producers import Producer
from tests.storage.segmented import Turns

DAY_MS = 86_400_000


def fill(log: Log) -> None:
    """Two sealed segments, which become one with a transaction that was aborted in its index."""
    bad = Producer(2, transactional=True)
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    append_batches(log, bytearray(bad.batch(b"4")), now_ns=NOW_NS)
    roll(log)
    put(log, (b"c", b"5"), (b"b", b"6"))
    append_batches(log, bytearray(bad.abort()), now_ns=NOW_NS)
    roll(log)
    put(log, (b"a", b"7"))


def listing(log: Log) -> dict[str, bytes]:
    """All but what is set on the topic."""
    files = Path(log.directory).iterdir()
    return {path.name: path.read_bytes() for path in files if path.name != TOPIC_FILE}


def swap(manager: LogManager, request: SwapRequest, task: Task | None = None) -> object:
    return SWAP.carry_out(manager, request, task or Task(), lambda: NOW_NS)


def decoded(text: str) -> SwapRequest:
    """The request in a line for the owner."""
    request = decode(b'{"swap":%s}' % text.encode()).request
    assert isinstance(request, SwapRequest)
    return request


def asked(manager: LogManager, log: Log) -> SwapRequest:
    """As it comes over a line."""
    text = staged_request(manager, log).encode()
    assert "\n" not in text
    return decoded(text)


def refused(
    manager: LogManager,
    log: Log,
    request: SwapRequest,
    reason: str,
    *,
    kind: type[Exception] = SwapRefused,
    before: dict[str, bytes],
) -> None:
    """Nothing has changed, and the staged files are removed."""
    read, dirty = contents(log), LogCleaner(manager).first_dirty(log)
    with pytest.raises(kind, match=reason):
        swap(manager, request)
    assert listing(log) == before
    assert contents(log) == read
    assert (LogCleaner(manager).first_dirty(log) or 0) == (dirty or 0)
    assert not log.cleaning


def clean_up_to(offset: int) -> Callable[[LogManager, Log], object]:
    return lambda manager, log: manager.checkpoints.cleaned.update({("t", 0): offset})


def change_setting(name: str, value: str) -> Callable[[LogManager, Log], object]:
    return lambda manager, log: manager.change_topic_settings("t", {name: value})


def test_it_is_as_after_a_cleaning_of_our_own(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        assert len(staged(os.listdir(log.directory))) == 4 * len(request.new)
        put(log, (b"x", b"what is appended meanwhile"))
        cleaned = swap(manager, request)
        assert SWAP.decode_answer(json.loads(json.dumps(SWAP.encode_answer(cleaned)))) == cleaned  # type: ignore[arg-type]
        assert [offset for offset, *_ in contents(log)] == [2, 4, 5, 7, 8]
        assert [segment.base_offset for segment in log.segments] == [0, 7]
        assert LogCleaner(manager).first_dirty(log) == 7
        assert manager.cleaner_counters.rounds == 1
        assert manager.cleaner_counters.records_kept == 4
        assert staged(os.listdir(log.directory)) == []
        again = swap(manager, request)
        assert again == cleaned, "who asks again gets the same answer"
        assert manager.cleaner_counters.rounds == 1
    with compacted(tmp_path) as (manager, log):
        assert [offset for offset, *_ in contents(log)] == [2, 4, 5, 7, 8]


def test_nothing_takes_the_place_of_what_stays_as_it_is(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1"), (b"b", b"2"))
        roll(log)
        segments = log.segments
        request = asked(manager, log)
        assert request.new == ()
        swap(manager, request)
        assert log.segments is segments
        assert LogCleaner(manager).first_dirty(log) == 2
        swap(manager, request)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (clean, "its segments have changed"),
        # The round that was staged had a map of more than is dirty.
        (clean_up_to(4), "it is compacted up to offset 4, but was up to 0"),
        (change_setting("min.compaction.lag.ms", "1000"), "can be compacted only up to offset 0"),
        (change_setting("cleanup.policy", "delete"), "does not include compact"),
    ],
)
def test_it_has_changed_meanwhile(
    tmp_path: Path, change: Callable[[LogManager, Log], object], reason: str
) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        manager.checkpoint()
        request = asked(manager, log)
        change(manager, log)
        before = {name: data for name, data in listing(log).items() if "staged" not in name}
        refused(manager, log, request, reason, before=before)
        manager.checkpoints.cleaned.clear()


def test_tombstones_have_been_removed_meanwhile(tmp_path: Path) -> None:
    """A cleaning that leaves the checkpoint where it is."""
    clock = Clock()
    with compacted(tmp_path, clock=clock) as (manager, log):
        put(log, (b"a", None), (b"b", b"2"))
        roll(log)
        clean(manager, log)
        clock.now_ms += 2 * DAY_MS
        request = asked(manager, log)
        clean(manager, log)
        before = {name: data for name, data in listing(log).items() if "staged" not in name}
        refused(manager, log, request, "its segments have changed", before=before)


def test_a_cleaner_is_at_it(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        manager.checkpoint()
        before = listing(log)
        request = asked(manager, log)
        log.cleaning = True
        with pytest.raises(SwapRefused, match="is being compacted"):
            swap(manager, request)
        assert log.cleaning
        log.cleaning = False
        assert listing(log) == before


def test_the_mounts_cleaner_leaves_it_alone_meanwhile(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        cleaner = LogCleaner(manager)
        assert cleaner.filthiest(NOW_MS) is log
        seen: list[object] = []

        class Looking(Task):
            def begin(self, phase: str, total: int) -> None:
                super().begin(phase, total)
                seen.extend((cleaner.filthiest(NOW_MS), cleaner.clean(log, Task())))
                seen.append(cleaner.preview(log, Task()))

        swap(manager, request, Looking())
        assert set(seen) == {None}
        assert not log.cleaning
        assert cleaner.uncleanable == {}


def test_what_could_not_be_cleaned_can_be_again(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        mounts = LogCleaner(manager)
        mounts.uncleanable[log] = "damaged"
        swap(manager, request)
        assert mounts.uncleanable == {}


def test_its_topic_is_gone(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        manager.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartition):
            swap(manager, request)
        manager.create_topic("t", 1)
        with pytest.raises(SwapRefused, match="its segments have changed"):
            swap(manager, request)


def cut(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)


def replace(path: Path) -> None:
    data = path.read_bytes()
    path.with_suffix(".other").write_bytes(data)
    path.with_suffix(".other").rename(path)


@pytest.mark.parametrize(
    ("kind", "spoil", "reason"),
    [
        (".log", partial(flip, position=-3), "CRC"),
        (".log", cut, "is not the file that was written"),
        (".log", replace, "is not the file that was written"),
        (".log", os.unlink, "does not exist"),
        (".index", partial(flip, position=-3), "indexes do not match its batches"),
        (".timeindex", cut, "indexes do not match its batches"),
        (".index", os.unlink, "indexes do not match its batches"),
        (".txnindex", partial(flip, position=9), "transactions that the log does not have"),
    ],
)
def test_new_files_that_are_not_whole(
    tmp_path: Path, kind: str, spoil: Callable[[Path], None], reason: str
) -> None:
    with compacted(tmp_path, log_index_interval_bytes=50) as (manager, log):
        fill(log)
        log.flush()
        manager.checkpoint()
        before = listing(log)
        request = asked(manager, log)
        [path] = (
            each
            for each in Path(log.directory).glob(f"*{kind}.*.staged")
            if each.name.startswith("00000000000000000000")
        )
        spoil(path)
        refused(manager, log, request, reason, before=before)
        assert clean(manager, log).records_kept == 4


@pytest.mark.parametrize("turn", range(1, 6))
def test_a_new_log_is_removed_meanwhile(tmp_path: Path, turn: int) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        [path] = Path(log.directory).glob("00000000000000000000.log.*.staged")
        task = Task(Turns(turn, path.unlink))
        with pytest.raises(SwapRefused, match=r"no longer exists|does not exist"):
            swap(manager, request, task)
        assert not path.exists()
        assert clean(manager, log).records_kept == 4


def test_an_interrupted_swap_is_finished_first(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        obstacle = Path(f"{log.segments[0].file_path(paths.INDEX)}{paths.DELETED}", "file")
        obstacle.parent.mkdir()
        obstacle.touch()
        request = asked(manager, log)
        with pytest.raises(IsADirectoryError):
            swap(manager, request)
        assert log.segments[0].log_path.endswith(paths.SWAP)
        put(log, (b"b", b"8"))
        roll(log)
        with pytest.raises(SwapRefused, match="is being replaced"):
            asked(manager, log)
        obstacle.unlink()
        obstacle.parent.rmdir()
        assert swap(manager, request)
        assert not list(Path(log.directory).glob(f"*{paths.SWAP}"))
        assert swap(manager, asked(manager, log))
        assert [offset for offset, *_ in contents(log)] == [4, 7, 8]


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_the_topic_is_deleted_meanwhile(tmp_path: Path, turn: int) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        task = Task(Turns(turn, lambda: manager.delete_topic("t")))
        with pytest.raises((TaskCancelled, UnknownTopicOrPartition)):
            swap(manager, request, task)
        remove(manager)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("t")]


def test_whoever_is_cancelled_leaves_it_to_the_next_owner(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        request = asked(manager, log)
        task = Task()
        task.cancel()
        with pytest.raises(TaskCancelled):
            swap(manager, request, task)
        assert swap(manager, request)
        assert [offset for offset, *_ in contents(log)] == [2, 4, 5, 7]


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../t"},
        {"topic": 1},
        {"partition": -1},
        {"partition": True},
        {"job": "a/b"},
        {"end_offset": 2},
        {"clean_up_to": 8},
        {"clean_up_to": -1},
        {"sources": []},
        {"sources": [[0, 1, 1]]},
        {"sources": [[0, 1, 1, -1]]},
        {"new": [[0, 4, 1, 1, 1, ".compact.test-0-0-0.staged"]]},
        {"new": [[0, 7, 1, 1, 1, "/../../x-0-0-0.staged"]]},
        {"new": [[0, 7, 1, 1, 1, ".other-0-0-0.staged"]]},
        {"new": [[0, 7, 1, 1, 1, 5]]},
        {"figures": {}},
        {"figures": None},
        {"more": 1},
    ],
)
def test_requests_that_make_no_sense(tmp_path: Path, change: dict[str, object]) -> None:
    with compacted(tmp_path) as (manager, log):
        fill(log)
        fields = json.loads(staged_request(manager, log).encode())
        fields["new"] = [[0, 7, 1, 1, 1, ".compact.test-0-0-0.staged"]]
        decoded(json.dumps(fields))
        with pytest.raises(InvalidRecord):
            decoded(json.dumps(fields | change))
        for text in ("", "[]", "7", "{}", "null"):
            with pytest.raises(InvalidRecord):
                decoded(text)


def test_a_checkpoint_outside_of_the_log(tmp_path: Path) -> None:
    """As after records were lost: all of it counts as dirty, and the checkpoint is right again."""
    with compacted(tmp_path) as (manager, log):
        fill(log)
        manager.checkpoints.cleaned["t", 0] = 1000
        swap(manager, asked(manager, log))
        assert LogCleaner(manager).first_dirty(log) == 7
