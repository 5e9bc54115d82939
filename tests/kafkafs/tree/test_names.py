"""Every name of the mount: its inode number, kind, mode, and how long the kernel may keep it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.cli.common.views import VIEWS as COMMANDS_VIEWS
from kafkafs.mount_options import MountOptions
from kafkafs.tree import names
from kafkafs.tree.directories.directory import Page
from kafkafs.tree.directories.help_text import HELP
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.inodes import KEEP_S, ROOT_INODE, Directory, inode_number
from kafkafs.views import VIEWS
from storage.manager import Topic
from tests.kafkafs.trees import CALLER, Tree, a_tree

KEPT = (KEEP_S, KEEP_S)
"""The kernel keeps the attributes and the name."""
NAME_KEPT = (0.0, KEEP_S)
ATTRIBUTES_KEPT = (KEEP_S, 0.0)
NOT_KEPT = (0.0, 0.0)

ID = "the topic's id"
NONCE = "the partition's nonce"
OTHER = None
"""The inode number is that of a partition's text or a file on the disk, which other tests check."""

Parts = tuple[object, ...] | None
NAMES: dict[str, tuple[Parts, str, int, tuple[float, float]]] = {
    "": (OTHER, "mount", 0o40755, KEPT),
    ".groups": ((".groups", "", 0), "group", 0o41777, NOT_KEPT),
    ".groups/.lag": ((".groups/.lag",), "file", 0o100440, NOT_KEPT),
    ".groups/g": ((".groups/g", "", 0), "group", 0o40755, NOT_KEPT),
    ".groups/g/.claims": ((".groups/g/.claims",), "file", 0o100644, NOT_KEPT),
    ".groups/g/.lag": ((".groups/g/.lag",), "file", 0o100444, NOT_KEPT),
    ".groups/g/t": ((".groups/g/t", ID, 0), "group", 0o40755, NOT_KEPT),
    ".groups/g/t/.all": ((".groups", "g", "t", ID, ".all"), "file", 0o100200, NOT_KEPT),
    ".groups/g/t/0": ((".groups", "g", "t", ID, "0"), "file", 0o100644, NOT_KEPT),
    ".kafkafs": ((".kafkafs",), "directory", 0o40555, KEPT),
    ".kafkafs/adopt": ((".kafkafs", "adopt"), "file", 0o100600, NOT_KEPT),
    ".kafkafs/config": ((".kafkafs", "config"), "file", 0o100440, NOT_KEPT),
    ".kafkafs/help": ((".kafkafs", "help"), "file", 0o100444, NOT_KEPT),
    ".kafkafs/log": ((".kafkafs", "log"), "file", 0o100440, NOT_KEPT),
    ".kafkafs/metrics": ((".kafkafs", "metrics"), "file", 0o100440, NOT_KEPT),
    ".kafkafs/topics": ((".kafkafs", "topics"), "file", 0o100640, NOT_KEPT),
    ".kafkafs/version": ((".kafkafs", "version"), "file", 0o100444, NOT_KEPT),
    "t": (("t", ID), "topic", 0o40755, KEPT),
    "t/.append": (("t", ID, ".append"), "file", 0o100200, NOT_KEPT),
    "t/.batches": (("t", ID, ".batches"), "directory", 0o40555, KEPT),
    "t/.batches/.snapshot": (("t", ID, ".batches/.snapshot"), "directory", 0o40555, KEPT),
    "t/.batches/.snapshot/0": (OTHER, "partition", 0o100644, ATTRIBUTES_KEPT),
    "t/.batches/0": (("t", ID, 0, "batches", NONCE), "partition", 0o100644, NAME_KEPT),
    "t/.config": (("t", ID, ".config"), "file", 0o100644, NOT_KEPT),
    "t/.control": (("t", ID, ".control"), "directory", 0o40555, KEPT),
    **{
        f"t/.control/{name}": (("t", ID, ".control", name), "file", 0o100644, NOT_KEPT)
        for name in (
            *("abort-transaction", "compaction", "delete-records", "flush", "retention", "roll"),
            "verify",
        )
    },
    "t/.follow": (("t", ID, ".follow"), "directory", 0o40555, KEPT),
    "t/.follow/0": (OTHER, "partition", 0o100644, NAME_KEPT),
    "t/.jsonl": (("t", ID, ".jsonl"), "directory", 0o40555, KEPT),
    "t/.jsonl/.snapshot": (("t", ID, ".jsonl/.snapshot"), "directory", 0o40555, KEPT),
    "t/.jsonl/.snapshot/0": (OTHER, "partition", 0o100644, ATTRIBUTES_KEPT),
    "t/.jsonl/0": (("t", ID, 0, "jsonl", NONCE), "partition", 0o100644, NAME_KEPT),
    "t/.jsonl/append": (("t", ID, ".jsonl/append"), "file", 0o100200, NOT_KEPT),
    "t/.kv": (("t", ID, ".kv"), "directory", 0o40555, KEPT),
    "t/.kv/.snapshot": (("t", ID, ".kv/.snapshot"), "directory", 0o40555, KEPT),
    "t/.kv/.snapshot/0": (OTHER, "partition", 0o100644, ATTRIBUTES_KEPT),
    "t/.kv/0": (("t", ID, 0, "kv", NONCE), "partition", 0o100644, NAME_KEPT),
    "t/.kv/append": (("t", ID, ".kv/append"), "file", 0o100200, NOT_KEPT),
    "t/.meta": (("t", ID, ".meta"), "directory", 0o40555, KEPT),
    "t/.meta/0": (("t", ID, ".meta", "0"), "directory", 0o40555, KEPT),
    **{
        f"t/.meta/0/{name}": (("t", ID, 0, ".meta", name), "file", 0o100444, NOT_KEPT)
        for name in ("offsets", "segments", "index", "timeindex", "txnindex", "producers")
    },
    "t/.raw": (("t", ID, ".raw"), "directory", 0o40555, KEPT),
    "t/.raw/0": (("t", ID, ".raw", "0"), "directory", 0o40555, NAME_KEPT),
    "t/.raw/0/00000000000000000000.log": (OTHER, "file", 0o100444, NOT_KEPT),
    "t/.raw/0/partition.metadata": (OTHER, "file", 0o100444, NOT_KEPT),
    "t/.ship": (("t", ID, ".ship"), "directory", 0o40555, KEPT),
    "t/.ship/0": (OTHER, "partition", 0o100644, NAME_KEPT),
    "t/.snapshot": (("t", ID, ".snapshot"), "directory", 0o40555, KEPT),
    "t/.snapshot/0": (OTHER, "partition", 0o100644, ATTRIBUTES_KEPT),
    "t/0": (("t", ID, 0, "values", NONCE), "partition", 0o100644, KEPT),
    "t/0@start": (OTHER, "partition", 0o100644, NOT_KEPT),
}
UNLISTED = {".groups/.lag", ".groups/g/.claims", ".groups/g/.lag", ".groups/g/t/.all", "t/0@start"}
"""The names that no directory lists, not even with `show_dot`."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    data = tmp_path_factory.mktemp("data")
    data.chmod(0o755)
    with a_tree(data, MountOptions(show_dot=True)) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"record\n")
        tree.directory(".groups").mkdir("g", 0o755, CALLER)
        handle = tree.open(".groups/g/t/0", os.O_WRONLY)
        handle.write(0, b"1\n")
        handle.release()
        yield tree


def number(tree: Tree, path: str, topic: Topic) -> int | None:
    """The inode number of a name by its parts."""
    parts = NAMES[path][0]
    if path == "":
        return ROOT_INODE
    if parts is None:
        return None
    if NONCE in parts:
        partition = tree.fs.partitions.of(tree.log())
        (view,) = (each for each in tree.fs.mount.views if each.name == parts[3])
        return ViewFile.number(partition, view, partition.nonce())
    return inode_number(*(topic.id if part == ID else part for part in parts))


@pytest.mark.parametrize("path", NAMES)
def test_a_name(tree: Tree, path: str) -> None:
    _, kind, mode, kept = NAMES[path]
    node = tree.node(path) if path else tree.fs.root
    found = tree.attributes(node)
    assert node.inode == found.inode
    assert found.inode == (number(tree, path, tree.manager.topic("t")) or found.inode)
    assert (node.kind, found.mode) == (kind, mode)
    assert (found.attr_timeout, found.entry_timeout) == kept
    # The event log shows no bounds: anybody may look up any number of them.
    assert node.path == path.replace(".snapshot/0", "0@…").replace("@start", "@…")


def test_the_listings_have_these_names(tree: Tree) -> None:
    listed: list[str] = []

    def walk(path: str, node: object) -> None:
        listed.append(path)
        for name in node.names() if isinstance(node, Directory) else ():
            below = f"{path}/{name}".lstrip("/")
            walk(below, tree.node(below))

    walk("", tree.fs.root)
    of_the_disk = [path for path in listed if path.startswith("t/.raw/0/")]
    assert sorted({*listed} - {*of_the_disk}) == sorted(
        {*NAMES} - UNLISTED - {path for path in NAMES if path.startswith("t/.raw/0/")}
    )


# -- the page --------------------------------------------------------------------------------------

ON_THE_PAGE = {
    name for page in vars(names).values() if isinstance(page, Page) for name in page.rows
}
REFERENCE = Path(__file__).parents[3] / "docs/reference/names.md"
PICTURE = REFERENCE.read_text().split("```\n")[1]
"""The manual page of names has it, too."""


def words(text: str) -> set[str]:
    return set(re.findall(r"\.?[\w-]+", text))


def test_each_name_of_the_page_is_checked_here() -> None:
    assert {*(path.rpartition("/")[2] for path in NAMES)} >= ON_THE_PAGE


@pytest.mark.parametrize("text", [HELP, PICTURE], ids=["help", "reference"])
def test_the_help_and_the_reference_have_all_names(text: str) -> None:
    assert sorted(ON_THE_PAGE - words(text)) == []


def test_the_reference_has_no_other_names() -> None:
    dotted = {word for word in words(PICTURE) if word.startswith(".")}
    assert sorted(dotted - ON_THE_PAGE) == []


def test_commands_know_the_views() -> None:
    assert tuple(VIEWS) == COMMANDS_VIEWS
