"""`.jsonl`: the whole record as one JSON object per line. "Views" of the contract."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.record.compression import GZIP
from storage.record.plain import recompress
from tests import oracle
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import APPEND, append, opened, view
from tests.mount.mounting import Mount, fails, mounted
from tests.storage.producers import Producer

T = 1_700_000_000_000
FOREVER = 2**63 - 1


def jsonl(orders: Path) -> Path:
    return view(orders, ".jsonl")


def objects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def stored(orders: Path) -> list[oracle.JsonFields]:
    """The records of a partition, as its batches have them."""
    log = view(orders, ".batches").read_bytes()
    return [
        oracle.JsonFields(
            batch.max_timestamp if batch.attributes & 8
            else batch.base_timestamp + row.timestamp_delta,
            row.key, row.value, row.headers,
        )
        for batch, _, row in oracle.shown(log)
    ]  # fmt: skip


def batch_of(*records: oracle.JsonFields) -> bytes:
    """A batch with these records, made without the view."""
    times = [T if record.timestamp is None else record.timestamp for record in records]
    rows = [
        oracle.Row(stamp - times[0], number, record.key, record.value, record.headers)
        for number, (stamp, record) in enumerate(zip(times, records, strict=True))
    ]
    return oracle.put_batch(
        b"".join(map(oracle.put_row, rows)),
        len(rows),
        base_timestamp=times[0],
        max_timestamp=max(times),
    )


def configure(orders: Path, *lines: str) -> None:
    (orders.parent / ".config").write_text("".join(line + "\n" for line in lines))


def copy(mount: Mount, source: Path, target: Path) -> None:
    mount.run('cat "$A" >> "$B"', A=jsonl(source), B=jsonl(target))


texts = st.text('a"\\\n\t\0é€😀', max_size=20).map(str.encode)
nullable = st.none() | st.binary(max_size=40) | texts
records_of = st.lists(
    st.builds(
        oracle.JsonFields,
        st.sampled_from([-1, 0, T, T + 1, 2**62]) | st.integers(-1, 2 * T),
        nullable,
        nullable,
        st.lists(st.tuples(texts | st.binary(max_size=3), nullable), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


# -- reading -------------------------------------------------------------------------------------


def test_a_record_is_one_object_on_one_line(mount: Mount, orders: Path) -> None:
    """`.jsonl`: {"offset","timestamp","timestampType","key","value","headers":[["name","value"],…]}
    (timestamp: integer milliseconds); bytes that are UTF-8 are JSON strings, others
    {"base64":"…"}, null is null …
    """
    append(
        view(orders, ".batches"),
        batch_of(
            oracle.JsonFields(T, b"key", 'é\n\t"\\\x01'.encode(), [(b"name", b"value")]),
            oracle.JsonFields(T - 5, None, None, []),
            oracle.JsonFields(-1, b"\xff", b"\x00\xff", [(b"a", None), (b"b", b"\x80")]),
        ),
    )
    append(orders, b"line\n")
    now = stored(orders)[3].timestamp
    expected = (
        '{"offset":0,"timestamp":1700000000000,"timestampType":"CreateTime","key":"key",'
        '"value":"é\\n\\t\\"\\\\\\u0001","headers":[["name","value"]]}\n'
        '{"offset":1,"timestamp":1699999999995,"timestampType":"CreateTime","key":null,'
        '"value":null,"headers":[]}\n'
        '{"offset":2,"timestamp":-1,"timestampType":"CreateTime","key":{"base64":"/w=="},'
        '"value":{"base64":"AP8="},"headers":[["a",null],["b",{"base64":"gA=="}]]}\n'
        f'{{"offset":3,"timestamp":{now},"timestampType":"CreateTime","key":null,'
        '"value":"line","headers":[]}\n'
    )
    assert jsonl(orders).read_text() == expected
    assert mount.run("cat topic*/.jsonl/0 | tail -n4").decode() == expected


def test_log_append_time(orders: Path) -> None:
    """… "timestampType" … — and the time is the batch's."""
    configure(orders, "message.timestamp.type=LogAppendTime")
    append(view(orders, ".batches"), batch_of(*[oracle.JsonFields(5, b"k", b"v", [])] * 2))
    shown = objects(jsonl(orders))
    assert {each["timestampType"] for each in shown} == {"LogAppendTime"}
    assert {each["timestamp"] for each in shown} == {stored(orders)[0].timestamp}
    assert abs(stored(orders)[0].timestamp - time.time() * 1000) < 60_000  # type: ignore[operator]


def test_the_size_is_exact(mount: Mount, orders: Path) -> None:
    """`st_size` is exact, always …: `cat`, `wc -c`, `tail -c`, … `dd skip=` agree."""
    path = jsonl(orders)
    assert path.stat().st_size == 0
    text = b""
    for number in range(15):
        records = [
            oracle.JsonFields(T, b"%d" % each, bytes([number * 17 + each & 0xFF]) * (each * 90), [])
            for each in range(20)
        ]
        batch = batch_of(*records)
        append(view(orders, ".batches"), bytes(recompress(batch, GZIP)) if number % 3 else batch)
        if number % 7 == 0:
            text = path.read_bytes()
            assert path.stat().st_size == len(text)
    text = path.read_bytes()
    assert [each["offset"] for each in objects(path)] == list(range(300))
    size = len(text)
    assert mount.run('wc -c < "$F"', F=path) == b"%d\n" % size
    assert mount.run('stat -c %s "$F"', F=path) == b"%d\n" % size
    for at in (0, 1, 999, size // 2, size - 1, size):
        assert mount.run('tail -c "$N" "$F"', F=path, N=at) == text[size - at :]
        assert mount.run('tail -c "+$N" "$F"', F=path, N=at + 1) == text[at:]
        assert (
            mount.run('dd if="$F" bs=1 skip="$N" count=70 status=none', F=path, N=at)
            == (text[at : at + 70])
        )


def test_a_reader_follows_what_other_views_append(orders: Path) -> None:
    """One inode … goes on growing with new appends … whichever file they come through."""
    path = jsonl(orders)
    with open(path, "rb", buffering=0) as file:
        assert file.read() == b""
        for number, (name, line) in enumerate(
            [("", b"a\n"), (".kv", b"k\ta\n"), (".jsonl", b'{"value":"a"}\n')] * 3
        ):
            append(view(orders, name) if name else orders, line)
            shown = json.loads(file.read())
            assert (shown["offset"], shown["value"]) == (number, "a")
            assert os.fstat(file.fileno()).st_size == path.stat().st_size == file.tell()


def test_it_ends_at_the_last_stable_offset(orders: Path) -> None:
    """Rendered views end at the last stable offset … Control records and aborted transactions are
    not shown …
    """
    one, two = Producer(1, transactional=True), Producer(2, transactional=True, codec=3)
    batches = view(orders, ".batches")
    append(batches, one.batch(b"a") + two.batch(b"b", b"c"))
    append(orders, b"line\n")
    assert jsonl(orders).read_bytes() == b""
    append(batches, two.commit())
    assert jsonl(orders).read_bytes() == b""
    append(batches, one.abort())
    assert [(each["offset"], each["value"]) for each in objects(jsonl(orders))] == [
        (1, "b"), (2, "c"), (3, "line"),
    ]  # fmt: skip


def test_read_uncommitted(tmp_path: Path) -> None:
    """… the mount option `isolation=read_uncommitted` shows aborted ones."""
    with mounted(tmp_path, "isolation=read_uncommitted") as mount:
        orders = mount.topic()
        one = Producer(1, transactional=True)
        append(view(orders, ".batches"), one.batch(b"a"))
        assert [each["value"] for each in objects(jsonl(orders))] == ["a"], "open ones at once"
        append(view(orders, ".batches"), one.abort())
        append(jsonl(orders), b'{"value":"b"}\n')
        assert [each["value"] for each in objects(jsonl(orders))] == ["a", "b"]
        inode = jsonl(orders).stat().st_ino
        mount.options = []
        mount.restart()
        assert [each["value"] for each in objects(jsonl(orders))] == ["b"]
        assert jsonl(orders).stat().st_ino != inode


# -- appending -----------------------------------------------------------------------------------


def test_fields_in_any_order_and_spacing(orders: Path) -> None:
    append(
        jsonl(orders),
        b' { "headers" : [ [ "a" , null ] , ["", {"base64":"/w=="}] ],\t"value":"v", '
        b'"timestampType":"LogAppendTime","timestamp":-1, "offset" : 77, '
        b'"key":{"base64":"aw=="}} \r\n'
        b'{"value":"\\u00e9\\ud83d\\ude00\\/","timestamp":5}\n',
    )
    assert stored(orders) == [
        oracle.JsonFields(-1, b"k", b"v", [(b"a", None), (b"", b"\xff")]),
        oracle.JsonFields(5, None, "é😀/".encode(), []),
    ]
    assert [each["offset"] for each in objects(jsonl(orders))] == [0, 1]


def test_what_is_missing(orders: Path) -> None:
    """… on append `offset` is ignored, a missing timestamp is now …"""
    before = time.time_ns() // 1_000_000
    append(jsonl(orders), b'{}\n{"offset":5}\n')
    after = time.time_ns() // 1_000_000
    for record in stored(orders):
        assert record.timestamp is not None
        assert before <= record.timestamp <= after
        assert (record.key, record.value, record.headers) == (None, None, [])
    assert [each["offset"] for each in objects(jsonl(orders))] == [0, 1]


@given(records=records_of)
def test_cat_reproduces_every_record(mount: Mount, records: list[oracle.JsonFields]) -> None:
    """`cat a/.jsonl/0 >> b/.jsonl/0` reproduces every record but for its offset …"""
    source, target = new_topic(mount), new_topic(mount)
    for orders in (source, target):
        configure(orders, f"message.timestamp.after.max.ms={FOREVER}")
    append(target, b"there already\n")
    append(view(source, ".batches"), batch_of(*records))
    assert stored(source) == records
    copy(mount, source, target)
    assert stored(target)[1:] == records
    assert jsonl(target).stat().st_size == len(jsonl(target).read_bytes())
    assert [each["offset"] for each in objects(jsonl(target))] == list(range(len(records) + 1))
    for orders in (source, target):
        mount.run('rmdir "$T"', T=orders.parent)


def test_cat_into_a_topic_with_settings_of_its_own(mount: Mount) -> None:
    """… and what the target's own timestamp settings override."""
    source, target = new_topic(mount), new_topic(mount)
    configure(target, "message.timestamp.type=LogAppendTime", "compression.type=zstd")
    records = [oracle.JsonFields(T + n, b"k", b"%d" % n, [(b"h", None)]) for n in range(5)]
    append(view(source, ".batches"), batch_of(*records))
    copy(mount, source, target)
    drop = ("timestamp", "timestampType")
    shown = [
        [{name: each[name] for name in each if name not in drop} for each in objects(jsonl(orders))]
        for orders in (source, target)
    ]
    assert shown[0] == shown[1]
    assert {each["timestampType"] for each in objects(jsonl(target))} == {"LogAppendTime"}
    # And back: what a line says of the kind of its time is ignored.
    back = new_topic(mount)
    copy(mount, target, back)
    assert [each["timestamp"] for each in objects(jsonl(back))] == [
        each["timestamp"] for each in objects(jsonl(target))
    ]
    assert {each["timestampType"] for each in objects(jsonl(back))} == {"CreateTime"}


def test_timestamp_limits(mount: Mount, orders: Path) -> None:
    """The target's own timestamp settings refuse, too: EINVAL."""
    configure(orders, "message.timestamp.before.max.ms=1000000")
    now = time.time_ns() // 1_000_000
    with opened(jsonl(orders)) as fd:
        for wrong in (now - 2_000_000, now + 10_000_000):
            line = b'{"value":"good"}\n{"timestamp":%d}\n' % wrong
            fails(errno.EINVAL, os.write, fd, line)
            assert f"line 2: timestamp {wrong} is " in mount.events()
        os.write(fd, b'{"timestamp":%d}\n{"timestamp":-1}\n' % (now - 500_000))
    assert [record.timestamp for record in stored(orders)] == [now - 500_000, -1]


def test_a_write_may_end_anywhere(orders: Path) -> None:
    """The rest without a newline stays with the handle and is joined with the next write."""
    text = '{"key":"é","value":{"base64":"AAEC"},"timestamp":5}\n{"value":"\\u20ac"}\n'.encode()
    for at in range(1, len(text)):
        with opened(jsonl(orders)) as fd:
            assert os.write(fd, text[:at]) == at
            assert os.write(fd, text[at:]) == len(text) - at
    with opened(jsonl(orders)) as fd:
        for byte in text:
            assert os.write(fd, bytes([byte])) == 1
    found = [(each.key, each.value) for each in stored(orders)]
    assert found == [("é".encode(), b"\0\1\2"), (None, "€".encode())] * len(text)


def test_the_unfinished_line_becomes_a_record_at_release(mount: Mount, orders: Path) -> None:
    """At release … it becomes a record …; *not* at flush …"""
    with opened(jsonl(orders)) as fd:
        os.write(fd, b'{"value":"a"}')
        os.close(os.dup(fd))
        assert stored(orders) == []
    assert (
        mount.run(
            'printf %s "$L" >> "$F"; tail -n1 "$F" | jq -r .value',
            F=jsonl(orders),
            L='{"value":"b"}',
        )
        == b"b\n"
    )
    assert [each["value"] for each in objects(jsonl(orders))] == ["a", "b"]


def test_flush_says_whether_it_would(mount: Mount, orders: Path) -> None:
    """Flush only checks that it would be accepted, and returns the errno."""
    with opened(jsonl(orders)) as fd:
        os.write(fd, b'{"value":')
        fails(errno.EINVAL, os.close, os.dup(fd))
        os.write(fd, b'"whole"')
        fails(errno.EINVAL, os.close, os.dup(fd))
        os.write(fd, b"}")
        os.close(os.dup(fd))
    assert [each["value"] for each in objects(jsonl(orders))] == ["whole"]
    fd = os.open(jsonl(orders), APPEND)
    os.write(fd, b'{"value":"x"}\n{"value":')
    fails(errno.EINVAL, os.close, fd)
    assert [each["value"] for each in objects(jsonl(orders))] == ["whole", "x"]
    topic = orders.parent.name
    assert f"{topic}/0: append refused: line 1: not JSON: it is incomplete" in mount.events()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"value", "not JSON: invalid character at byte 1"),
        (b"", "the line is empty, not a JSON object"),
        (b'{"value":"a"}x', "not JSON: trailing characters at byte 14"),
        (b'{"topic":"a"}', "there is no field topic"),
        (b'{"timestamp":"now"}', "timestamp: must be an integer, not a string"),
        (b'{"key":5}', "key: must be a string, an object or null, not an integer"),
        (b'{"headers":[["a"]]}', "headers[0]: must be a list of length 2"),
        (b'{"value":{"base64":"A"}}', "value.base64: not Base64 with padding"),
        (b'{"value":"\\ud800"}', "not JSON: half of a surrogate pair"),
        (b'{"value":"\xff"}', "not UTF-8"),
    ],
)
def test_a_line_that_is_refused(mount: Mount, orders: Path, line: bytes, reason: str) -> None:
    """An error appends nothing of that request … and says why: … EINVAL a line that the view
    cannot parse …. The last errors, with topic, partition, line number and reason, are lines in
    `.kafkafs/log`.
    """
    with opened(jsonl(orders)) as fd:
        os.write(fd, b'{"value":"before"}\n')
        fails(
            errno.EINVAL, os.write, fd, b'{"value":"good"}\n' * 2 + line + b'\n{"value":"good"}\n'
        )
        os.write(fd, b'{"value":"after"}\n')
    assert [each["value"] for each in objects(jsonl(orders))] == ["before", "after"]
    topic = orders.parent.name
    assert f"{topic}/0: append refused: line 3: {reason}\n" in mount.events()


def test_a_refused_line_that_is_not_over_is_dropped(orders: Path) -> None:
    """After any refusal the remainder never becomes a record."""
    with opened(jsonl(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, b'wrong\n{"value":"un')
        os.write(fd, b'finished"}\n{"value":"next"}\n')
        fails(errno.EINVAL, os.write, fd, b'wrong\n{"value":')
        os.write(fd, b'"dropped at release"}')
    assert [each["value"] for each in objects(jsonl(orders))] == ["next"]


def test_large_records(mount: Mount, orders: Path) -> None:
    """EMSGSIZE a record over `max.message.bytes` …, which counts the record, not its line."""
    configure(orders, "max.message.bytes=10000")
    # Six bytes of text for each byte, and it arrives in pieces.
    line = b'{"value":"' + b"\\u0001" * 9900 + b'"}\n'
    with opened(jsonl(orders)) as fd:
        for at in range(0, len(line), 4096):
            os.write(fd, line[at : at + 4096])
        fails(errno.EMSGSIZE, os.write, fd, b'{}\n{"value":"' + b"x" * 10000 + b'"}\n')
        os.write(fd, b'{"value":"next"}\n')
    assert [each.value for each in stored(orders)] == [b"\x01" * 9900, b"next"]
    assert jsonl(orders).stat().st_size == len(jsonl(orders).read_bytes())
    topic = orders.parent.name
    assert f"{topic}/0: append refused: line 2: a batch of 10072 bytes exceeds" in mount.events()


def test_an_unfinished_line_that_never_ends(orders: Path) -> None:
    configure(orders, "max.message.bytes=1000")
    with opened(jsonl(orders)) as fd:
        os.write(fd, b'{"value":"')
        for _ in range(9):
            os.write(fd, b"x" * 1000)
        fails(errno.EMSGSIZE, os.write, fd, b"x" * 1000)
        os.write(fd, b'"}\n{"value":"next"}\n')
    assert [each["value"] for each in objects(jsonl(orders))] == ["next"]


def test_a_compacted_topic_wants_keys(mount: Mount, orders: Path) -> None:
    configure(orders, "cleanup.policy=compact")
    with opened(jsonl(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, b'{"key":"a"}\n{"value":"no key"}\n')
        os.write(fd, b'{"key":"a","value":"1"}\n{"key":"a","value":null}\n')
    topic = orders.parent.name
    assert f"{topic}/0: append refused: line 2: a compacted topic requires a key" in (
        mount.events()
    )
    assert [(each.key, each.value) for each in stored(orders)] == [(b"a", b"1"), (b"a", None)]
