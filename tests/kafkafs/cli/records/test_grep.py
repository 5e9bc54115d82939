"""`kafkafs grep`: the records that GNU grep finds in the same values."""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import subprocess
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kafkafs.cli import main
from kafkafs.cli.common.matching import scan
from kafkafs.cli.common.mount_files import opened_tree
from kafkafs.quantities import human_size
from kafkafs.tree.filesystem import FileSystem
from kafkafs.views import TEXT_VIEWS, TextView, values_view
from storage import LogManager, Record, encode
from storage.compaction.repack import repack_all
from storage.condition.condition import Condition, Contains
from storage.errors import CorruptRecord
from storage.groups.offset_records import Committed
from storage.log.append import append_batches
from storage.record.batch import decode_plain
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import HEADER_SIZE, TRANSACTIONAL_BIT, pack, parse_header
from storage.record.plain import recompress
from storage.task import Task
from tests import oracle
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT
from tests.kafkafs.cli.records.test_cat_where import KINDS as LOGS
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, write_settings
from tests.storage.split import test_narrow
from tests.waits import HANG_S

#: Values for all codecs: cut characters, addresses, parts of words, control characters, nothing.
VALUES: list[bytes | None] = [
    *(b"one two", b"ONE", b"onetwo one", b"two_one", b"a\none b", b"", None, b"\0one\xff"),
    *(b"10.1.2.3 GET", b"9.10.1.2.3", b"10.1.2.34", b"10x1x2x3", "müller".encode(), b"m\xc3"),
    *("一二三".encode(), "一二三".encode()[1:4], b"\xbc", b"-one-", b"one", b"\t\r one"),
]


def codecs(data: Path) -> None:
    with opened(data) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for codec in range(5):
            for first in range(0, len(VALUES), 3):
                some = enumerate(VALUES[first : first + 3])
                records = [Record(n, NOW_MS, 0, b"k", value) for n, value in some]
                batch = recompress(encode(records), codec)
                append_batches(log, bytearray(batch), now_ns=NOW_NS)
                log.roll(NOW_MS)


def big(data: Path) -> None:
    write_settings(data, message_max_bytes=64 << 20)
    with opened(data) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for values in (b"x" * (10 << 20) + b" one", b"one " * 1_000_000, b"two"), (b"three",):
            append(log, *values)
            log.roll(NOW_MS)


def repacked(data: Path) -> None:
    """Each segment becomes one batch."""
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
        for number in range(20):
            for value in VALUES[number % 7 :: 7]:
                append(log, value, b"%d:%d" % (number, len(value or b"")))
            log.roll(NOW_MS)
        assert len(repack_all(log, NOW_MS, Task())) == 20


KINDS: dict[str, Callable[[Path], object]] = {
    "codecs": codecs,
    "big": big,
    "repacked": repacked,
    **LOGS,
}
LARGE = {"big", "long"}
#: Options and words of grep.
TABLE = [
    *(("", "one"), ("i", "oNe"), ("w", "one"), ("iw", "ONE"), ("v", "one"), ("vw", "one")),
    *(("", ""), ("w", ""), ("v", ""), ("", "one", "v"), ("w", "on", "one"), ("vi", "ONE", "V")),
    *(("w", "10.1.2.3"), ("", "10.1.2.3"), ("w", "ller"), ("", "\udc82\udce4"), ("", "\udcff")),
    *(("i", "MÜLLER"), ("w", "\t"), ("", "\r"), ("", "ok"), ("", "2"), ("", "x" * 1000)),
]


def grep(*words: object) -> Result:
    return CliRunner().invoke(main, ["grep", *map(str, words)], prog_name="kafkafs")


def printed(*words: object) -> str:
    done = grep(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def stored(data: Path) -> list[Record]:
    with LogManager.open(str(data), read_only=True) as manager:
        return list(manager.log("t", 0).reader.records())


def by_grep(records: Sequence[Record], options: str, words: Sequence[str]) -> list[int]:
    """The offsets of the records whose values GNU grep finds.

    Its lines have another control character for a newline, as a value is found as a whole.
    """
    lines = ((record.value or b"").replace(b"\n", b"\1") + b"\n" for record in records)
    done = subprocess.run(
        ["grep", f"-aFn{options}", *(each for word in words for each in ("-e", word))],
        input=b"".join(lines),
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
        timeout=HANG_S,
    )
    assert (done.returncode, done.stderr) == (0 if done.stdout else 1, b"")
    found = done.stdout.split(b"\n")[:-1]
    return [records[int(line.partition(b":")[0]) - 1].offset for line in found]


def by_scan(tree: FileSystem, options: str, words: Sequence[str]) -> list[int]:
    """The offsets of the records that the search of the command finds."""
    given = tuple(map(os.fsencode, words))
    part = Contains("value", given, "i" in options, "w" in options)
    condition = Condition(part.negated() if "v" in options else part, "")
    return [
        record.offset
        for _, batch in scan(tree, "t", 0, "values", "start..end", condition).batches
        if batch is not None
        for record in decode_plain(batch)
    ]


def build_words(data: Path, topic: str = "t") -> None:
    with LogManager.open(str(data), read_only=True) as manager:
        test_narrow.build_words(manager.log(topic, 0))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("kind", "has_words"),
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS if kind not in LARGE)],
)
def test_the_records_that_gnu_grep_finds(tmp_path: Path, kind: str, has_words: bool) -> None:
    KINDS[kind](tmp_path)
    if has_words:
        build_words(tmp_path)
    records = stored(tmp_path)
    with opened_tree(str(tmp_path)) as tree:
        for options, *words in TABLE[::4] if kind in LARGE else TABLE:
            assert by_scan(tree, options, words) == by_grep(records, options, words), words


def random_word(draw: random.Random, values: Sequence[bytes]) -> str:
    """A part of a value, or anything."""
    if draw.random() < 0.8:
        value = draw.choice(values)[:200]
        at = draw.randrange(len(value) + 1)
        word = value[at : at + draw.randrange(12)]
    else:
        word = draw.randbytes(draw.randrange(4))
    # No argument of a program can have a zero byte.
    return os.fsdecode(word.replace(b"\n", b"").replace(b"\0", b""))


@pytest.mark.programs
@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_random_words(tmp_path: Path, kind: str, count: int) -> None:
    """… in segments that have `.words`."""
    KINDS[kind](tmp_path)
    build_words(tmp_path)
    records = stored(tmp_path)
    values = [record.value or b"" for record in records]
    if kind in LARGE:
        count //= 20
    draw = random.Random(kind)
    with opened_tree(str(tmp_path)) as tree:
        for _ in range(count):
            words = [random_word(draw, values) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
            options = "".join(each for each in "iwv" if draw.random() < 0.3)
            found = by_scan(tree, options, words)
            assert found == by_grep(records, options, words), (options, words)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two topics, one of them with two partitions, and one that Kafka uses."""
    with LogManager.open(str(tmp_path)) as manager:
        orders = manager.create_topic("orders", 2).partitions
        records = [
            Record(0, NOW_MS, 0, b"a", b"one"),
            Record(1, NOW_MS, 0, b"b", b"two\none"),
            Record(2, NOW_MS, 0, b"a", b"three"),
        ]
        append_batches(orders[0], bytearray(encode(records)), now_ns=NOW_NS)
        append(orders[1], b"One", None)
        append(manager.create_topic("web", 1).partitions[0], b"GET /one", b"one more")
    shutil.copytree(tmp_path / "web-0", tmp_path / "__consumer_offsets-0")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("one DATA orders:0", "one\ntwo\none\n"),
        ("-n one DATA orders:0", "0:one\n1:two\none\n"),
        ("one DATA orders", "orders:0:one\norders:0:two\none\n"),
        ("-h one DATA orders", "one\ntwo\none\n"),
        ("-hi one DATA orders", "one\ntwo\none\nOne\n"),
        ("-n /one DATA", "web:0:0:GET /one\n"),
        ("-m 1 one DATA", "orders:0:one\nweb:0:GET /one\n"),
        ("-m 1 one DATA web", "GET /one\n"),
        ("-c one DATA orders", "orders:0:2\norders:1:0\n"),
        ("-hc one DATA orders", "2\n0\n"),
        ("-c -m 1 one DATA orders:0", "1\n"),
        ("-l one DATA", "orders:0\nweb:0\n"),
        ("-l one DATA web", "web:0\n"),
        ("-cl one DATA", "orders:0\nweb:0\n"),
        ("-v one DATA orders", "orders:0:three\norders:1:One\norders:1:\n"),
        ("--key a -v one DATA orders:0", "three\n"),
        ("--key a one DATA orders:0", "one\n"),
        ("-e one -e t DATA orders:0", "one\ntwo\none\nthree\n"),
        ("-e one -e t --and DATA orders:0", "two\none\n"),
        ("-e one -e t --and -v DATA orders:0", "one\nthree\n"),
        ("one DATA orders:0@1..2 web@-1", "orders:0:two\none\nweb:0:one more\n"),
        ("--view kv one DATA orders:0@1..2", "b\ttwo\\none\n"),
        ("--view kv -n one DATA orders:0", "0:a\tone\n1:b\ttwo\\none\n"),
        ("-c one DATA __consumer_offsets", "2\n"),
    ],
)  # fmt: skip
def test_output(data: Path, words: str, expected: str) -> None:
    assert printed(*words.replace("DATA", str(data)).split()) == expected


def test_only_the_named_topics_are_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """… and those with the offsets of groups."""
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"one", b"one, later")
        append(manager.create_topic("damaged", 1).partitions[0], b"one")
        manager.groups.commit("g", "t", {0: Committed(1)})
    (tmp_path / "damaged-0" / "partition.metadata").write_text("nothing")
    assert printed("one", tmp_path, "t@group=g..") == "one, later\n"
    assert caplog.text == ""
    assert "damaged-0: cannot open: " in grep("one", tmp_path, "damaged").stderr


def test_statuses(data: Path) -> None:
    for words, status, output, reason in (
        ("nothing DATA", 1, "", ""),
        ("-c nothing DATA web", 1, "0\n", ""),
        *((f"{more} -m 0 one DATA", 1, "", "") for more in ("-n", "-c", "-l", "-v")),
        ("-v -e one -e One -e three DATA orders:0", 1, "", ""),
        ("one DATA web orders:0 nope", 2, "", "there is no topic 'nope'"),
        ("one DATA orders:0@group=nope", 2, "", "there is no group nope"),
        ("-- -x DATA/orders-0", 2, "", f"a data directory: kafkafs grep -e -x {data}\n"),
        (
            *("--key k -viw one DATA/orders-0", 2, ""),
            f"a data directory: kafkafs grep -i -w -v --key k -e one {data}\n",
        ),
        ("-e a -e b DATA/orders-0", 2, "", f"a data directory: kafkafs grep -e a -e b {data}\n"),
        ("one", 2, "", "give a word and a directory"),
        ("-e one", 2, "", "Missing argument"),
        ("one DATA --view batches", 2, "", "not as --view batches"),
        ("--insecure one DATA", 2, "", "--insecure requires an address"),
        ("-m -1 one DATA", 2, "", "-1"),
    ):
        done = grep(*words.replace("DATA", str(data)).split())
        assert (done.exit_code, done.stdout) == (status, output), words
        assert reason.lower() in done.stderr.lower(), words
        assert done.stderr.count("\n") == bool(reason), words
    done = grep("one\ntwo", data)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "must not contain a newline" in done.stderr


def test_damage_does_not_end_the_search(data: Path) -> None:
    """The records after it are found, and those of other partitions."""
    with LogManager.open(str(data)) as manager:
        log = manager.log("orders", 0)
        append(log, b"one, later")
        log.roll(NOW_MS)
        append(log, b"one, in the next segment")
    path = data / "orders-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes().replace(b"three", b"THREE"))
    found = "orders:0:3:one, later\norders:0:4:one, in the next segment\n"
    found += "web:0:0:GET /one\nweb:0:1:one more\n"
    for word, output in (("one", found), ("x", "orders:0:4:one, in the next segment\n")):
        done = grep("-n", word, data)
        assert (done.exit_code, done.stdout) == (2, output)
        assert done.stderr.startswith("kafkafs: offsets 0 to 2 are damaged: ")
        assert done.stderr.count("\n") == 1
    done = grep("one", data, "--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.exit_code, problem["path"], problem["offset"]) == (2, str(path), 0)


@pytest.mark.parametrize("missing", [True, False])
def test_a_whole_segment_is_damaged(data: Path, missing: bool) -> None:
    """… and another one follows."""
    with LogManager.open(str(data)) as manager:
        log = manager.log("orders", 0)
        log.roll(NOW_MS)
        append(log, b"one, in the next segment")
        append(log, b"one, later")
    path = data / "orders-0" / f"{0:020}.log"
    if missing:
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))
    done = grep("-n", "one", data, "orders:0")
    assert (done.exit_code, done.stdout) == (2, "3:one, in the next segment\n4:one, later\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("rolled_before", [9, 7])
def test_records_that_cannot_be_decoded(tmp_path: Path, rolled_before: int) -> None:
    """… in batches with the right CRC, after batches without records to show, also at the start of
    the second segment.
    """

    def one(offset: int, value: bytes, producer: int = -1) -> bytes:
        attributes = 0 if producer < 0 else TRANSACTIONAL_BIT
        records = [Record(offset, NOW_MS, 0, None, value)]
        return encode(records, attributes=attributes, producer_id=producer, producer_epoch=0)

    def damaged(offset: int) -> bytes:
        batch = one(offset, b"bad one")
        records = bytearray(batch[HEADER_SIZE:])
        # The size of the value.
        records[records.index(b"bad one") - 1] = 99
        return pack(parse_header(batch), bytes(records))

    def damaged_entry(offset: int) -> bytes:
        entry = bytearray(oracle.put_message(oracle.Message(offset, b"k", b"one", NOW_MS), 1))
        entry[-4] = 99
        entry[12:16] = zlib.crc32(entry[16:]).to_bytes(4, "big")
        return bytes(entry)

    batches: list[bytes | bytearray] = [
        one(0, b"one"),
        one(1, b"one, aborted", 7),
        encode_marker(ABORT, 7, 0, 0, 2, NOW_MS, 0),
        damaged(3),
        damaged(4),
        one(5, b"two", 7),
        encode_marker(COMMIT, 7, 0, 0, 6, NOW_MS, 0),
        damaged_entry(7),
        one(8, b"one, later"),
    ]
    (tmp_path / "t-0").mkdir()
    for base, last in (0, rolled_before), (rolled_before, 9):
        (tmp_path / "t-0" / f"{base:020}.log").write_bytes(b"".join(batches[base:last]))
    done = grep("-n", "one", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "0:one\n8:one, later\n")
    assert str(tmp_path / "t-0") in done.stderr
    reports: list[CorruptRecord] = []
    condition = Condition(Contains("value", (b"one",), False, False), "")
    with opened_tree(str(tmp_path)) as tree:
        found = scan(tree, "t", 0, "values", "start..end", condition, reports.append)
        assert sum(batch is not None for _, batch in found.batches) == 2
    assert len(reports) == 3


def test_words_tell_which_segments_are_not_read(tmp_path: Path) -> None:
    """… here by damage that is reported if a segment is read."""
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number in range(4):
            # Single words may have the same hash.
            line = b" ".join(b"%s%d" % (word, number) for word in (b"one", b"two", b"six", b"ten"))
            append(log, line, *[b"%x" % line for line in range(1000)])
            log.roll(NOW_MS)
    segments = [tmp_path / "t-0" / f"{1001 * number:020}.log" for number in range(4)]
    build_words(tmp_path)
    # The words are valid if the end of a segment is as it was.
    for number in (1, 2):
        data = bytearray(segments[number].read_bytes())
        data[100] ^= 1
        segments[number].write_bytes(data)
    words_file = segments[2].with_suffix(".words")
    kept = words_file.read_bytes()
    words_file.unlink()
    done = grep("-w", "-c", "one3 two3 six3 ten3", tmp_path)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "1\n", 1)
    assert str(segments[2]) in done.stderr
    words_file.write_bytes(kept)
    for words, place, status, output in (
        ("one3 two3 six3 ten3", "t", 0, "3003:one3 two3 six3 ten3\n"),
        ("one3-two3-six3-ten3", "t", 1, ""),
        ("ONE0 TWO0 SIX0 TEN0", "t", 0, "0:one0 two0 six0 ten0\n"),
        ("one0 two0 six0 ten0", "t@1..", 1, ""),
    ):
        done = grep("-wni", words, tmp_path, place)
        assert (done.exit_code, done.stdout, done.stderr) == (status, output, ""), words


def test_whole_words_are_named_if_they_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number, value in enumerate((b"one", b"two", b"three")):
            append(log, value * 1000)
            append(log, value, b"10.1.2.%d" % number)
            log.roll(NOW_MS)
    assert printed("one", tmp_path).endswith("\none\n")
    # Secrets with which these words have different hashes.
    monkeypatch.setattr("storage.words.build.urandom", bytes)
    build_words(tmp_path)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "t-0").glob("*.log"))]
    for words, status, needed in (
        ("-c one DATA", 0, sizes[0]),
        # Not much less than all.
        ("-c -e one -e two DATA", 0, None),
        # These end early.
        ("-c -m 1 one DATA", 0, None),
        ("-l one DATA", 0, None),
        ("-c -m 3 one DATA", 0, sizes[0]),
        ("-l none DATA", 1, 0),
        ("-c -e one -e two --and DATA", 1, 0),
        ("-c one DATA t@..2", 0, None),
        ("-c -w one DATA", 0, None),
        ("-c -v one DATA", 0, None),
        ("-c --key one one DATA", 1, None),
        ("-c -- -one- DATA", 1, None),
        ("-c 10.1.2.1 DATA", 0, sizes[1]),
        ("-c -w 10.1.2.1 DATA", 0, None),
        ("-c 1.2. DATA", 0, None),
    ):
        done = grep(*words.replace("DATA", str(tmp_path)).split())
        reason = ""
        if needed is not None:
            reason = (
                f"kafkafs: grep read {human_size(sum(sizes))} of log, because WORD may be a part "
                f"of longer words. With -w, it reads about {human_size(needed)}\n"
            )
        assert (done.exit_code, done.stderr) == (status, reason), words
    assert grep("one", tmp_path, "--json").stderr == ""


@pytest.mark.parametrize("kind", sorted(LOGS.keys() - LARGE))
def test_most_records(tmp_path: Path, kind: str) -> None:
    """… also if they have the same offset, as those of a compressed set of Kafka 0.7."""
    LOGS[kind](tmp_path)
    lines = printed("", tmp_path, "--view", "jsonl").splitlines(keepends=True)
    for most in range(1, min(len(lines), 10) + 1):
        found = printed("-m", most, "", tmp_path, "--view", "jsonl")
        assert found == "".join(lines[:most])


def test_only_records_that_are_printed_are_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    view = values_view()

    def render(*given: Any) -> tuple[int, int]:
        sizes.append(view.render(*given)[0])
        return sizes[-1], 0

    loops: Any = SimpleNamespace(render=render, measure=view.measure)
    counted = TextView("values", view.parse, loops, committed=True, whole_records=False)
    monkeypatch.setitem(TEXT_VIEWS, "values", lambda: counted)
    with LogManager.open(str(tmp_path)) as manager:
        append(manager.create_topic("t", 1).partitions[0], *[b"one"] * 50_000)
    for options, expected in (("-m 2", "one\none\n"), ("-n -m 2", "0:one\n1:one\n")):
        assert printed(*options.split(), "one", tmp_path) == expected
    assert sum(sizes) == 16


@pytest.mark.programs
def test_colours_on_a_terminal(data: Path) -> None:
    for words, environment, expected in (
        (
            ["-n", "-i", "one", str(data), "orders"],
            {},
            "\x1b[35morders:0\x1b[36m:\x1b[m\x1b[32m0\x1b[36m:\x1b[m\x1b[01;31mone\x1b[m\n",
        ),
        (["-w", "/one", str(data), "web"], {}, "GET \x1b[01;31m/one\x1b[m\n"),
        (["/one", str(data), "web"], {"NO_COLOR": "1"}, "GET /one\n"),
        (["-v", "one", str(data), "orders:0"], {}, "three\n"),
        (["-v", "one", str(data), "orders"], {}, "\x1b[35morders:0\x1b[36m:\x1b[mthree\n"),
        (["-c", "-e2", "-eo", str(data), "web"], {}, "2\n"),
    ):
        ours, terminal = pty.openpty()
        done = subprocess.run(
            [*KAFKAFS, "grep", *words],
            stdout=terminal,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment},
            timeout=HANG_S,
        )
        os.close(terminal)
        assert done.returncode == 0
        shown = os.read(ours, 4096).decode().replace("\r\n", "\n")
        os.close(ours)
        assert shown.startswith(expected), words
