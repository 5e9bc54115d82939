"""Makes the manual pages: `python -m kafkafs.cli.man DIRECTORY VERSION`, when kafkafs is built.

| page | made of |
|---|---|
| `kafkafs(1)`, `kafkafs-COMMAND(1)` | their chapters in `docs/reference/commands.md` |
| `mount.kafkafs(8)`, `umount.fuse.kafkafs(8)` | their `--help`, and `docs/admin.md` |
| `mount.fuse.kafkafs(8)` | leads to `mount.kafkafs(8)`: they are one program |
| `kafkafs(5)`, the mounted tree | `docs/reference/names.md` and other pages there |
| `kafkafs.properties(5)` | `docs/reference/settings.md` |

The build has nothing but click and markdown-it-py: modules of commands import what else they need
when they run.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from kafkafs.cli import LazyGroup, main, reference, roff
from kafkafs.cli.mounting.mount import MountCommand

_DOCS = Path(__file__).parents[2] / "docs"
_COMMANDS = _DOCS / "reference/commands.md"
_MOUNT_OPTIONS = _DOCS / "reference/mount-options.md"
_MOUNTING = _DOCS / "admin.md"
_TREE = tuple(
    _DOCS / f"reference/{name}.md"
    for name in ("names", "following", "permissions", "control-files", "errors")
)
_SETTINGS = _DOCS / "reference/settings.md"
_VERSION = "@VERSION@"

#: Of the mount helper's page.
_MOUNTING_SECTIONS = (
    *("Mount and unmount", "mount(8) and fstab", "Memory", "The daemon", "As a service"),
    "A mount that hangs",
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


def _blocks(markdown: str) -> Iterator[str]:
    return roff.blocks(roff.parsed(markdown))


def _sections(path: Path, *titles: str) -> Iterator[str]:
    """Sections of a document, under their own headings."""
    for title in titles:
        yield from (roff.heading(title), *roff.blocks(roff.section(path, title)))


def _command(context: click.Context, details: str = "") -> Iterator[str]:
    """The text of `--help`, and details of a document."""
    chapter = reference.chapter(context)
    yield from (".SH SYNOPSIS", roff.plain(chapter.usage))
    yield from (".SH DESCRIPTION", *_blocks(chapter.description), *_blocks(details))
    yield from (".SH OPTIONS", *_blocks(chapter.options))
    if isinstance(context.command, MountCommand):
        yield from (".SH MOUNT OPTIONS", *_blocks(_MOUNT_OPTIONS.read_text(encoding="utf-8")))
    if chapter.examples:
        yield from (".SH EXAMPLES", *roff.verbatim(chapter.examples))


def _see_also(*pages: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{roff.plain(page[:-3])}\\fR{page[-3:]}" for page in pages)


# --- pages -----------------------------------------------------------------------------------


def _command_pages(context: click.Context, what: str) -> Iterator[tuple[str, list[str]]]:
    """(file name, lines) of a command and of those below it."""
    command = context.command
    _, *words = context.command_path.split()
    name = "-".join(["kafkafs", *words])
    sections = command.sections if isinstance(command, LazyGroup) else []
    lines = [*_begin(name, 1, what), *_command(context, reference.details(words) if words else "")]
    if sections:
        lines.append(".SH COMMANDS")
    for section in sections:
        lines.append(f".SS {roff.plain(section.title)}")
        for each, text in section.helps.items():
            lines += roff.item(f"{roff.bold(f'{name}-{each}')}(1)", roff.plain(text))
    if not words:
        lines += _sections(_COMMANDS, "Naming logs", "Which directories", "Output")
    if command.name != "dump":  # its description has its own
        lines += _sections(_COMMANDS, "Exit status")
    also = ["kafkafs(1)", "kafkafs(5)", "kafkafs.properties(5)", "mount.kafkafs(8)"]
    yield f"{name}.1", [*lines, *_see_also(*also[not words :])]
    for section in sections:
        for each, text in section.helps.items():
            yield from _command_pages(reference.context_of([*words, each]), text)


def _helper_page(command: click.Command, *also: str) -> tuple[str, list[str]]:
    """A program that mount(8) or umount(8) starts."""
    name = command.name or ""
    context = click.Context(command, info_name=name)
    lines = [*_begin(name, 8, command.get_short_help_str(200)), *_command(context)]
    if isinstance(command, MountCommand):
        lines += _sections(_MOUNTING, *_MOUNTING_SECTIONS)
    return f"{name}.8", [*lines, *_see_also(*also)]


def _document_page(
    name: str, what: str, paths: Sequence[Path], *also: str
) -> tuple[str, list[str]]:
    first, *others = (roff.parsed(path.read_text(encoding="utf-8")) for path in paths)
    lines = [*_begin(name, 5, what), ".SH DESCRIPTION", *roff.blocks(first)]
    for document in others:
        lines += [roff.heading(document[0].children[0].content), *roff.blocks(document)]
    return f"{name}.5", [*lines, *_see_also(*also)]


def pages(version: str) -> Iterator[tuple[str, str]]:
    """(file name, text) of all manual pages of a version of kafkafs."""
    from kafkafs.cli.mounting.mount_helpers import mount_command, umount_command

    mounting = ("kafkafs-mount(1)", "kafkafs(5)", "mount(8)", "fstab(5)")
    mounted = ("kafkafs(1)", "kafkafs.properties(5)", "mount.kafkafs(8)")
    settings = ("kafkafs-config(1)", "kafkafs(5)")
    made = [
        *_command_pages(reference.context_of(), main.get_short_help_str(200)),
        _helper_page(mount_command, *mounting),
        _helper_page(umount_command, "kafkafs-umount(1)", "umount(8)"),
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
