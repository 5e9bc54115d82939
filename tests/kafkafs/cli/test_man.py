"""The manual pages say all that `--help` and the documents do, and format without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kafkafs.cli import LazyGroup, main
from kafkafs.cli.man import write
from kafkafs.mount_options import OPTIONS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `bin`, and the pages in `share/man`, as a virtual environment has them."""
    directory = tmp_path_factory.mktemp("prefix")
    (directory / "bin").mkdir()
    write(directory / "share/man", "1.2.3")
    return directory


@pytest.fixture(scope="module")
def pages(prefix: Path) -> dict[str, Path]:
    """The pages' files by their names."""
    return {path.name: path for path in prefix.glob("share/man/man?/*")}


def man(prefix: Path, *arguments: str | Path) -> str:
    """Return the output of `man` for a user with that `bin` in the PATH. It prints no warning."""
    done = subprocess.run(
        ["man", "--warnings", *arguments],
        env={
            "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "MANWIDTH": "80",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def words(text: str) -> str:
    """A text whatever its line breaks."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def shown(prefix: Path, pages: dict[str, Path]) -> dict[str, str]:
    """The words that `man` prints of each page."""
    return {name: words(man(prefix, "-l", path)) for name, path in pages.items()}


def commands(context: click.Context) -> Iterator[click.Context]:
    """A command, and all below it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from commands(click.Context(command, parent=context, info_name=name))


ALL = list(commands(click.Context(main, info_name="kafkafs", **main.context_settings)))


def page_of(context: click.Context) -> str:
    return context.command_path.replace(" ", "-") + ".1"


# -- all pages -------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_command(pages: dict[str, Path]) -> None:
    made = {page_of(context) for context in ALL}
    others = {"mount.kafkafs.8", "mount.fuse.kafkafs.8", "umount.fuse.kafkafs.8"}
    others |= {"kafkafs.5", "kafkafs.properties.5"}
    assert pages.keys() == made | others


@pytest.mark.programs
def test_man_finds_them_beside_the_program(prefix: Path, pages: dict[str, Path]) -> None:
    for name in ("kafkafs.1", "kafkafs-ls.1", "kafkafs-spark-export.1", "mount.kafkafs.8"):
        assert man(prefix, "-w", name[:-2]) == f"{pages[name]}\n"
    assert man(prefix, "-w", "5", "kafkafs") == f"{pages['kafkafs.5']}\n"


@pytest.mark.programs
def test_one_program_with_two_names_has_one_page(prefix: Path, tmp_path: Path) -> None:
    page = man(prefix, "mount.kafkafs")
    assert man(prefix, "mount.fuse.kafkafs") == page
    # As packages have them.
    shutil.copytree(prefix, tmp_path / "packed")
    subprocess.run(["gzip", "-r", tmp_path / "packed/share/man"], check=True)
    assert man(tmp_path / "packed", "mount.fuse.kafkafs") == page


@pytest.mark.programs
def test_mandoc_finds_nothing_wrong(pages: dict[str, Path]) -> None:
    whole = [path for path in sorted(pages.values()) if not path.read_text().startswith(".so ")]
    done = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", *map(str, whole)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.programs
def test_no_page_refers_to_a_document(shown: dict[str, str]) -> None:
    for name, text in shown.items():
        assert re.findall(r"\]\([^)]*\)|\*\*[^*]+\*\*|\|---|\S+\.md\b|@VERSION@", text) == [], name


@pytest.mark.programs
def test_what_a_page_leads_to_is_there(shown: dict[str, str], pages: dict[str, Path]) -> None:
    for name, text in shown.items():
        named = re.findall(r"(?<![\w./-])([\w.-]*kafkafs[\w.-]*)\((\d)\)", text)
        assert [
            f"{page}.{number}" for page, number in named if f"{page}.{number}" not in pages
        ] == []
        assert named, name


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ALL, ids=lambda context: context.command_path)
@pytest.mark.programs
def test_a_page_says_what_help_says(shown: dict[str, str], context: click.Context) -> None:
    text = shown[page_of(context)]
    command = context.command
    assert words(" ".join(command.collect_usage_pieces(context))) in text
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            assert words(" ".join(record)).rstrip(".").replace("`", "") in text
    for line in (command.epilog or "").splitlines()[2:]:
        assert words(line) in text
    if isinstance(command, LazyGroup):
        for name, told in command.helps.items():
            assert f"{context.command_path.replace(' ', '-')}-{name}(1) {told}" in text
    assert "kafkafs 1.2.3" in text
    if command.name != "dump":
        assert "not done, or done only in part. The status is 3 even if something was found" in text


@pytest.mark.programs
def test_mount_options_are_in_both_pages_of_mounting(shown: dict[str, str]) -> None:
    for name in ("kafkafs-mount.1", "mount.kafkafs.8"):
        text = shown[name]
        assert [each for each in OPTIONS if f"{each.synopsis} {each.meaning}" not in text] == []


# -- documents -------------------------------------------------------------------------------------


@pytest.mark.programs
def test_all_names_of_the_tree_are_in_the_page_of_the_tree(shown: dict[str, str]) -> None:
    """Those that the reference's picture of it has."""
    picture = (ROOT / "docs/reference/names.md").read_text().split("```\n")[1]
    names = re.findall(r"[.\w][\w/-]*[@…]*", picture)
    assert len(names) > 60
    assert [name for name in names if name not in shown["kafkafs.5"]] == []


@pytest.mark.parametrize(
    ("page", "documents"),
    [
        (
            "kafkafs.5",
            [
                f"docs/reference/{name}.md"
                for name in ("names", "following", "permissions", "control-files", "errors")
            ],
        ),
        ("kafkafs.properties.5", ["docs/reference/settings.md"]),
    ],
)
@pytest.mark.programs
def test_a_page_of_documents_has_all_their_words(
    shown: dict[str, str], page: str, documents: list[str]
) -> None:
    found = set(re.findall(r"\w+", shown[page].lower()))
    for document in documents:
        source = (ROOT / document).read_text()
        # Not what a link leads to, a link in parentheses by itself, the table of contents, and the
        # names of a table's columns.
        source = re.sub(r"^- \[.*?\n\n", "", source, flags=re.M | re.S)
        source = re.sub(r"\s*\(\[[^\]]+\]\([^)]+\)\)|\]\([^)]+\)", "", source)
        source = re.sub(r"^\|.*\|\n(?=\|---)", "", source, flags=re.M)
        source = re.sub(r"```\w+", "", source)
        assert set(re.findall(r"\w+", source.partition("\n")[2].lower())) - found == set()
