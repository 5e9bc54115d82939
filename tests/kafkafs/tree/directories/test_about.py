"""`.kafkafs`: what takes its time is made in a worker thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkafs.tree.files.text_file import TextFile
from storage.waiting import at_once
from tests.kafkafs.trees import a_tree


@pytest.mark.parametrize(
    ("name", "flags"),
    [("metrics", os.O_RDONLY), ("topics", os.O_RDONLY), ("topics", os.O_RDWR)],
)
def test_nothing_is_made_where_nobody_may_wait(tmp_path: Path, name: str, flags: int) -> None:
    """open and stat go to a worker thread; what is open is read at once, as it was then."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        node = tree.node(f".kafkafs/{name}")
        assert isinstance(node, TextFile)
        with pytest.raises(BlockingIOError):
            at_once(node.open, flags)
        with pytest.raises(BlockingIOError):
            at_once(node.attributes)
        assert node.attributes().size > 0
        handle = node.open(flags)
        text = bytes(at_once(handle.read, 0, 1 << 20))
        tree.mkdir("another")
        assert bytes(at_once(handle.read, 0, 1 << 20)) == text
        assert at_once(node.attributes).size == len(text)
        later = node.open(flags)
        assert at_once(node.attributes).size == len(at_once(later.read, 0, 1 << 20)) > len(text)
        handle.release()
        later.release()
        with pytest.raises(BlockingIOError):
            at_once(node.attributes)
