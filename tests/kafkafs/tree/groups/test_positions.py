"""Lines that commit a position: the offset of each line, within the log, or EINVAL."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.tree.files.start_names import Edge, Offset, Time
from kafkafs.tree.groups.positions import Change, Wanted, offset_of, parse
from kafkafs.tree.partition.partition import Partition
from storage import Record, encode
from tests.kafkafs.trees import Tree, a_tree
from tests.storage.logs import NOW_MS

#: The log has the offsets 3 to 9. The timestamp of offset N is NOW_MS + N.
START, END = 3, 10


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partition]:
    with a_tree(tmp_path_factory.mktemp("data")) as tree:
        yield partition_of(tree)


def partition_of(tree: Tree) -> Partition:
    tree.mkdir("t")
    for number in range(END):
        if number == START:
            tree.roll()
        records = [Record(0, NOW_MS + number, 0, None, b"%d" % number)]
        tree.log().append(bytearray(encode(records)), now_ns=NOW_MS * 1_000_000)
    tree.remove_head(1)
    assert (tree.log().log_start_offset, tree.log().log_end_offset) == (START, END)
    return tree.fs.partitions.of(tree.log())


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("7", Offset(7)),
        ("007", Offset(7)),
        ("20261121", Offset(20261121)),
        ("+7", Change(7)),
        ("-7", Change(-7)),
        ("+0", Change(0)),
        ("earliest", Edge.START),
        ("latest", Edge.END),
        ("-15m", Time(NOW_MS - 15 * 60_000)),
        ("1970-01-01T00:00:01Z", Time(1000)),
        (" 7 ", Offset(7)),
    ],
)
@pytest.mark.parametrize("metadata", ["", "words, and\ta tab ", "\t"])
def test_what_lines_say(line: str, where: object, metadata: str) -> None:
    assert parse(f"{line}\t{metadata}" if metadata else line, NOW_MS) == Wanted(where, metadata)  # type: ignore[arg-type]


@given(st.text())
def test_any_line_has_a_meaning_or_is_einval(line: str) -> None:
    try:
        found = parse(line, NOW_MS)
    except OSError as error:
        refused = error
    else:
        assert found.metadata == line.partition("\t")[2]
        return
    assert refused.errno == errno.EINVAL
    assert len(str(refused)) < 500


@given(
    line=st.one_of(
        st.integers(-2, END + 3).map(str),
        st.integers(0, 12).map(lambda number: f"+{number}"),
        st.sampled_from(["earliest", "latest", "1970-01-02", "2200-01-01"]),
    ),
    committed=st.none() | st.integers(0, END),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_position_is_in_the_log_and_what_was_asked_for(
    partition: Partition, line: str, committed: int | None
) -> None:
    expected: int | None
    if line == "earliest" or line.startswith("1970"):
        expected = START
    elif line == "latest" or line.startswith("2200"):
        expected = END
    elif line[0] in "+-":
        expected = None if committed is None else committed + int(line)
    else:
        expected = int(line)
    wanted = parse(line, NOW_MS)
    if expected is not None and START <= expected <= END:
        assert offset_of(wanted, partition, committed) == expected
        return
    words = "no offset is committed" if expected is None else f"\\({START}\\.\\.{END}\\)"
    with pytest.raises(OSError, match=words) as refused:
        offset_of(wanted, partition, committed)
    assert refused.value.errno == errno.EINVAL


def test_a_time_is_that_of_a_record(partition: Partition) -> None:
    for ms, expected in ((0, START), (5, 5), (END - 1, END - 1), (END, END)):
        wanted = Wanted(Time(NOW_MS + ms), "")
        assert offset_of(wanted, partition, None) == expected
