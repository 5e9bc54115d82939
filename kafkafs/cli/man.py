"""Makes the manual pages: `python -m kafkafs.cli.man DIRECTORY VERSION`, when kafkafs is built.

| page | made of |
|---|---|
| `kafkafs(1)`, `kafkafs-COMMAND(1)` | what `--help` shows, and `docs/reference/commands.md` |
| `mount.kafkafs(8)`, `umount.fuse.kafkafs(8)` | their `--help`, and `docs/admin.md` |
| `mount.fuse.kafkafs(8)` | leads to `mount.kafkafs(8)`: they are one program |
| `kafkafs(5)`, the mounted tree | `docs/reference/names.md`, and four more pages there |
| `kafkafs.properties(5)` | `docs/reference/settings.md` |

They are kept nowhere else, so they say what their sources say. The build has nothing but click and
markdown-it-py: modules of commands import what else they need when they run.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from markdown_it.token import Token

from kafkafs.cli import LazyGroup, main, roff
from kafkafs.cli.mount import MountCommand

_DOCS = Path(__file__).parents[2] / "docs"
_COMMANDS = _DOCS / "reference/commands.md"
_MOUNTING = _DOCS / "admin.md"
_TREE = tuple(
    _DOCS / f"reference/{name}.md"
    for name in ("names", "following", "permissions", "control-files", "errors")
)
_SETTINGS = _DOCS / "reference/settings.md"
_VERSION = "@VERSION@"

#: Of the mount helper's page: what is not said by its options.
_MOUNTING_SECTIONS = (
    *("mount(8) and fstab", "Memory", "The daemon", "As a service", "A mount that hangs"),
)

#: The other name of the program `mount.kafkafs`.
_FOR_MOUNTED_TYPE = "mount.fuse.kafkafs"

# --- parts -----------------------------------------------------------------------------------


def _begin(name: str, number: int, what: str) -> Iterator[str]:
    date = time.strftime(
        "%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 0)) or None)
    )
    yield f'.TH "{roff.plain(name.upper())}" {number} {date} "kafkafs {_VERSION}" kafkafs'
    yield from (".nh", ".ad l", ".SH NAME")
    yield f"{roff.plain(name)} \\- {roff.plain(what.rstrip('.'))}"


def _paragraphs(text: str) -> Iterator[str]:
    """A help text, whose paragraphs have empty lines between them."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield from (".PP", roff.line(roff.plain(" ".join(paragraph.split()))))


def _usage(context: click.Context) -> Iterator[str]:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    yield from (".SH SYNOPSIS", f"{roff.bold(context.command_path)} {roff.plain(pieces)}")


def _options(context: click.Context, documented: Sequence[Token]) -> Iterator[str]:
    """Those of `--help`; of `--json`, what the object has, too."""
    json = next((roff.inline(row[-1]) for row in roff.rows(documented) if _is_json(row)), "")
    yield ".SH OPTIONS"
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            text = roff.plain(" ".join(record[1].split()))
            if json and "--json" in parameter.opts:
                text = f"{text.rstrip('.')}: {json}."
            yield from roff.item(roff.bold(record[0]), text)
    if isinstance(context.command, MountCommand):
        from kafkafs.mount_options import OPTIONS

        yield from (".SH MOUNT OPTIONS", "Behind \\fB\\-o\\fR, with commas between them:")
        for option in OPTIONS:
            yield from roff.item(roff.bold(option.synopsis), roff.plain(option.meaning))


def _is_json(row: Sequence[Token]) -> bool:
    return row[0].content == "`--json`" and not row[-1].content.startswith("[")


def _examples(command: click.Command) -> Iterator[str]:
    if command.epilog:
        lines = inspect.cleandoc(command.epilog.split("Examples:\n")[1])
        yield ".SH EXAMPLES"
        yield from roff.verbatim(lines)


def _exit_status(command: click.Command) -> Iterator[str]:
    if command.name == "dump":
        return  # its description has its own
    for token in roff.section(_COMMANDS, "At a glance"):
        if token.content.startswith("**Exit status**: "):
            yield from (".SH EXIT STATUS", roff.line(roff.inline(token).partition(": ")[2]))


def _see_also(*pages: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{roff.plain(page[:-3])}\\fR{page[-3:]}" for page in pages)


# --- pages -----------------------------------------------------------------------------------


def _documented(context: click.Context) -> list[Token]:
    """What the documents say of a command; nothing where that only leads to another document."""
    command = context.command
    if isinstance(command, MountCommand):
        return roff.section(_MOUNTING, "Mount and unmount")
    if isinstance(command, LazyGroup) or context.command_path.count(" ") != 1:
        return []
    found = roff.section(_COMMANDS, command.name or "")
    return [] if any(re.search(r"\b[Ss]ee \[", each.content) for each in found[:2]) else found


def _command_pages(context: click.Context, what: str) -> Iterator[tuple[str, list[str]]]:
    """(file name, lines) of a command and of those below it."""
    command, documented = context.command, _documented(context)
    name = context.command_path.replace(" ", "-")
    below = command.helps if isinstance(command, LazyGroup) else {}
    lines = [*_begin(name, 1, what), *_usage(context), ".SH DESCRIPTION"]
    if documented:
        lines += roff.blocks(documented, options=False)
    else:
        lines += _paragraphs(command.help or "")
    if context.parent is None:
        for title in ("Naming logs", "What is printed"):
            lines += [roff.heading(title), *roff.blocks(roff.section(_COMMANDS, title))]
    lines += _options(context, documented)
    if below:
        lines.append(".SH COMMANDS")
    for each, text in below.items():
        lines += roff.item(f"{roff.bold(f'{name}-{each}')}(1)", roff.plain(text))
    lines += [*_examples(command), *_exit_status(command)]
    if context.parent is None:
        also = ["mount.kafkafs(8)", "kafkafs(5)", "kafkafs.properties(5)"]
    else:
        also = ["kafkafs(1)", "kafkafs(5)"]
        if isinstance(command, MountCommand):
            also.append("mount.kafkafs(8)")
    yield f"{name}.1", [*lines, *_see_also(*also)]
    for each, text in below.items():
        assert isinstance(command, LazyGroup)
        found = command.get_command(context, each)
        assert found is not None
        yield from _command_pages(click.Context(found, parent=context, info_name=each), text)


def _helper_page(
    command: click.Command, sections: Sequence[str], *also: str
) -> tuple[str, list[str]]:
    """A program that mount(8) or umount(8) starts."""
    name = command.name or ""
    context = click.Context(command, info_name=name)
    lines = [*_begin(name, 8, command.get_short_help_str(200)), *_usage(context)]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or ""), *_options(context, [])]
    for title in sections:
        lines += [roff.heading(title), *roff.blocks(roff.section(_MOUNTING, title))]
    return f"{name}.8", [*lines, *_see_also(*also)]


def _document_page(
    name: str, what: str, paths: Sequence[Path], *also: str
) -> tuple[str, list[str]]:
    first, *others = map(roff.parsed, paths)
    lines = [*_begin(name, 5, what), ".SH DESCRIPTION", *roff.blocks(first)]
    for document in others:
        lines += [roff.heading(document[1].content), *roff.blocks(document)]
    return f"{name}.5", [*lines, *_see_also(*also)]


def pages(version: str) -> Iterator[tuple[str, str]]:
    """(file name, text) of all manual pages of a version of kafkafs."""
    from kafkafs.cli.mount_helpers import mount_command, umount_command

    context = click.Context(main, info_name="kafkafs", **main.context_settings)
    mounting = ("kafkafs-mount(1)", "kafkafs(5)", "mount(8)", "fstab(5)")
    mounted = ("kafkafs(1)", "kafkafs.properties(5)", "mount.kafkafs(8)")
    settings = ("kafkafs-config(1)", "kafkafs(5)")
    made = [
        *_command_pages(context, main.get_short_help_str(200)),
        _helper_page(mount_command, _MOUNTING_SECTIONS, *mounting),
        _helper_page(umount_command, (), "kafkafs-umount(1)", "umount(8)"),
        _document_page("kafkafs", "what a mount shows", _TREE, *mounted),
        _document_page("kafkafs.properties", "settings of logs", [_SETTINGS], *settings),
    ]
    for name, lines in made:
        text = "\n".join([*lines, ""]).replace(_VERSION, roff.plain(version), 1)
        # Behind a heading a paragraph begins by itself.
        yield name, re.sub(r"^(\.S[HS] .*)\n\.PP$", r"\1", text, flags=re.M)
    yield f"{_FOR_MOUNTED_TYPE}.8", f".so man8/{mount_command.name}.8\n"


def write(directory: Path, version: str) -> None:
    """Write all pages to `man1`, `man5` and `man8` below a directory."""
    for name, text in pages(version):
        path = directory / f"man{name[-1]}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
