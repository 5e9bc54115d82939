"""Writes the parts of `docs/reference` that come from the code: `python -m kafkafs.cli.reference`.

A page has such a part between two comments, `<!-- settings: segment.ms preallocate -->` and
`<!-- end -->`. The first one has the kind of the part and the names that it describes. The rest of
a page is written by hand.

The modules that are described here import without compiled code: `man` is called by the build,
which has nothing but click and markdown-it-py.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from kafkafs.cli import LazyGroup, main
from kafkafs.mount_options import OPTIONS
from kafkafs.tree.directories.metrics_table import METRICS
from storage.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS, format_value

PAGES = Path(__file__).parents[2] / "docs/reference"

# --- Markdown --------------------------------------------------------------------------------


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table's lines; the columns have these names."""
    for row in (names, ["---"] * len(names), *rows):
        cells = (cell.replace("|", "\\|") for cell in row)
        yield "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


_WORD = re.compile(r"`[^`]*`|(?<!\S)(\(?)([^\s`]+?)([.,;:)]*)(?!\S)")
#: An option; a name of a file or a setting; a value or a pattern of one.
_IS_CODE = re.compile(r"--?[a-zA-Z]|.*[/_=@|*<>]|.*\.[a-zA-Z]")


def marked(text: str) -> str:
    """A plain text as Markdown: words that a user could type are code."""

    def word(match: re.Match[str]) -> str:
        before, text, after = match.groups("")
        return f"{before}`{text}`{after}" if _IS_CODE.match(text) else match[0]

    return _WORD.sub(word, text)


_filled = functools.partial(
    textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False
)


def codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


# --- commands --------------------------------------------------------------------------------


class Chapter(NamedTuple):
    """A command as its `--help` describes it, in Markdown."""

    usage: str
    description: str
    options: str
    examples: str
    """As they are typed, without Markdown."""


def context_of(names: Iterable[str] = ()) -> click.Context:
    """The context of a command, by the words after `kafkafs`."""
    context = click.Context(main, info_name="kafkafs", **main.context_settings)
    for name in names:
        assert isinstance(context.command, click.Group)
        command = context.command.get_command(context, name)
        assert command is not None, name
        context = click.Context(command, parent=context, info_name=name)
    return context


def chapter(context: click.Context) -> Chapter:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    description = "\n\n".join(_filled(marked(" ".join(each.split()))) for each in paragraphs)
    options = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            text, *limits = re.split(
                r" (?=\[(?:default: |x[<>]|\d+<))", " ".join(record[1].split())
            )
            options.append([f"`{record[0]}`", " ".join([marked(text), *limits])])
    examples = inspect.cleandoc((command.epilog or "").partition("Examples:\n")[2])
    return Chapter(usage, description, "\n".join(table(["option", ""], options)), examples)


def details(names: Iterable[str]) -> str:
    """Markdown that a command's chapter has after the generated part."""
    begin = re.escape(f"<!-- command: {' '.join(names)} -->")
    found = re.search(
        rf"^{begin}$.*?^<!-- end -->$(.*?)(?=^##|\Z)",
        (PAGES / "commands.md").read_text(),
        re.M | re.S,
    )
    assert found is not None, names
    return found[1]


# --- parts -----------------------------------------------------------------------------------


def _settings(names: Sequence[str]) -> Iterator[str]:
    """The settings of these names, which a topic has, or the daemon."""
    rows = []
    for name in names:
        setting = TOPIC_SETTINGS.get(name) or BROKER_SETTINGS[name]
        default = "" if setting.default is None else format_value(setting.default)
        synonyms = codes(synonym.name for synonym in setting.synonyms)
        rows.append([f"`{name}`", default, synonyms, setting.meaning])
    if any(synonyms for _, _, synonyms, _ in rows):
        yield from table(["setting", "default", "for all topics", ""], rows)
    else:
        yield from table(["setting", "default", ""], [[*row[:2], row[3]] for row in rows])


def _command(names: Sequence[str]) -> Iterator[str]:
    context = context_of(names)
    found = chapter(context)
    yield from ("", f"    {found.usage}", "", found.description)
    names_of_columns, rule, *options, _ = found.options.split("\n")
    if options:  # besides --help
        yield from ("", names_of_columns, rule, *options)
    if isinstance(context.command, LazyGroup):
        yield from _command_list(names)
    if found.examples:
        yield from (
            "",
            "Examples:",
            "",
            *(f"    {line}" for line in found.examples.split("\n")),
            "",
        )


def _command_list(names: Sequence[str]) -> Iterator[str]:
    """The commands of a group, with links to their chapters."""
    group = context_of(names).command
    assert isinstance(group, LazyGroup)
    for section in group.sections:
        rows = []
        for name, text in section.helps.items():
            path = [*names, name]
            rows.append([f"[{' '.join(path)}](#{'-'.join(path)})", marked(text)])
        yield from ("", *table([section.title, ""], rows))


def _metrics(chapters: Sequence[str]) -> Iterator[str]:
    rows = []
    for metric in itertools.chain.from_iterable(METRICS[name] for name in chapters):
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        rows.append([f"`{metric.full_name}{labels}`", metric.kind, marked(metric.help)])
    yield from table(["metric", "type", ""], rows)


def _mount_options(_: Sequence[str]) -> Iterator[str]:
    rows = ([f"`{option.synopsis}`", marked(option.meaning)] for option in OPTIONS)
    yield from table(["option", ""], rows)


_PARTS: Mapping[str, Callable[[Sequence[str]], Iterable[str]]] = {
    "command": _command,
    "command-list": _command_list,
    "metrics": _metrics,
    "mount-options": _mount_options,
    "settings": _settings,
}
_PART = re.compile(
    rf"^(<!-- ({'|'.join(_PARTS)})(?::([^>]*)| )-->\n).*?(?=^<!-- end -->$)", re.M | re.S
)


def renewed(page: str) -> str:
    """A page whose parts are what the code says now."""

    def part(match: re.Match[str]) -> str:
        first, kind, names = match.groups("")
        return "\n".join([first.rstrip("\n"), *_PARTS[kind](names.split()), ""])

    return _PART.sub(part, page)


def write() -> None:
    """Renew all pages."""
    for path in PAGES.glob("*.md"):
        path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    write()
