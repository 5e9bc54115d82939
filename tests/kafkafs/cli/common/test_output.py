"""How facts, tables, sizes and times are printed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kafkafs.cli import LazyGroup, Section, main
from kafkafs.cli.common.output import Output, objects, output_options
from kafkafs.quantities import Size, TimeMs, human_size, local_time

COLUMNS = ("topic", "size", "last")
ROWS = [("orders", Size(1536), TimeMs(1_700_000_000_005)), ("a\nb", Size(3), None)]


@pytest.fixture(autouse=True)
def in_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local time that is not UTC, and no whole hours from it."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@click.command()
@output_options(times=True, sizes=True)
def table(out: Output) -> None:
    out.say("for people")
    out.table(COLUMNS, ROWS)


@click.command()
@output_options(times=True, sizes=True)
def facts(out: Output) -> None:
    out.facts({"size": Size(1 << 20), "last": TimeMs(5), "whole": True, "rate": 1.50, "none": None})


class OneCommand(LazyGroup):
    """`kafkafs` with one command."""

    def __init__(self, command: click.Command) -> None:
        super().__init__([Section("", "", {str(command.name): ""})])
        self._only = command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return self._only


def printed(command: click.Command, *options: str) -> str:
    group = OneCommand(command)
    done = CliRunner().invoke(group, [*group.helps, *options], prog_name="kafkafs")
    assert done.exit_code == 0
    return done.stdout


def test_a_table() -> None:
    assert printed(table).splitlines() == [
        "for people",
        "topic     size                       last",
        "orders  1.5KiB  2023-11-15T03:43:20+05:30",
        "a\\nb        3B                          -",
    ]
    assert printed(table, "--bytes", "--epoch").splitlines()[2:] == [
        "orders  1536  1700000000005",
        "a\\nb       3              -",
    ]


def test_a_table_as_json() -> None:
    for options in ([], ["--epoch"], ["--bytes"]):
        assert json.loads(printed(table, "--json", *options)) == {
            "schema": 1,
            "command": "table",
            "result": [
                {"topic": "orders", "bytes": 1536, "last": "2023-11-15T03:43:20.005+05:30"},
                {"topic": "a\nb", "bytes": 3, "last": None},
            ],
            "problems": [],
        }


def test_facts() -> None:
    assert printed(facts).splitlines() == [
        "size 1.0MiB",
        "last 1970-01-01T05:30:00+05:30",
        "whole true",
        "rate 1.5",
        "none -",
    ]
    assert json.loads(printed(facts, "--json"))["result"] == {
        "bytes": 1 << 20,
        "last": "1970-01-01T05:30:00.005+05:30",
        "whole": True,
        "rate": 1.5,
        "none": None,
    }


@click.command()
@output_options()
def nested(out: Output) -> None:
    out.json({"rows": objects(COLUMNS, ROWS), "bad": "\udcff"})


def test_objects_in_an_object() -> None:
    found = json.loads(printed(nested, "--json"))["result"]
    assert found["rows"][0]["bytes"] == 1536
    assert found["bad"] == "\udcff"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (102_400, "100KiB"),
        (1_048_575, "1.0MiB"),
        (10 << 30, "10.0GiB"),
        ((1 << 63) - 1, "8.0EiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert human_size(size) == text


def test_times_of_no_year() -> None:
    assert local_time(-1) == "1970-01-01T05:29:59.999+05:30"
    assert local_time((1 << 63) - 1) == str((1 << 63) - 1)
    assert local_time(-(1 << 63)) == str(-(1 << 63))


def test_what_is_wrong_is_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*, color: bool) -> str:
        return CliRunner().invoke(main, ["verify", "/nowhere"], color=color).stderr

    line = "kafkafs: /nowhere: no such data directory"
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown(color=False) == f"{line}\n"
    assert shown(color=True) == f"\x1b[31m{line}\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(color=True) == f"{line}\n"
