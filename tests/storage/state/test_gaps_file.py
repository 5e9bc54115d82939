"""The gaps of a partition are read back, each once; a file that is no list of gaps is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.paths import MAX_OFFSET
from storage.state import gaps_file
from storage.state.gaps_file import FILE_NAME, KINDS, Gap

files = Files()


def test_written_and_read(tmp_path: Path) -> None:
    """One of the same kind and offsets keeps its first time."""
    assert gaps_file.read(files, str(tmp_path)) == ()
    gaps = [Gap(kind, n, n, 5) for n, kind in enumerate(KINDS)]
    gaps += [Gap("deleted", 0, MAX_OFFSET, MAX_OFFSET), Gap("missing", 0, MAX_OFFSET, 0)]
    assert gaps_file.add(files, str(tmp_path), gaps[:1]) == gaps[:1]
    assert gaps_file.add(files, str(tmp_path), gaps) == gaps[1:]
    again = [gap._replace(time_ms=7) for gap in gaps if gap.kind != "diverged"]
    assert gaps_file.add(files, str(tmp_path), again) == []
    assert gaps_file.read(files, str(tmp_path)) == tuple(gaps)
    assert os.listdir(tmp_path) == [FILE_NAME]
    assert (tmp_path / FILE_NAME).read_text().startswith("deleted 0 0 5\nmissing 1 1 5\n")


def test_one_from_before_a_truncation_is_written_again(tmp_path: Path) -> None:
    gaps = [
        Gap("diverged", 80, 99, 1),
        Gap("deleted", 30, 70, 2),
        Gap("missing", 10, 49, 3),
        Gap("diverged", 50, 60, 4),
    ]
    gaps_file.add(files, str(tmp_path), gaps)
    assert sorted(gaps_file.in_force(gaps)) == [
        Gap("deleted", 30, 49, 2),
        Gap("diverged", 50, 60, 4),
        Gap("missing", 10, 49, 3),
    ]
    assert gaps_file.add(files, str(tmp_path), gaps) == [*gaps[:2], gaps[3]]


def test_a_divergence_is_never_left_out(tmp_path: Path) -> None:
    """The same offsets had other records since."""
    gaps = [Gap("diverged", 80, 99, 1), Gap("diverged", 80, 99, 2)]
    for gap in gaps:
        assert gaps_file.add(files, str(tmp_path), [gap]) == [gap]
    assert gaps_file.read(files, str(tmp_path)) == tuple(gaps)


def test_one_that_a_killed_process_has_written_is_made_durable(tmp_path: Path) -> None:
    """It may have had no time for it."""

    class Recorded(Files):
        def __init__(self) -> None:
            super().__init__()
            self.synced: list[str] = []

        def sync_directory(self, path: str) -> None:
            self.synced.append(path)

    (tmp_path / FILE_NAME).write_text("deleted 1 2 3\n")
    recorded = Recorded()
    assert gaps_file.add(recorded, str(tmp_path), [Gap("deleted", 1, 2, 4)]) == []
    assert recorded.synced == [str(tmp_path)]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\n", b"\0\0", b"\xff\n", b"deleted 1 2 3", b"deleted 1 2 3\nmissing 4 5 6"),
        *(b"deleted 1 2\n", b"deleted 1 2 3 4\n", b"lost 1 2 3\n", b"deleted 2 1 3\n"),
        *(b"deleted -1 2 3\n", b"deleted 1 2 -3\n", b"deleted 01 2 3\n", b"deleted 1  2 3\n"),
        *(b"deleted 1 2 3 \n", b"deleted 1 2 3\r\n", b"deleted 1 2 3\x0bdeleted 4 5 6\n"),
        *(b"deleted 1 %d 3\n" % (MAX_OFFSET + 1), b"deleted 1 %s 3\n" % (b"9" * 5000)),
        None,
    ],
)
def test_what_is_no_list_of_gaps(tmp_path: Path, content: bytes | None) -> None:
    """It is an error for who reads it; the next gap begins another file."""
    path = tmp_path / FILE_NAME
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="not a list of gaps"):
        gaps_file.read(files, str(tmp_path))
    gap = Gap("missing", 4, 5, 6)
    assert gaps_file.add(files, str(tmp_path), [gap]) == [gap]
    assert gaps_file.read(files, str(tmp_path)) == (gap,)
    bad = tmp_path / f"{FILE_NAME}.bad"
    assert bad.is_dir() if content is None else bad.read_bytes() == content
