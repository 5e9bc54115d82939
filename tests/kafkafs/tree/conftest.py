"""A tree with one topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafkafs.trees import Tree, a_tree


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        yield tree
