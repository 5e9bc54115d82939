"""`kafkafs cat --where`: the same text as without it, of the records for which it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from kafkafs.cli.common.matching import Scan, scan
from kafkafs.cli.common.mount_files import opened_tree
from kafkafs.cli.common.ranges import resolve_ranges
from kafkafs.tree.files.start_names import parse_start_name
from storage import LogManager, Record, encode
from storage.condition.parse import parse
from storage.groups.offset_records import Committed
from storage.log.append import append_batches
from storage.record.batch import decode_plain
from storage.record.plain import recompress
from tests.kafkafs.cli.conftest import Place
from tests.storage import old_logs
from tests.storage.compaction import cleaned
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, remove_head, write_settings
from tests.storage.split.test_narrow import build_words
from tests.storage.transactions import Client

VIEWS = ("values", "kv", "jsonl")
ISOLATIONS = ("read_committed", "read_uncommitted")


def cat(data: Path, place: str, *more: str) -> bytes:
    done = CliRunner().invoke(main, ["cat", str(data), place, *more])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout_bytes


def compacted(data: Path) -> None:
    """Every codec, and gaps."""
    with cleaned.compacted(data) as (manager, log):
        for codec in range(5):
            cleaned.put(log, (b"k%d" % codec, b"v%d" % codec), (b"\xff", b"\0\n"), codec=codec)
            cleaned.roll(log)
        cleaned.put(log, (b"k1", None), (b"k2", b"newer"))
        cleaned.roll(log)
        cleaned.clean(manager, log)


def transactional(data: Path) -> None:
    """An aborted and an open transaction, null keys and values, headers, an old time."""
    with opened(data) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        done, lost = Client(log, 7), Client(log, 8)
        done.send(b"done")
        lost.send(b"lost")
        append(log, b"plain", None)
        log.roll(NOW_MS)
        done.commit()
        lost.abort()
        headers = (("h", b"1"), ("g", None))
        records = [Record(0, NOW_MS, 0, None, b"with", headers), Record(1, 5, 0, b"", b"")]
        append_batches(log, bytearray(encode(records)), now_ns=NOW_NS)
        log.roll(NOW_MS)
        Client(log, 9).send(b"open")


def long_lines(data: Path) -> None:
    write_settings(data, message_max_bytes=64 << 20)
    with opened(data) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for codec in (0, 4):
            records = [
                Record(n, NOW_MS, 0, b"k", b"\t" * (size << 20)) for n, size in enumerate((5, 6))
            ]
            batch = recompress(encode(records), codec)
            append_batches(log, bytearray(batch), now_ns=NOW_NS)
            log.roll(NOW_MS)


KINDS: dict[str, Callable[[Path], object]] = {
    "compacted": compacted,
    "transactional": transactional,
    "long": long_lines,
    "v0": lambda data: old_logs.write_legacy(data, "t", 0),
    "v1": lambda data: old_logs.write_legacy(data, "t", 1),
    "0.7": lambda data: old_logs.write_old(
        data, "t", old_logs.old_file(b"1", b"22"), old_logs.old_file(b"1", b"last")
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_always_holds_leaves_nothing_out(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    for view in VIEWS:
        whole = cat(tmp_path, "t", "--view", view)
        assert whole
        always = "key is null or key is not null" if view == "kv" else "offset >= 0"
        assert cat(tmp_path, "t", "--view", view, "--where", always) == whole
        assert cat(tmp_path, "t", "--view", view, "--where", "offset < 0") == b""


@pytest.mark.parametrize(
    ("made", "condition", "found"),
    [
        (compacted, "key = 'k4'", b"k4\tv4\n"),
        (compacted, "key = X'ff'", b"\xff\t\0\\n\n"),
        (compacted, "value is null", b"k1\t\\N\n"),
        (compacted, "key in ('k3', 'k2') and not value like 'v%'", b"k2\tnewer\n"),
        (transactional, "value like '_o%e'", b"k\tdone\n"),
        (transactional, "header('h') = '1' or value is null", b"\\N\nwith\n"),
        (transactional, "header('g') is not null or header('x') = ''", b""),
        (transactional, "timestamp < '1970-01-01T00:00:00.006Z'", b"\t\n"),
        (transactional, "topic = 'other' or partition <> 0", b""),
        (transactional, "value = 'lost' or value = 'open'", b""),
        (KINDS["v0"], "timestampType <> -1 or timestamp >= '1970-01-01T00Z'", b""),
        (KINDS["v1"], "timestampType = 0 and key = 'k6'", b"k6\t\\N\n"),
    ],
)
def test_only_records_that_match(
    tmp_path: Path, made: Callable[[Path], object], condition: str, found: bytes
) -> None:
    made(tmp_path)
    assert cat(tmp_path, "t", "--view", "kv", "--where", condition) == found


def test_a_part_of_a_partition(tmp_path: Path) -> None:
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
        for number in range(2):
            append(manager.log("t", number), *[b"%d" % value for value in range(100)])
        manager.groups.commit("g", "t", {1: Committed(90)})
    some = ("--where", "value like '%5'")
    assert cat(tmp_path, "t:0@10..40", *some) == b"15\n25\n35\n"
    assert cat(tmp_path, "t:1@-20", *some) == b"85\n95\n"
    assert cat(tmp_path, "t@90", *some) == b"95\n95\n"
    assert cat(tmp_path, f"t@90..{1 << 63}", *some) == b"95\n95\n"
    assert cat(tmp_path, "t@90", "--where", "partition = 1 and value like '%5'") == b"95\n"
    assert cat(tmp_path, "t:1@group=g", *some) == b"95\n"
    assert cat(tmp_path, "t:1@75..group=g", *some) == b"75\n85\n"
    assert cat(tmp_path, "t:0@group=g..10", *some) == b"5\n"


def test_uncommitted_records(tmp_path: Path) -> None:
    transactional(tmp_path)
    for view in VIEWS:
        more = ("--view", view, "--isolation", "read_uncommitted")
        whole = cat(tmp_path, "t", *more)
        assert b"lost" in whole
        assert b"open" in whole
        assert cat(tmp_path, "t", *more, "--where", "offset >= 0") == whole


@pytest.mark.programs
@pytest.mark.parametrize("option", [(), ("-o", "isolation=read_uncommitted")])
def test_a_mount_that_has_another_isolation(place: Place, option: Sequence[str]) -> None:
    """It changes nothing, whether the mount or its directory is given."""
    transactional(place.data)
    found = {each: cat(place.data, "t", "--isolation", each) for each in ISOLATIONS}
    assert b"lost" in found["read_uncommitted"]
    place.mount(*option)
    for where in (place.data, place.path):
        assert cat(where, "t") == found["read_committed"]
        for isolation, text in found.items():
            assert cat(where, "t", "--isolation", isolation) == text


@pytest.mark.parametrize("condition", ["offset >= 0", "value in ('kept', '1', '3', '4', '5')"])
@pytest.mark.parametrize("change", ["compaction", "retention"])
def test_segments_that_the_writer_removes_meanwhile(
    tmp_path: Path, change: str, condition: str
) -> None:
    """… are looked up again, and the search goes on behind what was read. Some have `.words`."""
    with cleaned.compacted(tmp_path) as (manager, log):
        for number in range(6):
            cleaned.put(log, (b"a", b"%d" % number), (b"k%d" % number, b"kept"))
            cleaned.roll(log)
        with opened_tree(str(tmp_path)) as tree:
            build_words(log)
            found = records_of(scan(tree, "t", 0, "values", "1..end", parse(condition)))
            assert [next(found) for _ in range(2)] == [1, 2]
            if change == "compaction":
                cleaned.clean(manager, log)
            else:
                remove_head(log, 4, NOW_MS)
            for path in (tmp_path / "t-0").glob("*.deleted"):
                path.unlink()
            left = [3, 5, 7, 9, 10, 11] if change == "compaction" else [3, 8, 9, 10, 11]
            assert list(found) == left


def records_of(search: Scan) -> Iterator[int]:
    for _, batch in search.batches:
        for record in [] if batch is None else decode_plain(batch):
            yield record.offset


def test_a_time_is_that_of_the_command_for_all_partitions(tmp_path: Path) -> None:
    compacted(tmp_path)
    ago = ("-15m", "-1d..-15m", "-1h..end", "00:00..2026-11", "..-1h")
    fixed = ("5..-10", "start..end", "-3..group=g")
    for text in (*ago, *fixed):
        with click.Context(main) as context:
            context.params["view"] = None
            _, _, ((_, _, points),) = resolve_ranges([str(tmp_path), f"t@{text}"])
        parsed = parse_start_name(f"0@{points}", 0)
        assert parsed == parse_start_name(f"0@{points}", NOW_MS)
        assert (parsed == parse_start_name(f"0@{text}", 0)) == (text in fixed), text


def test_a_wrong_condition_is_refused_with_its_place(tmp_path: Path) -> None:
    compacted(tmp_path)
    for more, message in (
        (["--where", "colour = 'red'"], "there is no column 'colour'"),
        (["--where", "key = 'a' and"], "at character 11"),
        (
            ["--where", "key = 'a'", "--view", "batches"],
            "--where cannot be used with --view batches",
        ),
    ):
        done = CliRunner().invoke(main, ["cat", str(tmp_path), "t", *more])
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("is_sealed", [True, False])
def test_damage_ends_the_text_as_without_a_condition(tmp_path: Path, is_sealed: bool) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, b"good")
        append(log, b"bad" * 10)
        append(log, b"good")
        if is_sealed:
            log.roll(NOW_MS)
            append(log, b"good")
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = path.read_bytes()
    at = data.index(b"badbad")
    path.write_bytes(data[:at] + b"B" + data[at + 1 :])
    plain = CliRunner().invoke(main, ["cat", str(tmp_path), "t"])
    done = CliRunner().invoke(main, ["cat", str(tmp_path), "t", "--where", "value like 'g%'"])
    assert done.stdout == "good\n"
    assert done.exit_code == plain.exit_code == 3 * is_sealed
    assert (str(path) in done.stderr) == is_sealed
