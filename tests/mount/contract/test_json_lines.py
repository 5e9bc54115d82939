"""`.jsonl`: the whole record as one JSON object per line. "Views" of the contract."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from tests.mount.contract.writing import opened, view
from tests.mount.mounting import Mount, fails


def jsonl(orders: Path) -> Path:
    return view(orders, ".jsonl")


def objects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def configure(orders: Path, *lines: str) -> None:
    (orders.parent / ".config").write_text("".join(line + "\n" for line in lines))


def test_the_unfinished_line_becomes_a_record_at_release(mount: Mount, orders: Path) -> None:
    """At release … it becomes a record …; *not* at flush …"""
    with opened(jsonl(orders)) as fd:
        os.write(fd, b'{"value":"a"}')
        os.close(os.dup(fd))
        assert objects(jsonl(orders)) == []
    assert (
        mount.run(
            'printf %s "$L" >> "$F"; tail -n1 "$F" | jq -r .value',
            F=jsonl(orders),
            L='{"value":"b"}',
        )
        == b"b\n"
    )
    assert [each["value"] for each in objects(jsonl(orders))] == ["a", "b"]


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
    assert [each["value"] for each in objects(jsonl(orders))] == ["\x01" * 9900, "next"]
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
