"""The documents for developers: the index of decisions, and what tests quote from the contract."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs/dev/decisions"
CONTRACT = ROOT / "docs/dev/contract.md"
CONTRACT_TESTS = sorted((ROOT / "tests/mount/contract").glob("*.py"))


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


def quotes(path: Path) -> list[str]:
    """Return the sentences of the contract that a module's docstring quotes."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    return re.findall(r'"([^"]+)" (?:of|in) the contract', text)


@pytest.mark.parametrize("path", CONTRACT_TESTS, ids=lambda path: path.name)
def test_the_contract_has_what_its_tests_quote(path: Path) -> None:
    contract = " ".join(CONTRACT.read_text().split())
    assert [quote for quote in quotes(path) if quote not in contract] == []


def test_tests_quote_the_contract() -> None:
    assert len([quote for path in CONTRACT_TESTS for quote in quotes(path)]) > 5


def test_the_format_names_each_file_of_our_own() -> None:
    text = (ROOT / "docs/dev/format.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "storage").rglob("*.py"))
    named = set(re.findall(r'^[A-Z_]+ = "(kafkafs[.-][a-z.-]+)"$', sources, re.M))
    named.remove("kafkafs.retention")  # a group of entry points
    assert len(named) > 10
    assert [name for name in sorted(named) if name not in text] == []


@pytest.mark.parametrize(
    "name", ["AGENTS.md", "CONTRIBUTING.md", "docs/dev/architecture.md", "docs/dev/testing.md"]
)
def test_files_that_developers_are_led_to_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    paths = re.findall(
        r"(?<![\w/.])((?:scripts|tests|storage|kafka_client|kafkafs|docs)/[\w./-]*\w)", text
    )
    assert paths
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


def test_continuous_integration_runs_the_three_lanes() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert [line for line in re.findall(r"- run: (.+)", text) if line.startswith("scripts/")] == [
        "scripts/test unit",
        "scripts/test",
        "scripts/test --soak",
    ]
