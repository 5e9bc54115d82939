"""Hypothesis strategies for logs of record batches, made by the oracle's encoder."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests import oracle

TIMESTAMP = 1_700_000_000_000

# Lengths on both sides of where a varint grows, and values with newlines and zeros in them.
blobs = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([0, 1, 30, 31, 32, 62, 63, 64, 65, 127, 128, 250, 257, 8191, 8192]).map(
        lambda size: b"v" * size
    ),
)
nullable = st.none() | blobs
# From a short alphabet: the first draw from all of Unicode takes Hypothesis seconds.
names = st.text("aé€😀", max_size=3)
headers = st.lists(st.tuples(names.map(str.encode), st.none() | blobs), max_size=2)
deltas = st.integers(-70, 70) | st.sampled_from([8192, -8193, 1 << 40, -(1 << 62)])


@st.composite
def rows(draw: st.DrawFn, number: int, plain: bool) -> oracle.Row:
    if plain:
        return oracle.Row(0, number, None, draw(blobs))
    return oracle.Row(draw(deltas), number, draw(nullable), draw(nullable), draw(headers))


@dataclass
class MadeLog:
    """A log and how many offsets it takes from its first one on."""

    data: bytes
    first_offset: int
    next_offset: int


@st.composite
def logs(draw: st.DrawFn, max_batches: int = 5, control: bool = True) -> MadeLog:
    """Batches back to back: plain, mixed and empty ones, and control batches if asked for."""
    kinds = ["plain", "mixed", "append time", "empty"] + ["control"] * control
    first = offset = draw(st.integers(0, 1000) | st.just(1 << 40))
    epoch = 0
    data = b""
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=max_batches)):
        epoch += draw(st.integers(0, 1))
        offset += draw(st.integers(0, 3))
        count = 0 if kind == "empty" else draw(st.integers(1, 5))
        # Offsets may have gaps and begin late, as compaction leaves them.
        number = draw(st.sampled_from([0, 0, 1, 62, 8190]))
        records = []
        for _ in range(count):
            records.append(draw(rows(number, kind == "plain")))
            number += draw(st.sampled_from([1, 1, 2, 64]))
        delta = max(number - 1, 0) + draw(st.integers(0, 1))
        data += oracle.put_batch(
            b"".join(map(oracle.put_row, records)),
            count,
            base_offset=offset,
            leader_epoch=epoch,
            attributes={"append time": 8, "control": 0x20}.get(kind, 0),
            last_offset_delta=delta,
            base_timestamp=TIMESTAMP,
            max_timestamp=TIMESTAMP + draw(st.integers(-5, 5)),
        )
        offset += delta + 1
    return MadeLog(data, first, offset)


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    """Where to split `size` bytes: ascending, the end included."""
    inner = st.lists(st.integers(0, size), max_size=8)
    return inner.map(lambda at: [*sorted(set(at)), size])


# Bytes that are nearly a log: one with some of its bytes changed, cut short, or followed by others.
@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(logs(max_batches=3)).data)
    for _ in range(draw(st.integers(0, 6))):
        if data:
            # Most of the damage should hit headers and record heads.
            at = draw(st.integers(0, min(len(data), 90) - 1) | st.integers(0, len(data) - 1))
            data[at] = draw(st.integers(0, 255))
    keep = draw(st.integers(0, len(data)))
    return bytes(data[:keep]) + draw(st.binary(max_size=80) | st.just(bytes(70)))
