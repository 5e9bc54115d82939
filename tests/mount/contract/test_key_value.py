"""`.kv`: key, TAB, value. "Views" of the contract, for this view."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests import oracle
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import APPEND, append, opened, view
from tests.mount.mounting import Mount, fails

Pair = tuple[bytes | None, bytes | None]


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


# -- reading -------------------------------------------------------------------------------------


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


# -- appending -----------------------------------------------------------------------------------


def test_a_tombstone(mount: Mount, orders: Path) -> None:
    """… a tombstone is written `key TAB` followed by the two bytes `\\N` …"""
    mount.run(
        r"""printf 'key\t\\N\n' >> "$F"; printf '%s\t%s\n' a '\N' b '\\N' >> "$F" """, F=kv(orders)
    )
    assert stored(orders) == [(b"key", None), (b"a", None), (b"b", b"\\N")]


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
