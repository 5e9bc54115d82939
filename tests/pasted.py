"""Fenced blocks of the documents, by the headings that they stand below.

`sh` blocks run in the suite, `sh root` blocks in fresh roots, by tests/soak/test_package.py. `text`
blocks do not run. tests/test_documents.py checks that no other block is there.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from tests import shell_kafkafs

ROOT = Path(__file__).parents[1]

#: The tests that run the `sh` blocks of a page.
RUN_BY = {
    "README.md": "tests/mount/test_documents.py",
    "docs/admin.md": "tests/mount/test_documents.py",
    "docs/cookbook.md": "tests/mount/test_documents.py",
    "docs/durability.md": "tests/mount/test_pages_for_operators.py",
    "docs/kafka.md": "tests/mount/test_pages_for_operators.py",
    "docs/reference/following.md": "tests/mount/contract/test_groups.py",
    "docs/spark.md": "tests/spark/test_readme_scripts.py",
}

#: The chapters with `sh root` blocks, by page and heading, in the order in which a root runs them.
FROM_PACKAGE = [
    ("README.md", "A package"),
    ("docs/admin.md", "Mount at boot"),
    ("docs/cookbook.md", "Send the logs of services to it"),
    ("docs/admin.md", "mount(8) and fstab"),
    ("docs/admin.md", "Upgrade"),
    ("docs/admin.md", "Remove a package"),
]
FROM_REPOSITORY = [("docs/admin.md", "An apt repository")]
FROM_WHEELS = [("docs/admin.md", "Wheels")]
FROM_CLONE = [
    ("README.md", "From a clone"),
    ("docs/admin.md", "Remove an installation from a clone"),
]


class Block(NamedTuple):
    """A fenced block: the words after the fence, and its lines."""

    kind: str
    text: str


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a text in their order."""
    return [Block(*found) for found in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S)]


class Command(NamedTuple):
    """A line of a shell, and the lines that it prints."""

    line: str
    shown: list[str]


def commands(script: str) -> list[Command]:
    """Return the command lines, each with the lines after `#>` that it prints, without comments."""
    found: list[Command] = []
    for line in script.splitlines():
        if line.startswith("#>"):
            found[-1].shown.append(line.removeprefix("#>").removeprefix(" "))
        elif line and not line.startswith("# "):
            found.append(Command(line, []))
    return found


def parts(text: str) -> list[str]:
    """Split a document before each heading. A line in a block is no heading."""
    found, in_block = [""], False
    for line in text.splitlines(keepends=True):
        in_block ^= line.startswith("```")
        if line.startswith("#") and not in_block:
            found.append("")
        found[-1] += line
    return [part for part in found if part]


def title(part: str) -> str:
    """Return the words of the heading that a part starts with."""
    return part.partition("\n")[0].lstrip("#").strip()


def scripts(page: str) -> dict[str, str]:
    """Return the `sh` blocks of a page, by the heading that they stand below."""
    found = {
        title(part): "".join(block.text for block in blocks(part) if block.kind == "sh")
        for part in parts((ROOT / page).read_text())
    }
    return {heading: text for heading, text in found.items() if text}


def environment(directory: Path) -> dict[str, str]:
    """Return the variables of a shell that knows `kafkafs` and has its cache in a directory."""
    places = [shell_kafkafs.directory(), Path(sys.executable).parent, os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(map(str, places)),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "LC_ALL": "C.UTF-8",
    }


def is_like(printed: str, shown: str) -> bool:
    """Whether a line is as shown, where … stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed) is not None


def scripts_of(place: tuple[str, str], kind: str) -> list[str]:
    """Return the blocks of a kind below a heading of a page."""
    page, heading = place
    (part,) = [part for part in parts((ROOT / page).read_text()) if title(part) == heading]
    return [block.text for block in blocks(part) if block.kind == kind]
