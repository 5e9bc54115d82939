"""Completes words at Tab in bash, zsh and fish.

`_KAFKAFS_COMPLETE=SHELL_source kafkafs` prints the script of a shell. The script calls this module
with `_KAFKAFS_COMPLETE=SHELL_complete`.

The types of parameters complete the words: see `common.words`.
"""

from __future__ import annotations

import os
from copy import copy

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    split_arg_string,
)

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


def prepared(command: click.Command) -> click.Command:
    """Return a copy of a command for completion only: its callbacks do not run."""
    command = copy(command)
    command.params = [copy(parameter) for parameter in command.params]
    for parameter in command.params:
        parameter.callback = None
    return command
