"""Completes words at Tab in bash, zsh and fish.

`_KAFKAFS_COMPLETE=SHELL_source kafkafs` prints the script of a shell. The script calls this module
with `_KAFKAFS_COMPLETE=SHELL_complete`.

The metavar of a parameter, as in usage lines, decides how its word is completed: DATA and MOUNT are
directories, TOPIC is a topic in the directory that was given before. Only undelete completes
deleted topics. So a new command needs no code here.

A Tab reads a directory and the mount table. It opens no log and runs no callback of a command. The
daemon of a mount may not answer. So a Tab touches a mount only if the data directory cannot be
read, or to list groups. It waits at most `_PATIENCE_S` for the groups.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from copy import copy
from functools import partial

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    split_arg_string,
)

from kafkafs.child import Child, NoAnswer

_DIRECTORIES = frozenset({"DATA", "MOUNT"})
_OTHER_DIRECTORIES = frozenset({"DIR", "BROKER_DIR", "OUT"})
#: Seconds that a mount may take to list its groups.
_PATIENCE_S = 2.0
_OPEN = (":", "=", ",")
"""A word continues after these characters, so the shell adds no blank."""

# The three scripts read lines: type TAB word TAB help.

# bash ends words also at colons and equals signs. So the script passes the line, to be split here,
# and $2, the part of the word that bash replaces.
_BASH = """\
%(complete_func)s() {
    local type value help
    COMPREPLY=()
    while IFS=$'\\t' read -r type value help; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            open) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_WORD=$2 \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local type value help paths
    local -a words_with_help unfinished
    while IFS=$'\\t' read -r type value help; do
        case $type in
            dir) paths=-/ ;;
            file) paths=-f ;;
            open) unfinished+=("$value") ;;
            plain) words_with_help+=("${value//:/\\\\:}${help:+:$help}") ;;
        esac
    done < <(COMP_LINE="${words[1,CURRENT-1]} $PREFIX" \\
        %(complete_var)s=zsh_complete ${words[1]} 2>/dev/null)
    [[ -z $paths ]] || _path_files $paths
    (( ! $#unfinished )) || compadd -S '' -a unfinished
    (( ! $#words_with_help )) || _describe -V %(prog_name)s words_with_help
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l line (commandline -cp)
    for found in (env COMP_LINE="$line" %(complete_var)s=fish_complete %(prog_name)s 2>/dev/null)
        set -l fields (string split -m 2 \\t -- $found)
        switch $fields[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case plain open
                printf '%%s\\t%%s\\n' $fields[2] "$fields[3]"
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Shell(ShellComplete):
    """Reads the line up to the cursor, which the shell passes as COMP_LINE."""

    def get_completion_args(self) -> tuple[list[str], str]:
        # The added letter makes the last word the one at the cursor, even after a blank.
        words = split_arg_string(os.environ["COMP_LINE"].lstrip() + "x")
        return words[1:-1], words[-1][:-1]

    def format_completion(self, item: CompletionItem) -> str:
        kind = "open" if item.type == "plain" and item.value.endswith(_OPEN) else item.type
        return f"{kind}\t{item.value}\t{' '.join((item.help or '').split())}"


@add_completion_class
class _Bash(_Shell):
    name = "bash"
    source_template = _BASH

    def complete(self) -> str:
        self._incomplete = self.get_completion_args()[1]
        return super().complete()

    def format_completion(self, item: CompletionItem) -> str:
        # bash replaces only the `1` of `orders:1`.
        replaced = os.environ.get("COMP_WORD", "")
        if self._incomplete.endswith(replaced):
            kept = self._incomplete.removesuffix(replaced)
            item.value = item.value.removeprefix(kept)
        return super().format_completion(item)


@add_completion_class
class _Zsh(_Shell):
    name = "zsh"
    source_template = _ZSH


@add_completion_class
class _Fish(_Shell):
    name = "fish"
    source_template = _FISH


class _Word(click.types.StringParamType):
    """A text that is completed by its metavar."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return list(_completions(ctx, param, incomplete))


def prepared(command: click.Command) -> click.Command:
    """Return a copy of a command for completion only: its parameters stay as typed."""
    command = copy(command)
    command.params = [copy(parameter) for parameter in command.params]
    for parameter in command.params:
        parameter.callback = None
        if parameter.type is click.STRING:
            parameter.type = _Word()
    return command


def _names(parameter: click.Parameter) -> list[str]:
    """Return the words of a metavar, each with the equals sign that follows it."""
    metavar = parameter.metavar or (parameter.name or "").upper()
    return re.findall(r"[A-Z_]+=?", metavar)


def _completions(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> Iterator[CompletionItem]:
    names = _names(parameter)
    given = ctx.params.get(parameter.name or "") if parameter.nargs == -1 else None
    before: tuple[str, ...] = given or ()
    if names == ["OPTIONS"]:
        yield from _mount_options(incomplete)
    elif names == ["GROUP"]:
        yield from _groups(ctx, incomplete)
    elif "FILE" in names and (not before or "TOPIC" not in names):
        yield CompletionItem(incomplete, type="file")
    elif not before and not _DIRECTORIES.union(_OTHER_DIRECTORIES).isdisjoint(names):
        # A path below a mount may be a partition's, which is a file.
        in_mount = "TOPIC" in names and _is_in_mount(incomplete)
        yield CompletionItem(incomplete, type="file" if in_mount else "dir")
    elif "GROUP" in names:
        yield from _groups(ctx, incomplete)
    elif "TOPIC" in names[:3] and not (before and _is_below_mount(before[0])):
        if "NAME=" in names and len(before) > 1:
            yield from _settings(incomplete)
        else:
            is_needed = "TOPIC:PARTITION" in (parameter.metavar or "")
            there = _there(ctx)
            yield from _topics(there, names, before, incomplete, is_needed=is_needed)
    elif "NAME=" in names and isinstance(parameter, click.Argument):
        yield from _settings(incomplete)
    elif "TOPIC" in names[:3]:
        yield CompletionItem(incomplete, type="file")


def _directory(ctx: click.Context) -> str | None:
    """Return the data directory, or the mount, that a command line names."""
    for parameter in ctx.command.params:
        if parameter.name == "data_dir" or not _DIRECTORIES.isdisjoint(_names(parameter)):
            value = ctx.params.get(parameter.name or "")
            first = value[0] if isinstance(value, tuple) and value else value
            if isinstance(first, str) and first:
                return first
    # While the value of an option is completed, click has not assigned the arguments.
    return ctx.args[0] if ctx.args else None


def _is_in_mount(path: str) -> bool:
    from kafkafs.cli.common.addresses import mount_around

    return mount_around(os.path.expanduser(path) or ".")[0] is not None


def _is_below_mount(path: str) -> bool:
    """Return whether a path names a topic or a partition."""
    from kafkafs.cli.common.addresses import mount_around

    mounted, place = mount_around(os.path.expanduser(path))
    return mounted is not None and place != mounted.path


def _there(ctx: click.Context) -> dict[str, list[int]]:
    """Return the partitions by topic of the directory that a command line names.

    The result is empty if the directory cannot be read. For undelete, it has the deleted topics.
    """
    from kafkafs.cli.common.addresses import mount_around
    from storage import paths

    directory = _directory(ctx)
    if directory is None:
        return {}
    path = os.path.expanduser(directory)
    mounted, _ = mount_around(path)
    try:
        with os.scandir(path if mounted is None else mounted.source) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found]
    except OSError:
        return {} if mounted is None else _shown(mounted.path)
    if ctx.command.name != "undelete":
        return {
            topic: numbers
            for topic, numbers in paths.partitions_in(entries).items()
            if topic not in paths.INTERNAL_TOPICS
        }
    aside = (paths.parse_aside_directory(name) for name, _ in entries)
    return {each.topic: [] for each in aside if each is not None and each.kind == "delete"}


def _shown(mount: str) -> dict[str, list[int]]:
    """Return the partitions of a mount whose data directory this user cannot read."""
    try:
        return {
            topic: sorted(int(name) for name in os.listdir(os.path.join(mount, topic)))
            for topic in os.listdir(mount)
        }
    except (OSError, ValueError):
        return {}


def _groups(ctx: click.Context, incomplete: str) -> Iterator[CompletionItem]:
    """Yield the groups of the mount that a command line names."""
    from kafkafs.cli.common.addresses import mount_around, mount_that_writes
    from kafkafs.tree.files.group_names import group_name
    from storage.paths import GROUPS

    directory = _directory(ctx)
    if directory is None:
        return
    path = os.path.expanduser(directory)
    mounted, _ = mount_around(path)
    mount = mount_that_writes(os.path.realpath(path)) if mounted is None else mounted.path
    if mount is None:
        return
    groups = Child(partial(os.listdir, os.path.join(mount, GROUPS)))
    try:
        found = groups.result(_PATIENCE_S)
    except (NoAnswer, OSError):
        return
    finally:
        groups.leave()
    names = sorted(filter(None, map(group_name, found)))
    yield from (CompletionItem(each) for each in names if each.startswith(incomplete))


def _topics(
    there: dict[str, list[int]],
    names: list[str],
    before: tuple[str, ...],
    incomplete: str,
    *,
    is_needed: bool,
) -> Iterator[CompletionItem]:
    """Yield `TOPIC` or, after a colon, `TOPIC:PARTITION`. `is_needed`: a partition is required."""
    topic, colon, number = incomplete.partition(":")
    if colon and "PARTITION" in names:
        end = ":" if "OFFSET" in names else ""
        numbers = map(str, there.get(topic, ()))
        words = [f"{topic}:{each}{end}" for each in numbers if each.startswith(number)]
    else:
        end = ":" if is_needed else ""
        words = [f"{each}{end}" for each in sorted(there) if each.startswith(incomplete)]
    yield from (CompletionItem(word) for word in words if word not in before)


def _settings(incomplete: str) -> Iterator[CompletionItem]:
    """Yield `NAME=` of a topic's settings or, after `=`, the words that are valid values."""
    from storage.settings.config import TOPIC_SETTINGS, words_of

    name, equals, value = incomplete.partition("=")
    if equals and name in TOPIC_SETTINGS:
        for word in words_of(TOPIC_SETTINGS[name]):
            if word.startswith(value):
                yield CompletionItem(f"{name}={word}")
        return
    for name in sorted(TOPIC_SETTINGS):
        if f"{name}=".startswith(incomplete):
            yield CompletionItem(f"{name}=")


def _mount_options(incomplete: str) -> Iterator[CompletionItem]:
    """Complete the last of several options that are separated by commas."""
    from kafkafs.mount_options import OPTIONS

    before, comma, last = incomplete.rpartition(",")
    given = {word.partition("=")[0] for word in before.split(",")}
    for option in OPTIONS:
        values = option.value.split("|") if "|" in option.value else [""]
        for value in values if option.value else ():
            word = f"{option.name}={value}"
            if option.name not in given and word.startswith(last):
                yield CompletionItem(f"{before}{comma}{word}", help=option.meaning)
        if not option.value and option.name not in given and option.name.startswith(last):
            yield CompletionItem(f"{before}{comma}{option.name}", help=option.meaning)
