"""The documents beside the code name all that there is, and their links lead somewhere.

These tests fail if something new is not described: a command, a setting, a file, a name of Spark.
The generated parts of `docs/reference` are compared with the code. `tests/mount/test_documents.py`
has the names of a mount, and the commands of the README.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kafkafs.cli import main, reference
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.sink import sink_options
from kafkafs.spark.source import options as source_options
from kafkafs.spark.source.rows import TYPES
from kafkafs.tree import errnos
from storage import paths
from storage.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS
from tests.pasted import (
    FROM_CLONE,
    FROM_PACKAGE,
    FROM_REPOSITORY,
    FROM_WHEELS,
    RUN_BY,
    blocks,
    parts,
    title,
)
from tests.pasted import commands as commands_in

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for path in sorted(ROOT.glob("**/*.md"))
    if path.relative_to(ROOT).parts[0]
    in (
        *("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md"),
        *("SECURITY.md", "docs", "kafka_client", "kafkafs", "storage", "tests"),
    )
]
# Long ones, which have a table of contents.
REFERENCES = [
    ROOT / name
    for name in (
        "docs/reference/glossary.md",
        "docs/reference/metrics.md",
        "docs/reference/commands.md",
        "docs/admin.md",
        "docs/spark.md",
        "docs/reference/names.md",
        "docs/reference/following.md",
        "docs/kafka.md",
        "docs/durability.md",
        "docs/reference/settings.md",
    )
]
COMMANDS = ROOT / "docs/reference/commands.md"
SETTINGS = ROOT / "docs/reference/settings.md"
SPARK = ROOT / "docs/spark.md"
ERRORS = ROOT / "docs/reference/errors.md"


def prose(path: Path) -> str:
    """A document without its blocks of code and its comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", path.read_text(), flags=re.M | re.S)


def headings(path: Path) -> list[str]:
    """Return the texts of a document's headings, without its title."""
    return re.findall(r"^##+ (.+)$", prose(path), re.M)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(path: Path) -> list[str]:
    """Return the targets of a document's links, without those to other sites."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [link for link in found if "://" not in link]


def rows(path: Path, chapter: str | None = None) -> dict[str, list[str]]:
    """The rows of its tables, or of a chapter's, by what stands in the first cell."""
    text = prose(path)
    if chapter is not None:
        text = next(
            part for part in re.split(r"^##+ ", text, flags=re.M) if part.startswith(chapter)
        )
    found = {}
    for line in re.findall(r"^\|(.*)\|$", text, re.M):
        first, *others = (cell.strip() for cell in line.split("|"))
        found[first] = others
    return found


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands, by the words that they are called with."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield f"kafkafs {name}", command
        if isinstance(command, click.Group):
            inner = click.Context(command)
            for job in command.list_commands(inner):
                found = command.get_command(inner, job)
                assert found is not None
                yield f"kafkafs {name} {job}", found


# -- the documents themselves ----------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        name, _, place = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{path}: {link}"
        if place:
            assert place in [anchor(heading) for heading in headings(target)], f"{path}: {link}"


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_of_contents_has_all_chapters(path: Path) -> None:
    contents = prose(path).partition("\n## ")[0]
    listed = re.findall(r"\]\(#([^)]+)\)", contents)
    chapters = [anchor(heading) for heading in re.findall(r"^## (.+)$", prose(path), re.M)]
    assert [name for name in listed if name in chapters] == chapters


def test_every_page_is_two_clicks_from_the_readme() -> None:
    """Each page of `docs` is linked from one index, and each decision from the other one."""
    index = ROOT / "docs/index.md"

    def linked(path: Path) -> set[Path]:
        return {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}

    pages = set((ROOT / "docs").rglob("*.md"))
    decisions = ROOT / "docs/dev/decisions/index.md"
    assert index in linked(ROOT / "README.md")
    assert {page for page in pages if page.parent != decisions.parent} <= {index, *linked(index)}
    assert decisions in linked(index)
    assert pages & set(decisions.parent.iterdir()) <= {decisions, *linked(decisions)}


# -- blocks ----------------------------------------------------------------------------------------

PAGES = [str(path.relative_to(ROOT)) for path in DOCUMENTS if path.parent.name != "decisions"]
#: Command lines in `sh` blocks that tests run line by line. Raise it when you add some.
EXECUTED_LINES = 180
#: The first 60 characters of each `text` block, and of each without a kind: these do not run.
NOT_RUN = {
    "CONTRIBUTING.md": [
        "scripts/test unit                                          #",
    ],
    "README.md": [
        "tail mnt/.kafkafs/log    # each refused request, the reason,",
    ],
    "docs/dev/architecture.md": [
        "cat, tail, grep, rsyslog          kafkafs COMMAND",
        "kafkafs   cli > fuse | spark | mirror > tree > line_index >",
    ],
    "docs/dev/history.md": [
        "kernel ── inode ──▶ ViewFile ──▶ Generation ──▶ Timeline ──",
    ],
    "docs/dev/testing.md": [
        ".venv/bin/pytest FILE --stops 3 --hypothesis-profile=random",
    ],
    "docs/performance.md": [
        "$ .venv/bin/python scripts/bench/mount.py --tiny    # some s",
    ],
    "docs/reference/commands.md": [
        'eval "$(_KAFKAFS_COMPLETE=bash_source kafkafs)"    # in ~/.b',
        "$ kafkafs dump --print-data-log orders-0/0000000000000000000",
    ],
    "docs/reference/control-files.md": [
        "$ echo dry-run > mnt/orders/.control/retention && cat mnt/or",
        "$ echo retention.ms=7d >> mnt/orders/.config     # set",
        "$ rmdir mnt/orders",
    ],
    "docs/reference/following.md": [
        "$ cp -r mnt/orders/.snapshot /backup/orders",
        "$ mkdir mnt/.groups/report",
    ],
    "docs/reference/metrics.md": [
        "$ ln -s /srv/mnt/.kafkafs/metrics /var/lib/prometheus/node-e",
    ],
    "docs/reference/names.md": [
        "mnt/",
        "$ mkdir b && touch b/{0..9} && cat a/.config >> b/.config",
    ],
    "docs/spark.md": [
        "$ python3 -m venv ~/kafkafs-venv && ~/kafkafs-venv/bin/pip i",
        "$ spark-submit --master spark://host:7077 \\",
        "$ ~/kafkafs-venv/bin/pip install venv-pack",
    ],
}


def test_every_block_runs_or_is_data() -> None:
    found = {page: {block.kind for block in blocks((ROOT / page).read_text())} for page in PAGES}
    kinds = set().union(*found.values())
    assert kinds <= {"sh", "sh root", "text", "", "python", "ini", "json", "toml", "yaml"}
    assert {page for page in PAGES if "sh" in found[page]} == RUN_BY.keys()


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_that_do_not_run_are_listed(page: str) -> None:
    found = [block for block in blocks((ROOT / page).read_text()) if block.kind in ("text", "")]
    assert [block.text.partition("\n")[0][:60].strip() for block in found] == NOT_RUN.get(page, [])


def test_the_executed_lines_do_not_become_fewer() -> None:
    pages = [page for page in RUN_BY if page != "docs/spark.md"]
    found = [block for page in pages for block in blocks((ROOT / page).read_text())]
    assert (
        sum(len(commands_in(block.text)) for block in found if block.kind == "sh") >= EXECUTED_LINES
    )


def test_fresh_roots_run_all_blocks_for_root() -> None:
    found = [
        (page, title(part))
        for page in PAGES
        for part in parts((ROOT / page).read_text())
        if any(block.kind == "sh root" for block in blocks(part))
    ]
    pasted = [*FROM_PACKAGE, *FROM_REPOSITORY, *FROM_WHEELS, *FROM_CLONE]
    assert sorted(found) == sorted(pasted)


def test_the_glossary_has_each_term_once() -> None:
    terms = re.findall(r"\*\*(.+?)\*\*", prose(ROOT / "docs/reference/glossary.md"))
    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))


#: Kafka's words, as they are written, and what explains each.
EXPLAINED = {
    "last[ _]stable": "transaction",
    "high[ _]watermark": "replicas have",
    "recovery[ _]point": "on the disk",
    "leader[ _]epoch": "leader at|leaders that",
    "dirty": "not compacted",
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_kafkas_words_are_explained_where_they_first_come(path: Path) -> None:
    """Not in the glossary, which explains each word; nor in the changelog and the decisions."""
    if path.name in ("CHANGELOG.md", "glossary.md") or path.parent.name == "decisions":
        return
    text = " ".join(prose(path).split())
    for word, explanation in EXPLAINED.items():
        first = re.search(rf"(?<![-_\w]){word}", text)
        if first is not None:
            around = text[max(first.start() - 150, 0) : first.end() + 150]
            assert re.search(explanation, around), around


@pytest.mark.parametrize("path", sorted(reference.PAGES.glob("*.md")), ids=lambda path: path.name)
def test_a_reference_says_what_the_code_says(path: Path) -> None:
    assert path.read_text() == reference.renewed(path.read_text()), "run scripts/docs"


# -- errors ----------------------------------------------------------------------------------------


def test_every_errno_of_the_storages_errors_is_described() -> None:
    described = {name for cell in rows(ERRORS) for name in re.findall(r"E[A-Z]+", cell)}
    used = {errno.errorcode[number] for number in errnos.ERRNO.values()}
    assert used <= described


# -- commands --------------------------------------------------------------------------------------


def test_every_command_has_a_chapter() -> None:
    """The commands themselves give the text of their chapters."""
    parts = re.findall(r"^<!-- command: (.+) -->$", COMMANDS.read_text(), re.M)
    assert parts == [called.partition(" ")[2] for called, _ in commands()]


# -- settings --------------------------------------------------------------------------------------


def test_every_setting_has_one_row() -> None:
    """The settings themselves give the text of their rows."""
    described = re.findall(r"^\| `([a-z0-9.]+)` \|", prose(SETTINGS), re.M)
    assert sorted(described) == sorted([*TOPIC_SETTINGS, *BROKER_SETTINGS])


# -- Spark -----------------------------------------------------------------------------------------


def test_every_option_of_source_and_sink_is_described() -> None:
    source = set(re.findall(r"`(\w+)`", " ".join(rows(SPARK, "Reading"))))
    assert source == {*source_options.KNOWN.values(), *TYPES}
    sink = re.findall(r"`(\w+)`", " ".join(rows(SPARK, "Writing")))
    with pytest.raises(InvalidOption) as refused:
        sink_options.parse({"unknown": ""})
    assert sink == str(refused.value).partition("There are: ")[2].split(", ")
    text = SPARK.read_text().lower()
    assert [name for name in source_options.WITHOUT_EFFECT if name not in text] == []


# -- files -----------------------------------------------------------------------------------------


def test_every_file_of_a_data_directory_is_named() -> None:
    text = (ROOT / "docs/durability.md").read_text()
    kafkas = {
        value
        for name, value in vars(paths).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    # A format of long ago, and what only names a directory of another program.
    unnamed = {paths.OLD_LOG, paths.METADATA_LOG}
    assert [name for name in sorted(kafkas - unnamed) if name not in text] == []
