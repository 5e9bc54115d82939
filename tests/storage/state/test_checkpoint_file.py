"""Checkpoints are written to the byte and read strictly."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.state import checkpoint_file

files = Files()
topics = st.text("ab.-_9", min_size=1, max_size=20)
offsets_maps = st.dictionaries(
    st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=5
)


def test_the_bytes_of_an_epoch_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    checkpoint_file.write_epochs(files, path, [(0, 0)])
    assert files.read_whole(path).hex() == "300a310a3020300a"
    assert checkpoint_file.read_epochs(files, path) == [(0, 0)]
    checkpoint_file.write_epochs(files, path, [(1, 0), (5, 17)])
    assert files.read_whole(path) == b"0\n2\n1 0\n5 17\n"


@given(offsets_maps)
def test_offsets_round_trip(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    path = str(tmp_path_factory.mktemp("c") / "f")
    checkpoint_file.write_offsets(files, path, offsets)
    assert checkpoint_file.read_offsets(files, path) == offsets


@pytest.mark.parametrize("read", [checkpoint_file.read_offsets, checkpoint_file.read_epochs])
def test_missing_and_empty_files_have_no_entries(tmp_path: Path, read: Callable[..., Any]) -> None:
    assert not read(files, str(tmp_path / "none"))
    (tmp_path / "empty").touch()
    assert not read(files, str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "text",
    [
        "0\n2\na 0 1\nb 1 22\n",
        "0\n2\na 0 1\nb 1 22",
        "0\r\n2\r\na 0 1\r\nb 1 22\r\n",
        "0\n2\na  0\t1 \nb 1 +22\n",
    ],
)
def test_what_kafka_reads_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_bytes(text.encode())
    found = checkpoint_file.read_offsets(files, str(tmp_path / "f"))
    assert found == {("a", 0): 1, ("b", 1): 22}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1\n0\n", 1),
        ("x\n0\n", 1),
        ("\n", 1),
        ("0\n", 2),
        ("0\nx\n", 2),
        ("0\n-1\n", 2),
        ("0\n1\n", 2),
        ("0\n1\na 0 1\na 1 1\n", 2),
        ("0\n1\na 0 1\n\n", 4),
        ("0\n1\na 0\n", 3),
        ("0\n1\na 0 1 2\n", 3),
        ("0\n1\n a 0 1\n", 3),
        ("0\n1\na 0 1_0\n", 3),
        ("0\n1\na 0 -1\n", 3),
        ("0\n1\na 2147483648 1\n", 3),
        ("0\n1\na 0 9223372036854775808\n", 3),
    ],
)
def test_what_breaks_the_frame_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint) as e:
        checkpoint_file.read_offsets(files, str(path))
    assert (e.value.path, e.value.line) == (str(path), line)


def test_what_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0\n1\n\xff 0 1\n")
    with pytest.raises(CorruptCheckpoint, match="not UTF-8 at byte 4"):
        checkpoint_file.read_offsets(files, str(tmp_path / "f"))


@pytest.mark.parametrize("entries", ["1 5\n1 6", "2 5\n1 6", "1 5\n2 5", "1 5\n2 4"])
def test_epochs_and_their_starts_rise(tmp_path: Path, entries: str) -> None:
    (tmp_path / "f").write_text(f"0\n2\n{entries}\n")
    with pytest.raises(CorruptCheckpoint, match="line 4: epoch") as e:
        checkpoint_file.read_epochs(files, str(tmp_path / "f"))
    assert e.value.line == 4


def test_topic_ids() -> None:
    ids = {checkpoint_file.new_topic_id() for _ in range(500)}
    assert len(ids) == 500
    for topic_id in ids:
        assert len(topic_id) == 22
        assert "-" not in topic_id
        assert len(base64.urlsafe_b64decode(topic_id + "==")) == 16


def test_the_bytes_of_partition_metadata(tmp_path: Path) -> None:
    path = str(tmp_path / "partition.metadata")
    assert checkpoint_file.read_partition_metadata(files, path) is None
    topic_id = checkpoint_file.new_topic_id()
    checkpoint_file.write_partition_metadata(files, path, topic_id)
    assert files.read_whole(path) == f"version: 0\ntopic_id: {topic_id}".encode()
    assert checkpoint_file.read_partition_metadata(files, path) == topic_id


@pytest.mark.parametrize("text", ["version: 0\ntopic_id: {}\n", "version:  7\ntopic_id:\t{}"])
def test_other_writers_partition_metadata(tmp_path: Path, text: str) -> None:
    topic_id = "e1pOB_i6SU-j_Lgkl5Bbcg"
    (tmp_path / "f").write_text(text.format(topic_id))
    assert checkpoint_file.read_partition_metadata(files, str(tmp_path / "f")) == topic_id


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("version: 0", None),
        ("version: 0\ntopic_id: e1pOB_i6SU-j_Lgkl5Bbcg\n\n", None),
        ("version: -1\ntopic_id: e1pOB_i6SU-j_Lgkl5Bbcg", 1),
        ("0\ntopic_id: e1pOB_i6SU-j_Lgkl5Bbcg", 1),
        ("version: 0\nid: e1pOB_i6SU-j_Lgkl5Bbcg", 2),
        ("version: 0\ntopic_id: e1pOB_i6SU-j_Lgkl5Bb", 2),
        ("version: 0\ntopic_id: e1pOB/i6SU+j/Lgkl5B===", 2),
        ("version: 0\ntopic_id: e1pOB_i6SU-j_Lgkl5Bbcü", 2),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 2),
    ],
)
def test_partition_metadata_that_is_none(tmp_path: Path, text: str, line: int | None) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(CorruptCheckpoint) as e:
        checkpoint_file.read_partition_metadata(files, str(tmp_path / "f"))
    assert e.value.line == line


def test_the_clean_shutdown_marker(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert not checkpoint_file.has_marker(files, directory)
    checkpoint_file.remove_marker(files, directory)
    checkpoint_file.write_marker(files, directory)
    marker = tmp_path / ".kafka_cleanshutdown"
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert checkpoint_file.has_marker(files, directory)
    checkpoint_file.remove_marker(files, directory)
    assert not marker.exists()
    marker.touch()  # as old brokers write it
    assert checkpoint_file.has_marker(files, directory)
