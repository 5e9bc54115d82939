"""Common programs on a mounted partition: the data that they write can be read back.

To them a partition is like a file with `chattr +a`. Each test compares with the bytes written, with
a plain file outside the mount, or with the same program's output for a plain file.
"""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.mounting import Mount, mounted
from tests.mount.programs import less, program

MIB = 1 << 20
FILE_SIZE = 20_000_000


@pytest.fixture
def mount(shared_mount: Mount) -> Mount:
    return shared_mount


def records(partition: Path) -> int:
    return int(os.getxattr(partition, "user.kafkafs.records"))


def log_file(path: Path, size: int) -> None:
    """A file of numbered lines of mixed lengths, some empty, some of bytes that are no text."""
    draw = random.Random("log file")
    patterns = [draw.randbytes(draw.choice((0, 8, 80, 150, 600))) for _ in range(997)]
    patterns = [pattern.replace(b"\n", b" ") for pattern in patterns]
    with path.open("wb") as file:
        for number in itertools.count():
            if file.tell() >= size:
                break
            file.write(b"%d %b\n\n" % (number, patterns[number % len(patterns)]))


# -- appending ---------------------------------------------------------------------------------


def test_echo(mount: Mount, orders: Path) -> None:
    said = mount.run(
        """
        for number in {1..50}; do
            echo "line $number" >> orders/0
            tail -n 1 orders/0
        done
        """
    )
    expected = "".join(f"line {number}\n" for number in range(1, 51))
    assert said.decode() == expected
    assert orders.read_text() == expected
    assert records(orders) == 50


def test_a_line_is_put_together_by_several_programs(mount: Mount, orders: Path) -> None:
    mount.run("{ echo -n a; ls / > /dev/null; /bin/echo -n x; (exit 0); echo b; } >> orders/0")
    assert orders.read_bytes() == b"axb\n"
    assert records(orders) == 1


def test_cat_of_a_large_file(mount: Mount, orders: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    log_file(source, FILE_SIZE)
    mount.run('cat "$SOURCE" >> orders/0', SOURCE=source)
    mount.run('cmp "$SOURCE" orders/0', SOURCE=source)
    said = mount.run('cat "$SOURCE" | wc --lines; wc --lines < orders/0', SOURCE=source).split()
    assert said[0] == said[1] == b"%d" % records(orders)
    mount.restart()
    mount.run('cmp "$SOURCE" orders/0', SOURCE=source)


@pytest.mark.parametrize("block", ["bs=7", "bs=5M", "bs=64K conv=fsync"])
def test_dd(mount: Mount, orders: Path, tmp_path: Path, block: str) -> None:
    source = tmp_path / "source"
    log_file(source, 6 * MIB if block == "bs=5M" else 20_000)
    mount.run(
        f'dd if="$SOURCE" of=orders/0 oflag=append conv=notrunc {block} status=none', SOURCE=source
    )
    assert orders.read_bytes() == source.read_bytes()


def test_append_streams_of_python(mount: Mount, orders: Path) -> None:
    with orders.open("a") as text:
        for number in range(20_000):
            print("line", number, file=text, flush=number % 1000 == 0)
    with orders.open("ab", buffering=0) as raw:
        raw.writelines(b"raw %d\n" % number for number in range(1000))
    vector = os.open(orders, os.O_WRONLY | os.O_APPEND)
    assert os.writev(vector, [b"scattered ", b"over ", b"buffers\n", b"and ", b"one more\n"]) == 36
    os.close(vector)
    expected = b"".join(b"line %d\n" % number for number in range(20_000))
    expected += b"".join(b"raw %d\n" % number for number in range(1000))
    expected += b"scattered over buffers\nand one more\n"
    assert orders.read_bytes() == expected
    assert records(orders) == 21_002


def test_append_streams_of_node(mount: Mount, orders: Path, tmp_path: Path) -> None:
    script = tmp_path / "append.mjs"
    script.write_text(
        """
        import { createWriteStream, appendFileSync } from "node:fs";
        import { once } from "node:events";
        const path = process.argv[2];
        appendFileSync(path, "first\\n");
        const stream = createWriteStream(path, { flags: "a" });
        for (let number = 0; number < 5000; number++) {
            if (!stream.write(`line ${number} — ${"x".repeat(number % 100)}\\n`)) {
                await once(stream, "drain");
            }
        }
        stream.end();
        await once(stream, "close");
        appendFileSync(path, "last\\n");
        """
    )
    mount.run('"$NODE" "$SCRIPT" orders/0', NODE=program("node"), SCRIPT=script)
    lines = [f"line {number} — {'x' * (number % 100)}" for number in range(5000)]
    assert orders.read_text() == "\n".join(["first", *lines, "last", ""])


# -- reading -----------------------------------------------------------------------------------


class Filled(NamedTuple):
    """A mount whose orders/0 lies in many segments, and a plain file with the same content."""

    mount: Mount
    plain: Path


def fill(base: Path, mount: Mount) -> Filled:
    plain = base / "plain"
    log_file(plain, 5 * MIB)
    mount.topic()
    mount.run("echo internal.segment.bytes=400000 >> orders/.config")
    mount.run('cat "$PLAIN" >> orders/0', PLAIN=plain)
    assert mount.run("ls orders/.raw/0").decode().count(".log\n") > 10
    return Filled(mount, plain)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """For all that only read it."""
    base = tmp_path_factory.mktemp("filled")
    with mounted(base) as mount:
        yield fill(base, mount)


@pytest.mark.parametrize(
    "command",
    [
        "cat {}",
        "tail --lines=1 {}",
        "tail --lines=3000 {}",
        "tail --lines=+9000 {}",
        "tail --bytes=1 {}",
        "tail --bytes=1234567 {}",
        "tail --bytes=+1234567 {}",
        "head --bytes=1 {}",
        "head --bytes=1234567 {}",
        "head --lines=9000 {}",
        "head --lines=-9000 {}",
        "dd if={} bs=4096 skip=1000 count=17 status=none",
        "dd if={} bs=1M iflag=skip_bytes,count_bytes skip=2000001 count=1999999 status=none",
        "wc --lines --words --bytes --max-line-length < {}",
        "grep --text --count 77 {}",
        "grep --text --byte-offset '^90[0-9]*7 ' {}",
        "sort {} | md5sum",
        "tac {} | md5sum",
        "od --format=x1 --skip-bytes=5000000 {}",
        "stat --format=%s {}",
    ],
)
def test_what_a_program_reads(filled: Filled, command: str) -> None:
    of_plain = filled.mount.run(command.format('"$FILE"'), FILE=filled.plain, LC_ALL="C")
    assert of_plain
    assert filled.mount.run(command.format("orders/0"), LC_ALL="C") == of_plain


def test_split(filled: Filled, tmp_path: Path) -> None:
    filled.mount.run(
        """
        cd "$DIRECTORY"
        split --lines=1000 "$FILE" lines.
        split --line-bytes=100000 "$FILE" bytes.
        split --number=l/7 "$FILE" parts.
        for name in lines bytes parts; do cat $name.* | cmp - "$PLAIN"; done
        """,
        DIRECTORY=tmp_path,
        FILE=filled.mount / "orders/0",
        PLAIN=filled.plain,
    )
    assert len(list(tmp_path.glob("lines.*"))) > 10
    assert len(list(tmp_path.glob("parts.*"))) == 7


def test_cp(filled: Filled, tmp_path: Path) -> None:
    filled.mount.run('cp orders/0 "$TO/file"; cp --recursive orders "$TO/tree"', TO=tmp_path)
    assert (tmp_path / "file").read_bytes() == filled.plain.read_bytes()
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["0"]
    assert (tmp_path / "tree/0").read_bytes() == filled.plain.read_bytes()


def test_rsync(mount: Mount, tmp_path: Path) -> None:
    program("rsync")
    before = fill(tmp_path, mount).plain.read_bytes()
    copy = tmp_path / "copy"

    def rsync(*options: str) -> str:
        command = " ".join(["rsync --archive", *options, 'orders/ "$TO"'])
        return mount.run(command, TO=copy, LC_ALL="C").decode()

    rsync()
    assert (copy / "0").read_bytes() == before
    assert rsync("--itemize-changes") == ""
    more = b"".join(b"%d\n" % number for number in range(1, 10_001))
    mount.run("seq 10000 >> orders/0")
    said = rsync("--append-verify --stats --no-human-readable")
    assert f"Literal data: {len(more)} bytes\n" in said
    assert (copy / "0").read_bytes() == before + more
    mount.run("seq 10 >> orders/0")
    said = rsync("--no-whole-file --stats --no-human-readable")
    literal = re.search(r"Literal data: (\d+) bytes\n", said)
    # It sends a block or two, as it finds the rest unchanged.
    assert literal is not None
    assert 0 < int(literal[1]) < 10_000
    assert (copy / "0").read_bytes() == before + more + more[:21]


def test_recursive_grep_and_du_see_each_record_once(mount: Mount) -> None:
    mount.topic(partitions=2)
    mount.run("echo here >> orders/0; echo here >> orders/1; echo not >> orders/1")
    assert mount.run("grep --recursive here . | sort") == b"./orders/0:here\n./orders/1:here\n"
    assert mount.run("find . -type f | sort") == b"./orders/0\n./orders/1\n"
    assert mount.run("cat orders/*") == b"here\nhere\nnot\n"
    assert mount.run("du --apparent-size --bytes orders/*") == b"5\torders/0\n9\torders/1\n"


# -- less --------------------------------------------------------------------------------------


def test_less_shows_a_short_partition_and_ends(mount: Mount, orders: Path) -> None:
    mount.run("seq --format='line %.0f' 10 >> orders/0")
    with less(orders, "-F") as shown:
        text = shown.wait_for(b"line 10")
        assert [b"line %d\r" % number in text for number in range(1, 11)] == [True] * 10
        assert shown.wait() == 0


def test_less_goes_to_the_end_searches_and_goes_back(mount: Mount, orders: Path) -> None:
    mount.run("seq --format='line %.0f' 50000 >> orders/0")
    with less(orders) as shown:
        shown.wait_for(b"line 23\r")
        shown.press(b"G")
        assert b"line 49990\r" in shown.wait_for(b"line 50000\r")
        shown.press(b"?line 34567\n")
        shown.wait_for(b"34567")
        shown.press(b"g")
        shown.wait_for(b"line 2\r")
        shown.press(b"40000g")
        shown.wait_for(b"line 40000\r")
        shown.press(b"q")
        assert shown.wait() == 0


def test_less_follows(mount: Mount, orders: Path) -> None:
    mount.run("seq --format='line %.0f' 1000 >> orders/0")
    with less(orders, "+F") as shown:
        shown.wait_for(b"Waiting for data")
        mount.run("echo a new line >> orders/0")
        shown.wait_for(b"a new line\r")
        mount.run("echo and another >> orders/0")
        shown.wait_for(b"and another\r")
        shown.press(b"\x03")
        shown.wait_for(b"(END)")
        shown.press(b"q")
        assert shown.wait() == 0
