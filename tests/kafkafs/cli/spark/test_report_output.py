"""How the report of a Spark job is printed."""

from __future__ import annotations

import json

import pytest

from kafkafs.cli.common.output import Output
from kafkafs.cli.spark.job import print_report
from kafkafs.quantities import Size, TimeMs, local_time
from kafkafs.spark.jobs.report import JobReport, Table

AT = TimeMs(1_700_000_000_005)
REPORT = JobReport(
    "stats",
    figures={"records": 1234567, "bytes": Size(1536), "rate": 1.25, "none": None},
    tables=[Table("times", ("topic", "oldest"), [("a\nb", AT)])],
    faults=["a fault"],
    notes=["a note"],
)


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """As other commands print facts and tables."""
    print_report(REPORT, Output())
    fault, *lines, note = capsys.readouterr().out.splitlines()
    assert (fault, note) == ("a fault", "a note")
    assert [line.split() for line in lines] == [
        [],
        ["times"],
        ["topic", "oldest"],
        ["a\\nb", local_time(AT, "seconds")],
        [],
        ["records", "1234567"],
        ["bytes", "1.5KiB"],
        ["rate", "1.25"],
        ["none", "-"],
    ]
    print_report(REPORT, Output(epoch=True, in_bytes=True))
    text = capsys.readouterr().out
    assert "a\\nb   1700000000005\n" in text
    assert "bytes 1536\n" in text


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    print_report(REPORT, out)
    out.end()
    found = json.loads(capsys.readouterr().out)
    assert [each["message"] for each in found["problems"]] == ["a fault"]
    assert found["result"] == {
        "job": "stats",
        "dry_run": False,
        "figures": {"records": 1234567, "bytes": 1536, "rate": 1.25, "none": None},
        "tables": {"times": [{"topic": "a\nb", "oldest": local_time(AT)}]},
        "notes": ["a note"],
    }
