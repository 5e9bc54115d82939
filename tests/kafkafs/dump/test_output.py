"""Lines and objects go where DumpLogSegments' go, in its order."""

from __future__ import annotations

import json

import pytest

from kafkafs.dump.faults import GAP, MISMATCH, OUT_OF_ORDER, WRONG_TIMESTAMP, Faults
from kafkafs.dump.output import Output, Value

PRODUCER: dict[str, Value] = {
    "producerId": 1000,
    "producerEpoch": 3,
    "coordinatorEpoch": 7,
    "currentTxnFirstOffset": None,
    "lastTimestamp": 17,
    "lastBatch": None,
}
SHOWN = (
    "producerId: 1000 producerEpoch: 3 coordinatorEpoch: 7"
    " currentTxnFirstOffset: {} lastTimestamp: 17"
)


class Streams:
    """Standard output and standard error, and an output to them."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.out = bytearray()
        self.errors = bytearray()
        self.output = Output(self.out.extend, self.errors.extend, is_json=is_json)

    def lines(self) -> list[str]:
        self.output.flush()
        return self.out.decode("utf-8", "surrogateescape").splitlines()


def test_text_keeps_its_order_and_complaints_go_elsewhere() -> None:
    streams = Streams()
    streams.output.event("file", file="a\udcff")
    assert not streams.out, "kept, to be written with others"
    streams.output.text(memoryview(b"finished\n"))
    streams.output.complain("wrong", "unknownFile", file="a")
    streams.output.event("indexEntry", offset=3, position=4)
    assert streams.lines() == ["Dumping a\udcff", "finished", "offset: 3 position: 4"]
    assert streams.errors == b"wrong\n"


def test_objects_go_to_one_stream() -> None:
    streams = Streams(is_json=True)
    streams.output.event("file", file="ü\udcff")
    streams.output.complain("wrong", "unknownFile", file="a")
    assert streams.lines() == [
        r'{"type":"file","file":"\u00fc\udcff"}',
        '{"type":"unknownFile","file":"a"}',
    ]
    assert not streams.errors


@pytest.mark.parametrize("is_json", [False, True])
def test_many_events_are_not_kept(is_json: bool) -> None:
    streams = Streams(is_json=is_json)
    for offset in range(10_000):
        streams.output.event("indexEntry", offset=offset, position=0)
    assert streams.out.count(b"\n") > 5000
    assert len(streams.lines()) == 10_000


def test_a_producer() -> None:
    streams = Streams()
    streams.output.event("producer", **PRODUCER)
    batch: dict[str, Value] = {
        "firstSequence": 1,
        "lastSequence": 2,
        "lastOffset": 3,
        "offsetDelta": 1,
        "timestamp": 5,
    }
    streams.output.event("producer", **{**PRODUCER, "currentTxnFirstOffset": 9, "lastBatch": batch})
    assert streams.lines() == [
        SHOWN.format("OptionalLong.empty"),
        SHOWN.format("OptionalLong[9]")
        + " firstSequence: 1 lastSequence: 2 lastOffset: 3 offsetDelta: 1 timestamp: 5",
    ]


def found() -> Faults:
    faults = Faults()
    faults.add("/log", {GAP: [(9, 12), (3, 5)]})
    faults.add("/index", {MISMATCH: [(3, 4), (7, 8)]})
    faults.add("/times", {WRONG_TIMESTAMP: [(5, 6), (1, 2)], OUT_OF_ORDER: []})
    faults.add("/log", {GAP: [(9, 12)]})
    return faults


def test_faults_by_kind() -> None:
    streams = Streams()
    found().show(streams.output)
    assert streams.lines() == []
    assert streams.errors.decode().splitlines() == [
        "Mismatches in :/index",
        "  Index offset: 7, log offset: 8",
        "  Index offset: 3, log offset: 4",
        "Found timestamp mismatch in :/times",
        "  Index timestamp: 5, log timestamp: 6",
        "  Index timestamp: 1, log timestamp: 2",
        "Non-consecutive offsets in /log",
        "  3 is followed by 5",
        "  9 is followed by 12",
    ]


def test_faults_as_objects() -> None:
    streams = Streams(is_json=True)
    found().show(streams.output)
    shown = [json.loads(line) for line in streams.lines()]
    assert shown[0] == {"type": "mismatch", "file": "/index", "indexOffset": 7, "logOffset": 8}
    assert shown[-1] == {
        "type": "nonConsecutiveOffsets", "file": "/log", "offset": 9, "nextOffset": 12,
    }  # fmt: skip
    assert len(shown) == 6
