"""`.kafkafs`: what takes its time is made in a worker thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafs.tree.files.virtual_file import MadeFile
from tests.kafkafs.trees import a_tree


@pytest.mark.parametrize("name", ["metrics", "topics"])
def test_nothing_is_made_where_nobody_may_wait(tmp_path: Path, name: str) -> None:
    """open and stat go to a worker thread; what is open is read at once, as it was then."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        node = tree.node(f".kafkafs/{name}")
        assert isinstance(node, MadeFile)
        with pytest.raises(BlockingIOError):
            node.open(0, False)
        with pytest.raises(BlockingIOError):
            node.attributes(False)
        size = node.attributes(True).size
        assert node.attributes(False).size == size
        with pytest.raises(BlockingIOError):
            node.attributes(False)
        handle = node.open(0, True)
        text = bytes(handle.read(0, 1 << 20, False))
        tree.mkdir("another")
        assert bytes(handle.read(0, 1 << 20, False)) == text
        assert node.attributes(False).size == len(text)
        later = node.open(0, True)
        assert node.attributes(False).size == len(later.read(0, 1 << 20, False)) > len(text)
        handle.release()
        later.release()
        with pytest.raises(BlockingIOError):
            node.attributes(False)
