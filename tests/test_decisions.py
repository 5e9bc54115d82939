"""The index of decisions has each of them, with its title."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = Path(__file__).parents[1] / "docs/dev/decisions"


def test_the_index_lists_each_decision_with_its_title() -> None:
    listed = re.findall(
        r"^\| (\d+) \| \[(.+)\]\((.+)\) \| (?:in force|changed in part|superseded) "
        r"\| \d{4}-\d\d-\d\d \|",
        (DECISIONS / "index.md").read_text(),
        re.M,
    )
    written = []
    for path in sorted(DECISIONS.glob("0*.md")):
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        assert int(path.name[:4]) == int(number), path
        written.append((number, title, path.name))
    assert listed == written
