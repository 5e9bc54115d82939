"""`.kv`: key, TAB, value. "Views" of the contract, for this view."""

from __future__ import annotations

import errno
import os
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

Pair = tuple[bytes | None, bytes | None]

telling = st.lists(st.sampled_from(b"\\\\\t\n\0\r\xffN tn")).map(bytes)
nullable = st.none() | telling | st.binary(max_size=30)
pairs_of = st.lists(st.tuples(nullable, nullable), min_size=1, max_size=12)


def kv(orders: Path) -> Path:
    return view(orders, ".kv")


def stored(orders: Path) -> list[Pair]:
    """The keys and values of a partition, as its batches have them."""
    log = view(orders, ".batches").read_bytes()
    return [(row.key, row.value) for _, _, row in oracle.shown(log)]


def batch_of(*pairs: Pair) -> bytes:
    """A batch with these records, made without the view."""
    rows = [oracle.Row(0, number, *pair) for number, pair in enumerate(pairs)]
    return oracle.put_batch(b"".join(map(oracle.put_row, rows)), len(rows))


def text_of(*pairs: Pair) -> bytes:
    return b"".join(oracle.key_value_line(oracle.Row(0, 0, *pair)) for pair in pairs)


def configure(orders: Path, *lines: str) -> None:
    (orders.parent / ".config").write_text("".join(line + "\n" for line in lines))


# -- reading -------------------------------------------------------------------------------------

RECORDS: list[Pair] = [
    (b"key", b"value"),
    (b"key", b""),
    (b"key", None),
    (b"", b"value"),
    (b"", b""),
    (b"", None),
    (None, b"value"),
    (None, b""),
    (None, None),
    (b"\\N", b"\\N"),
    (None, b"\\N"),
    (b"a\tb", b"c\td\ne\\"),
    (None, b"a\tb"),
    (b"\r\x00\xff", b"\r\x00\xff\x07"),
]
TEXT = (
    b"key\tvalue\n"
    b"key\t\n"
    b"key\t\\N\n"
    b"\tvalue\n"
    b"\t\n"
    b"\t\\N\n"
    b"value\n"
    b"\n"
    b"\\N\n"
    b"\\\\N\t\\\\N\n"
    b"\\\\N\n"
    b"a\\tb\tc\\td\\ne\\\\\n"
    b"a\\tb\n"
    b"\r\x00\xff\t\r\x00\xff\x07\n"
)


def test_a_record_is_key_tab_value(orders: Path) -> None:
    """`.kv`: key, TAB, value …; `\\\\`, `\\t`, `\\n`, `\\N` are the escapes, in both directions …;
    a line that is exactly `\\N` is null key and null value.
    """
    append(view(orders, ".batches"), batch_of(*RECORDS))
    assert kv(orders).read_bytes() == TEXT
    assert kv(orders).stat().st_size == len(TEXT)
    append(kv(orders), TEXT)
    assert stored(orders) == RECORDS * 2
    assert kv(orders).read_bytes() == TEXT * 2


def test_what_the_plain_view_loses(orders: Path) -> None:
    """The plain view … is lossy only in that a value holding a newline shows as two lines."""
    append(kv(orders), b"k\tone\\ntwo\nk\t\\N\n")
    assert orders.read_bytes() == b"one\ntwo\n\n"
    assert kv(orders).read_bytes() == b"k\tone\\ntwo\nk\t\\N\n"


def test_the_size_is_exact(mount: Mount, orders: Path) -> None:
    """`st_size` is exact, always …: `cat`, `wc -c`, `tail -c`, … `dd skip=` agree."""
    path = kv(orders)
    assert path.stat().st_size == 0
    pairs: list[Pair] = []
    for number in range(15):
        made: list[Pair] = [
            (b"%d" % each, bytes([number * 17 + each & 0xFF]) * (each * 90) + b"\\\n")
            for each in range(20)
        ]
        pairs += made
        batch = batch_of(*made)
        append(view(orders, ".batches"), bytes(recompress(batch, GZIP)) if number % 3 else batch)
        if number % 7 == 0:
            assert path.stat().st_size == len(text_of(*pairs))
    text = path.read_bytes()
    assert text == text_of(*pairs)
    size = len(text)
    assert mount.run('wc -c < "$F"', F=path) == b"%d\n" % size
    assert mount.run('wc -l < "$F"', F=path) == b"300\n"
    assert mount.run('stat -c %s "$F"', F=path) == b"%d\n" % size
    for at in (0, 1, 999, size // 2, size - 1, size):
        assert mount.run('tail -c "$N" "$F"', F=path, N=at) == text[size - at :]
        assert mount.run('tail -c "+$N" "$F"', F=path, N=at + 1) == text[at:]
        assert (
            mount.run('dd if="$F" bs=1 skip="$N" count=70 status=none', F=path, N=at)
            == (text[at : at + 70])
        )


def test_the_size_is_exact_where_a_line_is_shown_in_another_way(orders: Path) -> None:
    """… attributes have a long timeout … the written one too where the kernel's guess is wrong …
    when what is rendered differs from what was written.
    """
    path, text = kv(orders), b""
    with opened(path, os.O_RDWR | os.O_APPEND) as fd:
        for line, shown in [
            (b"k\tv\n", b"k\tv\n"),
            (b"\\N\tv\n", b"v\n"),
            (b"k\ta\tb\tc\n", b"k\ta\\tb\\tc\n"),
            (b"\\N\t\\N\n", b"\\N\n"),
            (b"k\tunfini", b""),
            (b"shed\n", b"k\tunfinished\n"),
        ]:
            os.write(fd, line)
            text += shown
            assert os.fstat(fd).st_size == path.stat().st_size == len(text)
            assert path.read_bytes() == text


def test_a_reader_follows_what_other_views_append(orders: Path) -> None:
    """One inode … goes on growing with new appends …, whichever file they come through."""
    path = kv(orders)
    values = b""
    with open(path, "rb", buffering=0) as file:
        assert file.read() == b""
        for name, line, shown, value in [
            ("", b"a\tb\\\n", b"a\\tb\\\\\n", b"a\tb\\\n"),
            (".kv", b"k\ta\n", b"k\ta\n", b"a\n"),
            (".jsonl", b'{"value":"a\\n","key":""}\n', b"\ta\\n\n", b"a\n\n"),
            (".batches", batch_of((b"k", None)), b"k\t\\N\n", b"\n"),
        ] * 3:
            before = path.stat().st_mtime_ns
            append(view(orders, name) if name else orders, line)
            values += value
            assert file.read() == shown
            assert os.fstat(file.fileno()).st_size == path.stat().st_size == file.tell()
            assert path.stat().st_mtime_ns > before
            assert orders.stat().st_size == len(values)
            assert orders.read_bytes() == values


def test_tail_follows(mount: Mount, orders: Path) -> None:
    """… so that `tail -f` and `less +F` neither repeat nor skip a record …"""
    append(kv(orders), b"k\t1\n")
    script = """
        exec 3< <(tail --sleep-interval=0.02 -c +1 -f "$K")
        read -r line <&3; printf '%s\n' "$line"
        echo 2 >> "$F"; printf 'k\\t3\n' >> "$K"
        for _ in 1 2; do read -r line <&3; printf '%s\n' "$line"; done
        kill $!
    """
    assert mount.run(script, F=orders, K=kv(orders)) == b"k\t1\n2\nk\t3\n"


def test_it_ends_at_the_last_stable_offset(orders: Path) -> None:
    """Rendered views end at the last stable offset … Control records and aborted transactions are
    not shown …
    """
    one, two = Producer(1, transactional=True), Producer(2, transactional=True, codec=3)
    batches = view(orders, ".batches")
    append(batches, one.batch(b"a") + two.batch(b"b", b"c"))
    append(kv(orders), b"k\tline\n")
    assert kv(orders).read_bytes() == b""
    append(batches, two.commit())
    assert kv(orders).stat().st_size == 0
    append(batches, one.abort())
    assert kv(orders).read_bytes() == b"key\tb\nkey\tc\nk\tline\n"
    assert kv(orders).stat().st_size == 19


def test_read_uncommitted(tmp_path: Path) -> None:
    """… the mount option `isolation=read_uncommitted` shows aborted ones."""
    with mounted(tmp_path, "isolation=read_uncommitted") as mount:
        orders = mount.topic()
        one = Producer(1, transactional=True)
        append(view(orders, ".batches"), one.batch(b"a"))
        assert kv(orders).read_bytes() == b"key\ta\n", "open ones at once"
        append(view(orders, ".batches"), one.abort())
        append(kv(orders), b"k\tb\n")
        assert kv(orders).read_bytes() == b"key\ta\nk\tb\n"
        inode = kv(orders).stat().st_ino
        mount.options = []
        mount.restart()
        assert kv(orders).read_bytes() == b"k\tb\n"
        assert kv(orders).stat().st_ino != inode


def test_the_same_after_a_remount_and_read_only(own: Mount) -> None:
    """`st_ino` … the same after a remount …; … a directory that we have not written … is measured
    once.
    """
    orders = own.topic()
    append(view(orders, ".batches"), batch_of(*RECORDS) * 50)
    before = kv(orders).stat()
    assert before.st_size == len(TEXT) * 50
    own.restart()
    assert kv(orders).stat().st_size == len(TEXT) * 50
    assert kv(orders).stat().st_ino == before.st_ino
    own.restart("ro")
    assert kv(orders).stat().st_size == len(TEXT) * 50
    assert kv(orders).read_bytes() == TEXT * 50
    fails(errno.EROFS, os.open, kv(orders), APPEND)


# -- appending -----------------------------------------------------------------------------------


def test_a_line_without_tab_has_a_null_key(orders: Path) -> None:
    """… on append a line without TAB has a null key, an empty value after the TAB stays an empty
    value …
    """
    append(kv(orders), b"no key\n\nkey\t\n\t\nkey\tmore\ttabs\t\n")
    assert stored(orders) == [
        (None, b"no key"),
        (None, b""),
        (b"key", b""),
        (b"", b""),
        (b"key", b"more\ttabs\t"),
    ]


def test_a_tombstone(mount: Mount, orders: Path) -> None:
    """… a tombstone is written `key TAB` followed by the two bytes `\\N` …"""
    mount.run(
        r"""printf 'key\t\\N\n' >> "$F"; printf '%s\t%s\n' a '\N' b '\\N' >> "$F" """, F=kv(orders)
    )
    assert stored(orders) == [(b"key", None), (b"a", None), (b"b", b"\\N")]


def test_a_compacted_topic(mount: Mount, orders: Path) -> None:
    """A compacted topic takes keys, empty ones too, and tombstones, but no record without a key."""
    configure(orders, "cleanup.policy=compact")
    with opened(kv(orders)) as fd:
        os.write(fd, b"a\t1\nb\t1\n\tempty\n")
        for line in (b"no key\n", b"\n", b"\\N\n", b"\\N\tvalue\n", b"a\t2\nno key\n"):
            fails(errno.EINVAL, os.write, fd, line)
        os.write(fd, b"no key")
        fails(errno.EINVAL, os.close, os.dup(fd))
        os.write(fd, b"\tbut one\nb\t\\N\na\t2\n")
    assert kv(orders).read_bytes() == b"a\t1\nb\t1\n\tempty\nno key\tbut one\nb\t\\N\na\t2\n"
    fd = os.open(kv(orders), APPEND)
    os.write(fd, b"a\t2\nunfinished")
    fails(errno.EINVAL, os.close, fd)
    assert kv(orders).read_bytes().endswith(b"b\t\\N\na\t2\na\t2\n")
    assert "requires a key in each record" in mount.events()


@given(pairs=pairs_of)
def test_cat_reproduces_key_and_value(mount: Mount, pairs: list[Pair]) -> None:
    """… so the view is lossless for key and value …, tombstones included, for any bytes."""
    source = new_topic(mount, 2)
    target = source.with_name("1")
    append(target, b"there already\n")
    append(view(source, ".batches"), batch_of(*pairs))
    assert kv(source).read_bytes() == text_of(*pairs)
    assert kv(source).stat().st_size == len(text_of(*pairs))
    mount.run('cat "$A" >> "$B"', A=kv(source), B=kv(target))
    assert stored(target) == [(None, b"there already"), *pairs]
    assert kv(target).read_bytes() == b"there already\n" + text_of(*pairs)
    source.parent.rmdir()


def test_cat_of_much(mount: Mount, orders: Path) -> None:
    """A large copy arrives in pieces that end anywhere, inside of escapes as well."""
    target = new_topic(mount)
    pairs: list[Pair] = [
        (b"key %d" % number, b"\\\t\n" * (number % 199) + b"x" * (number * 37 % 5000))
        for number in range(3000)
    ]
    append(kv(orders), text_of(*pairs))
    mount.run('cat "$A" >> "$B"', A=kv(orders), B=kv(target))
    assert stored(target) == stored(orders) == pairs
    assert kv(target).stat().st_size == kv(orders).stat().st_size == len(text_of(*pairs))
    mount.run('cmp "$A" "$B"', A=kv(orders), B=kv(target))


def test_a_write_may_end_anywhere(orders: Path) -> None:
    """The rest without a newline stays with the handle and is joined with the next write."""
    for at in range(1, len(TEXT)):
        with opened(kv(orders)) as fd:
            assert os.write(fd, TEXT[:at]) == at
            assert os.write(fd, TEXT[at:]) == len(TEXT) - at
    with opened(kv(orders)) as fd:
        for byte in TEXT:
            assert os.write(fd, bytes([byte])) == 1
    assert stored(orders) == RECORDS * len(TEXT)


def test_the_unfinished_line_becomes_a_record_at_release(mount: Mount, orders: Path) -> None:
    """At release … it becomes a record …; *not* at flush, which every child's exit sends …"""
    with opened(kv(orders)) as fd:
        os.write(fd, b"key\tval")
        os.close(os.dup(fd))
        os.write(fd, b"ue\\")
        assert stored(orders) == []
        os.write(fd, b"\\")
    assert stored(orders) == [(b"key", b"value\\")]
    mount.run('{ printf "a\\t"; /bin/true; printf b; } >> "$F"', F=kv(orders))
    assert mount.run('printf "c\\t\\\\\\\\N" >> "$F"; tail -n1 "$F"', F=kv(orders)) == b"c\t\\N\n"
    assert stored(orders)[1:] == [(b"a", b"b"), (b"c", None)]
    assert kv(orders).stat().st_size == len(b"key\tvalue\\\\\na\tb\nc\t\\N\n")


def test_flush_says_whether_it_would(mount: Mount, orders: Path) -> None:
    """Flush only checks that it would be accepted, and returns the errno."""
    fd = os.open(kv(orders), APPEND)
    os.write(fd, b"key\tvalue\\")
    fails(errno.EINVAL, os.close, os.dup(fd))
    os.write(fd, b"n")
    os.close(os.dup(fd))
    os.write(fd, b"\\N")
    fails(errno.EINVAL, os.close, os.dup(fd))
    assert stored(orders) == []
    fails(errno.EINVAL, os.close, fd)
    assert stored(orders) == []
    fd = os.open(kv(orders), APPEND)
    os.write(fd, b"key\tgood\nwrong\\")
    fails(errno.EINVAL, os.close, fd)
    assert stored(orders) == [(b"key", b"good")]
    where = f"{orders.parent.name}/0: append refused: line 1: "
    assert f"{where}byte 6: a backslash without a valid escape" in mount.events()
    assert f"{where}byte 12: a backslash without a valid escape" in mount.events()


@pytest.mark.parametrize(
    ("line", "byte"),
    [
        (b"\\", 1),
        (b"key\\\tvalue", 4),
        (b"key\tvalue\\", 10),
        (b"key\t\\x41", 5),
        (b"\\N\\N\tvalue", 1),
        (b"key\t\\N ", 5),
        (b"key\t\\r", 5),
    ],
)
def test_a_line_that_is_refused(mount: Mount, orders: Path, line: bytes, byte: int) -> None:
    """… any other backslash sequence is EINVAL …. An error appends nothing of that request … and
    says why …. The last errors, with topic, partition, line number and reason, are lines in
    `.kafkafs/log`.
    """
    with opened(kv(orders)) as fd:
        os.write(fd, b"k\tbefore\n")
        was, text = kv(orders).stat(), kv(orders).read_bytes()
        fails(errno.EINVAL, os.write, fd, b"k\tgood\n" * 2 + line + b"\nk\tgood\n")
        now = kv(orders).stat()
        assert (now.st_size, now.st_mtime_ns, now.st_ino) == (
            was.st_size,
            was.st_mtime_ns,
            was.st_ino,
        )
        assert kv(orders).read_bytes() == text
        os.write(fd, b"k\tafter\n")
    assert stored(orders) == [(b"k", b"before"), (b"k", b"after")]
    refused = f"{orders.parent.name}/0: append refused: line 3: byte {byte}: a backslash"
    assert refused in mount.events()


def test_a_refused_line_that_is_not_over_is_dropped(orders: Path) -> None:
    """After any refusal the remainder never becomes a record."""
    with opened(kv(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, b"wrong\\x\nk\tun")
        os.write(fd, b"finished\nk\tnext\n")
        fails(errno.EINVAL, os.write, fd, b"wrong\\x\nk\tun")
        os.write(fd, b"dropped at release")
    assert stored(orders) == [(b"k", b"next")]


def test_large_records(mount: Mount, orders: Path) -> None:
    """EMSGSIZE a record over `max.message.bytes` …, which counts the record, not its line."""
    configure(orders, "max.message.bytes=10000")
    with opened(kv(orders)) as fd:
        line = b"key\t" + b"\\t" * 9900 + b"\n"
        for at in range(0, len(line), 4095):
            os.write(fd, line[at : at + 4095])
        fails(errno.EMSGSIZE, os.write, fd, b"k\tv\n" + b"k" * 5000 + b"\t" + b"v" * 5000 + b"\n")
        fails(errno.EMSGSIZE, os.write, fd, b"k\tv\nk\t" + b"\\\\" * 10000 + b"\n")
        os.write(fd, b"k\tnext\n")
    assert stored(orders) == [(b"key", b"\t" * 9900), (b"k", b"next")]
    assert kv(orders).stat().st_size == len(line) + 7
    topic = orders.parent.name
    assert f"{topic}/0: append refused: line 2: a batch of 100" in mount.events()


def test_the_lines_of_one_request_are_one_batch(orders: Path) -> None:
    """All complete lines of one FUSE request … become consecutive records (one batch, or several
    where one would exceed `max.message.bytes`).
    """
    lines = b"".join(b"key %d\t%0100d\n" % (number, number) for number in range(5000))
    with opened(kv(orders)) as fd:
        assert os.write(fd, lines) == len(lines)
        configure(orders, "max.message.bytes=1000")
        assert os.write(fd, lines[:5000]) == 5000
    sizes = [batch.size for batch in oracle.walk(view(orders, ".batches").read_bytes())]
    assert sizes[0] > 500_000
    assert len(sizes) > 5
    assert max(sizes[1:]) <= 1000
    assert kv(orders).read_bytes().startswith(lines)


def test_what_is_refused_changes_nothing(mount: Mount, orders: Path) -> None:
    """As with a file under `chattr +a` …: a plain `>` …, truncate, rename and unlink of a partition
    are EPERM and change nothing.
    """
    path = kv(orders)
    append(path, b"k\tv\n")
    assert mount.sh('echo x > "$F"', F=path).returncode != 0
    fails(errno.EPERM, os.open, path, os.O_WRONLY)
    fails(errno.EPERM, os.open, path, APPEND | os.O_TRUNC)
    fails(errno.EPERM, os.truncate, path, 0)
    fails(errno.EPERM, os.unlink, path)
    fails(errno.EPERM, os.rename, path, view(orders, ".kv").with_name("1"))
    assert path.read_bytes() == b"k\tv\n"
