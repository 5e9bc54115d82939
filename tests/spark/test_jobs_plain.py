"""Parts of the jobs that need no session: sums of figures, the chart, messages of failures."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.spark.jobs import chart, export, export_state, import_
from kafkafs.spark.jobs.import_records import ImportOptions
from kafkafs.spark.jobs.range_stats import WIDTHS_MS, RangeStats
from kafkafs.spark.jobs.selection import EVERYTHING, Selection
from kafkafs.spark.jobs.session import reason
from kafkafs.spark.jobs.stats_report import TopicStats
from storage import LogManager
from storage.errors import FaultyPartition, InvalidConfig, UnknownTopicOrPartition
from storage.record.batch import Record, encode
from storage.record.columns._columns import decode_columns
from tests.storage.logs import NOW_MS, opened

GAP_MS = 5000
Item = tuple[int, int, bytes | None, bytes | None]
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),  # how far the offset is from the one before
        st.one_of(st.just(-1), st.integers(0, 60_000), st.just(10**12)),
        st.one_of(st.none(), st.binary(max_size=4)),
        st.one_of(st.none(), st.integers(0, 3000).map(bytes)),
    ),
    min_size=1,
    max_size=30,
)


def counted(*parts: list[Record]) -> RangeStats:
    """Return the figures of records that are read in these parts."""
    stats = RangeStats("t", 0, 0, 0)
    for records in parts:
        data = encode(records)
        columns = decode_columns(data, 0, len(data), timestamps_us=True)
        stats.count(columns, GAP_MS)
    return stats


@example([[(1, 1000, None, None)], [(1, -1, None, None), (1, 60_000, b"k", b"v")]])
@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_figures_add_up_however_records_are_cut(lists: list[list[Item]]) -> None:
    offset = 0
    parts: list[list[Record]] = []
    for items in lists:
        parts.append([])
        for step, time_ms, key, value in items:
            offset += step
            parts[-1].append(Record(offset, time_ms, 0, key, value))
    records = list(chain.from_iterable(parts))
    together = counted(records)
    assert counted(*parts) == together
    added = RangeStats("t", 0, 0, 0)
    for part in parts:
        added.add(RangeStats.decode(counted(part).encode()), GAP_MS)
    assert added == together
    newest: int | None = None
    gaps = []
    for record in records:
        if record.timestamp >= 0:
            if newest is not None and record.timestamp - newest > GAP_MS:
                gaps.append((newest, record.timestamp, record.offset))
            newest = max(newest or 0, record.timestamp)
    assert together.gaps == gaps
    assert together.missing_offsets == offset - records[0].offset + 1 - len(records)
    sizes = sorted(len(record.key or b"") + len(record.value or b"") for record in records)
    for share, rank in ((0.5, -(-len(sizes) // 2) - 1), (1.0, -1)):
        assert together.quantile(share) == pytest.approx(sizes[rank], rel=0.01)


def test_bins_grow_with_the_time_they_cover() -> None:
    stats = RangeStats("t", 0, 0, 0)
    for days in (1, 100, 10_000):
        times = np.arange(0, days * 86_400_000, max(days * 86_400, 1000), dtype=np.int64)
        stats._count_bins(times, np.ones_like(times))
    assert len(stats.bins) <= 1500
    assert stats.width_ms in WIDTHS_MS
    assert sum(records for records, _ in stats.bins.values()) == 3000


def test_a_chart_is_drawn_of_whatever_there_is(tmp_path: Path) -> None:
    many = []
    for number in range(60):
        stats = RangeStats(f"topic-{number // 5}", number % 5, 0, 0)
        stats.bins = {NOW_MS - NOW_MS % 1000 + 1000 * number: [number, number]}
        stats.records = number
        many.append(stats)
    sizes = {(stats.topic, stats.partition): 1000 for stats in many}
    for name, partitions in (("many.png", many), ("one.svg", many[:1]), ("none.svg", [])):
        path = tmp_path / name
        chart.check(str(path))
        places = {(stats.topic, stats.partition) for stats in partitions}
        log_bytes = {place: size for place, size in sizes.items() if place in places}
        chart.draw(TopicStats(partitions, log_bytes, {}, True), str(path))
        assert path.stat().st_size > 1000
    for wrong in ("chart.pdf", "nowhere/chart.png"):
        with pytest.raises(InvalidConfig):
            chart.check(str(tmp_path / wrong))


def test_a_failure_is_told_in_a_line() -> None:
    task = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "x.py", line 1, in f
    raise CorruptRecord("a: b")
storage.errors.CorruptRecord: the CRC is wrong (file /d/t-0/0.log, position 264)

\tat org.apache.spark.Something
"""
    assert reason(Exception(task)) == "the CRC is wrong (file /d/t-0/0.log, position 264)"
    java = "An error occurred while calling o1.x.\n: a.B: c\nCaused by: d.E: f\n\tat g"
    assert reason(Exception(java)) == "d.E: f"
    assert reason(Exception("one\ntwo")) == "one"
    assert reason(KeyError()) == "KeyError"


def test_an_export_knows_its_data_directory_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options = str(tmp_path / "out"), export.ExportOptions()
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "one")
    with export_state.begun(out, options.content("data")):
        pass
    for path in ("data", "../one/data", str(tmp_path / "one" / "data")):
        assert export.plan(path, out).figures["offsets"] == 0
        assert export.plan(path, f"file://{out}").figures["offsets"] == 0
    # `failOnDataLoss` may change: a run that failed because of lost data can continue.
    export.plan("../one/data", out, export.ExportOptions(source={"failOnDataLoss": "false"}))
    with pytest.raises(InvalidConfig, match="of other data"):
        export.plan("../one/data", out, export.ExportOptions(source={"startingTimestamp": "5"}))
    monkeypatch.chdir(tmp_path / "two")
    for name in (out, f"file://{out}"):
        with pytest.raises(InvalidConfig, match="of other data"):
            export.plan("data", name)


def test_a_job_does_not_leave_out_a_partition_that_cannot_be_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.unlink()
    path.symlink_to("elsewhere")
    with LogManager.open(str(tmp_path), read_only=True, keeps_faulty=True) as manager:
        with pytest.raises(FaultyPartition, match="symbolic link"):
            EVERYTHING.logs(manager)
        (log,) = Selection((("t", 1),)).logs(manager)
        assert log is manager.log("t", 1)


def test_an_import_into_a_directory_that_has_some_partitions(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 3)
    shutil.rmtree(tmp_path / "t-1")
    options = ImportOptions("t", (__file__,), "text")
    for number in (0, 2):
        import_.check(str(tmp_path), options._replace(partition=number))
    for number in (1, 3):
        with pytest.raises(UnknownTopicOrPartition, match=f"'t' has no partition {number}"):
            import_.check(str(tmp_path), options._replace(partition=number))


def test_an_export_of_topics_and_partitions(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        for topic in ("a", "b"):
            manager.create_topic(topic, 2)

    def subscription(*places: tuple[str, int | None]) -> dict[str, str]:
        return export._subscription(Selection(places))

    assert subscription(("a", None), ("b", None), ("a", 1)) == {"subscribe": "a,b"}
    assert subscription(("b", 1), ("a", 0), ("b", 0)) == {"assign": '{"b": [1, 0], "a": [0]}'}
    mixed = export.ExportOptions(Selection((("a", None), ("b", 1))))
    for call in (export.check, export.plan):
        with pytest.raises(InvalidConfig, match="name each partition of a, too, or export b into"):
            call(str(data), str(out), mixed)
    assert not out.exists()
