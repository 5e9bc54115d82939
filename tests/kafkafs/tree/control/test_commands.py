"""The words that control files take."""

from __future__ import annotations

import errno

import pytest

from kafkafs.tree.control.commands import CANCEL, DRY_RUN, RUN, Command, parse

PARTITIONS = dict.fromkeys(range(12))
VERBS = (RUN, DRY_RUN, CANCEL)
EVERY = list(range(12))


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (["run"], (RUN, EVERY, "run")),
        (["  run\t"], (RUN, EVERY, "run")),
        (["run 3"], (RUN, [3], "run 3")),
        (["run 03"], (RUN, [3], "run 3")),
        (["", "run 11", " ", "run 2", "run 11"], (RUN, [2, 11], "run 2 11")),
        (["run 1", "run"], (RUN, EVERY, "run")),
        ([f"run {number}" for number in EVERY], (RUN, EVERY, "run")),
        (["dry-run", "dry-run"], (DRY_RUN, EVERY, "dry-run")),
        (["dry-run 5"], (DRY_RUN, [5], "dry-run 5")),
        (["cancel"], (CANCEL, EVERY, "cancel")),
    ],
)
def test_what_they_mean(lines: list[str], command: tuple[str, list[int], str]) -> None:
    assert parse(lines, VERBS, PARTITIONS) == Command(*command)


def test_lines_that_say_nothing() -> None:
    assert parse([], VERBS, PARTITIONS) is None
    assert parse(["", " \t"], VERBS, PARTITIONS) is None


def test_a_bare_partition_is_a_run_of_it_where_a_file_takes_that() -> None:
    assert parse(["7", "run 3"], [RUN], PARTITIONS, bare=True) == Command(RUN, [3, 7], "run 3 7")
    with pytest.raises(OSError, match="'7' is not one of run"):
        parse(["7"], [RUN], PARTITIONS)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["go"], "line 1: 'go' is not one of run, dry-run, cancel"),
        (["RUN"], "line 1: 'RUN' is not one of"),
        (["run", "", "run 12"], "line 3: 'run 12' names a partition that the topic does not have"),
        (["run -1"], "names a partition that the topic does not have"),
        (["run 1x"], "names a partition that the topic does not have"),
        (["run \N{ARABIC-INDIC DIGIT ONE}"], "names a partition that the topic does not have"),
        (["run " + "9" * 5000], "names a partition that the topic does not have"),
        (["run 1 2"], "has too many words"),
        (["cancel 1"], "has too many words"),
        (["run", "dry-run"], "line 2: 'dry-run' cannot be in the same write as run"),
    ],
)
def test_what_is_wrong(lines: list[str], reason: str) -> None:
    with pytest.raises(OSError, match=r"line \d: ") as refused:
        parse(lines, VERBS, PARTITIONS, bare=True)
    assert refused.value.errno == errno.EINVAL
    assert reason in str(refused.value.strerror)
