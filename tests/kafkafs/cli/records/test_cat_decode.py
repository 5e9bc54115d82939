"""`kafkafs cat --decode`: its options. The lines are in `tests/kafkafs/schemas/test_lines.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafkafs.cli import main
from storage import Record, encode
from storage.log.append import append_batches
from tests.kafkafs.schemas.registries import Topic, framed
from tests.storage.logs import NOW_MS, NOW_NS, append, opened

DAY = {"type": "int", "logicalType": "date"}
UNION = ["null", DAY]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic with values of the schemas 1 and 2, and one of an unknown schema."""
    topic = Topic()
    topic.register("t-value", 1, 1, DAY)
    topic.register("t-value", 2, 2, UNION)
    path = tmp_path / "data"
    path.mkdir()
    with opened(path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for value in (framed(1, b"\2"), framed(2, b"\2\2"), framed(3, b"\2")):
            append(log, value)
        (log,) = manager.create_topic("_schemas", 1).partitions.values()
        records = [Record(n, NOW_MS, 0, *record) for n, record in enumerate(topic.records)]
        append_batches(log, bytearray(encode(records)), now_ns=NOW_NS)
    return path


def cat(data: Path, place: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["cat", str(data), place, "--decode", *more])


def values(done: Result) -> list[object]:
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


TOLD = "kafkafs: 1 record could not be decoded\n"


def test_records_are_decoded_and_those_that_are_not_are_counted(data: Path) -> None:
    done = cat(data, "t")
    assert values(done) == [1, 1, "\0\0\0\0\3\2"]
    assert (done.exit_code, done.stderr) == (0, TOLD)
    lines = done.stdout.splitlines()
    assert lines[0].endswith('"headers":[],"valueSchema":"id:1"}')
    assert lines[2].endswith('"headers":[],"valueError":"the topic _schemas has no id:3"}')


def test_strict_ends_with_1_after_all_records(data: Path) -> None:
    done = cat(data, "t", "--strict")
    assert (len(values(done)), done.exit_code, done.stderr) == (3, 1, TOLD)
    assert cat(data, "t@0..2", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--value-only"], "1\n1\n"),
        (["--value-only", "--decode-times", "iso"], '"1970-01-02"\n"1970-01-02"\n'),
        (["--value-only", "--avro-json"], '1\n{"int":1}\n'),
        (["--value-only", "--where", "offset = 1"], "1\n"),
    ],
)
def test_how_values_are_printed(options: list[str], expected: str, data: Path) -> None:
    done = cat(data, "t@0..2", *options)
    assert (done.stdout, done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--view", "kv"], "--decode prints lines of jsonl, not of kv"),
        (["--view", "values"], "--decode prints lines of jsonl, not of values"),
        (["--value-schema", "id:x"], "'id:x' is not an id, such as id:7"),
        (["--value-schema", "id:9"], "kafkafs: the topic _schemas has no id:9"),
        (["--key-schema", "no.avsc"], "kafkafs: no.avsc: No such file or directory"),
        (["--key-schema", "FILE"], "FILE: not UTF-8, so it is not an Avro schema"),
    ],
)
def test_options_that_cannot_be_used(
    options: list[str], error: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_bytes(b"\xff")
    done = cat(data, "t", *options)
    assert done.exit_code != 0
    assert (done.stdout, error in done.stderr) == ("", True)


@pytest.mark.parametrize(
    "option",
    ["--value-only", "--strict", "--avro-json", "--decode-times=iso", "--value-schema=none",
     "--key-schema=none"],
)  # fmt: skip
def test_options_that_require_decode(option: str, data: Path) -> None:
    done = CliRunner().invoke(main, ["cat", str(data), "t", option])
    assert done.exit_code == 2
    assert f"{option.partition('=')[0]} requires --decode" in done.stderr
