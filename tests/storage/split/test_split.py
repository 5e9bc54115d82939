"""storage.split.split: where a log is cut, and at what cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import OffsetOutOfRange
from storage.files import Files
from tests.storage.logs import NOW_MS, append
from tests.storage.splitting import (
    EVERYTHING,
    UNCOMMITTED,
    a_log,
    check_splits,
    lines,
    plan,
    read,
    read_all,
    records,
)
from tests.storage.transactions import Client


def test_splits_are_of_about_the_size_asked_for(tmp_path: Path) -> None:
    with a_log(tmp_path, log_index_interval_bytes=4096) as log:
        lines(log, 300)
        for target in (10_000, 50_000, 100_000):
            splits = plan(log, target=target)
            assert len(splits) == pytest.approx(log.size / target, abs=1.5 + log.size / target / 3)
            assert sum(split.size for split in splits) == log.size
            for split in splits[:-1]:
                assert target <= split.size <= target + 6000
            check_splits(splits, 0, 3000)
            assert [row.offset for row in read_all(splits)] == list(range(3000))


def test_the_first_splits_may_be_smaller(tmp_path: Path) -> None:
    with a_log(tmp_path, log_index_interval_bytes=100) as log:
        for _ in range(4):
            lines(log, 100)
            log.roll(NOW_MS)
        target = log.size // 2
        splits = plan(log, target=target, first_bytes=2000)
        assert [split.size for split in splits[:2]] == [
            pytest.approx(size, abs=1500) for size in (2000, 16_000)
        ]
        assert [row.offset for row in read_all(splits)] == list(range(4000))
        assert sum(split.size for split in splits) == log.size
        assert plan(log, target=target, first_bytes=2 * target) == plan(log, target=target)
        assert plan(log, 10, 20, first_bytes=1) == plan(log, 10, 20)


def test_small_segments_share_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        for _ in range(10):
            lines(log, 3)
            log.roll(NOW_MS)
        splits = plan(log, target=log.size // 3 + 1)
        assert len(splits) == 3
        assert [row.offset for row in read_all(splits)] == list(range(300))
        (whole,) = plan(log)
        assert (whole.base_offset, whole.position, whole.size) == (0, 0, log.size)
        assert [row.offset for row in read(whole)] == list(range(300))


def test_an_empty_range_has_no_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        assert plan(log) == []
        lines(log, 1)
        assert plan(log, 4, 4) == []
        assert plan(log, 10, 10) == []
        for first, end in ((-1, 5), (0, 11), (11, 12)):
            with pytest.raises(OffsetOutOfRange):
                plan(log, first, end)


class CountingFiles(Files):
    """Counts what is read."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.reads: list[str] = []

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads.append(self.paths[fd])
        return super().pread(fd, size, position)


def test_planning_reads_a_few_index_entries_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path, log_index_interval_bytes=200) as log:
        lines(log, 2000, 10)
    files = CountingFiles()
    with LogManager.open(str(tmp_path), files=files, read_only=True) as manager:
        log = manager.log("t", 0)
        plan(log)
        for target, count in ((log.size // 4, 4), (log.size // 40, 40)):
            files.reads.clear()
            assert len(plan(log, target=target)) == pytest.approx(count, abs=2)
            assert not [path for path in files.reads if path.endswith(".log")]
            assert len(files.reads) < 60 * (count + 2)


@pytest.mark.parametrize("kind", ["missing", "empty", "zeros", "falling", "odd", "beyond"])
def test_an_index_that_is_of_no_use(tmp_path: Path, kind: str) -> None:
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        expected = records(log, 0, 310)
        splits = plan(log, target=1)
        index = Path(log.directory) / f"{0:020}.index"
    stored = index.read_bytes()
    data = {
        "empty": b"",
        "zeros": bytes(len(stored)),
        "falling": stored[8:] + stored[:8],
        "odd": stored + b"abc",
        "beyond": stored + b"\x7f\xff\xff\xff" * 2,
    }
    index.unlink()
    if kind in data:
        index.write_bytes(data[kind])
    assert read_all(splits) == expected
    assert read(splits[5]._replace(position=17)) == read(splits[5])
    assert read(splits[5]._replace(position=1 << 40)) == read(splits[5])
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        again = plan(log, target=1)
        assert read_all(again) == expected
        assert len(again) < 5 or kind in ("odd", "beyond")


def test_aborted_transactions_that_touch_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        one, two = Client(log, 1), Client(log, 2)
        one.send(b"lost 0", b"lost 1")  # 0, 1
        two.send(b"kept 2")  # 2
        lines(log, 2)  # 3 to 22
        log.roll(NOW_MS)
        one.abort()  # 23
        two.send(b"kept 24")
        two.commit()
        one.send(b"kept 26")
        one.commit()
        two.send(b"lost 28")
        two.abort()
        spans = [[tuple(span) for span in split.aborted] for split in plan(log, target=1)]
        assert spans[0] == [(1, 0, 23)]
        assert spans[-1] == [(2, 28, 29)]
        assert all(len(some) <= 1 for some in spans)
        for target in (1, 500, EVERYTHING):
            found = read_all(plan(log, target=target))
            assert found == records(log, 0, 30)
            assert [row.offset for row in found] == [2, *range(3, 23), 24, 26]
            everything = read_all(plan(log, target=target, isolation=UNCOMMITTED))
            assert [row.offset for row in everything] == [*range(23), 24, 26, 28]
        two.send(b"undecided")
        assert plan(log)[-1].to_offset == 30
        with pytest.raises(OffsetOutOfRange):
            plan(log, 0, 31)
        assert [row.offset for row in read_all(plan(log, 30, 31, isolation=UNCOMMITTED))] == [30]


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs/dev/storage-library.md").read_text()
    (code,) = (
        part.split("```")[0] for part in text.split("```python\n")[1:] if "plan_splits" in part
    )
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        append(manager.create_topic("orders", 1).partitions[0], b"first", b"second")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.startswith("2 bytearray(")
