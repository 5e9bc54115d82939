"""Lines and objects go where DumpLogSegments' go, in its order."""

from __future__ import annotations

import pytest

from kafkafs.dump.output import Output


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
