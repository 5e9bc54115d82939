"""`kafkafs doctor [DATA|MOUNT]`: reports problems, and the lines that fix them.

Each check runs in its own process, and all checks run at the same time. The command waits at most
`PATIENCE_S` for a check, as it must also report a mount or a disk that hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import click

from kafkafs.cli import examples
from kafkafs.cli.common.ending import end, fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import DIRECTORY
from storage.plural import counted

#: Seconds that a check may take. The daemon of a mount has five of them to answer.
PATIENCE_S = 20.0


class Finding(NamedTuple):
    """A problem, or a hint about something that works but could work better.

    `mend` is the line to type or, if the line cannot be known, a text that says what to do.
    """

    what: str
    mend: str
    is_wrong: bool = True


class NotLooked(Exception):  # noqa: N818 - it is no error
    """A check cannot be made, and another check reports the reason."""


class Check(NamedTuple):
    """A check. `look` runs in its own process, which may wait for ever. `silent`: the finding if
    it does.
    """

    name: str
    look: Callable[[], Iterable[Finding]]
    silent: Finding


@click.command(
    "doctor",
    epilog=examples(
        "kafkafs doctor",
        "kafkafs doctor data",
        "kafkafs doctor mnt",
        "kafkafs doctor --json data | jq -r '.result.checks[] | select(.state == \"wrong\").mend'",
    ),
)
@click.argument("place", metavar="[DATA|MOUNT]", type=DIRECTORY, required=False)
@output_options(
    "the counts `wrong` and `hints`, and the list `checks`. Each check has `state`, `check` (its "
    "name), `what` (the problem) and `mend` (what to type)"
)
def command(place: str | None, out: Output) -> None:
    """Check this machine, the mounts, and a data directory.

    doctor checks whether this user can mount on this machine. Without an argument, it also checks
    all mounts of kafkafs. With DATA or MOUNT, it also checks the data directory and its mount. In
    the data directory, it checks the file system, space, lock, clock, settings, private topics, and
    whether other users may write the directory.

    Each check prints a line: ok, wrong or hint. A hint is about something that works but could work
    better. A problem or a hint is followed by the command to type, because doctor itself changes
    nothing. All checks run at the same time, each in its own process, and doctor waits for at most
    20 s. So doctor can report a mount or a disk that hangs.

    Exit status 1: something is wrong. Hints do not count.
    """
    every = _checks(place)
    looked_at = [
        (check, findings)
        for check, findings in zip(every, _results(every), strict=True)
        if findings is not None
    ]
    states = [
        ("wrong" if each.is_wrong else "hint", check.name, each.what, each.mend)
        for check, findings in looked_at
        for each in findings
    ]
    fine = [check.name for check, findings in looked_at if not findings]
    for name in fine:
        out.say(f"ok     {name}")
    for state, name, what, mend in sorted(states, reverse=True):
        out.say(f"{state:<6} {name}: {what}", wrong=state == "wrong")
        out.say(f"       {mend}")
    wrong = sum(state == "wrong" for state, *_ in states)
    hints = counted(len(states) - wrong, "hint")
    out.say(f"{counted(len(looked_at), 'check')}: {wrong} wrong, {hints}")
    names = ("state", "check", "what", "mend")
    rows = [*(("ok", name, None, None) for name in fine), *states]
    for state, name, what, _ in states:
        if state == "wrong":
            out.problem(f"{name}: {what}", "WRONG")
    facts = {"wrong": wrong, "hints": len(states) - wrong}
    out.json({**facts, "checks": [dict(zip(names, row, strict=True)) for row in rows]})
    end(found=wrong > 0)


def _checks(place: str | None) -> Sequence[Check]:
    """Return the checks to run."""
    from kafkafs.cli.mounting.doctor import data, machine
    from kafkafs.mount_table import TYPE, find_around, mounts

    everywhere = [each for each in mounts() if each.type == TYPE]
    if place is None:
        return [*machine.checks(), *machine.mount_checks(everywhere)]
    path = _resolved(place)
    mounted = find_around(path)
    if mounted is not None and mounted.type == TYPE:
        looked_at, directory = [mounted], mounted.source
    else:
        looked_at, directory = [each for each in everywhere if each.source == path], path
    found = [*machine.checks(), *machine.mount_checks(looked_at)]
    # If the path is not ASCII, the mount table does not have it.
    return [*found, *data.checks(directory)] if os.path.isabs(directory) else found


def _resolved(place: str) -> str:
    """Return a path without symbolic links, if its file system answers. Touch no mount."""
    from kafkafs.child import Child, NoAnswer
    from kafkafs.fuse.mount_point import MountError, resolve
    from kafkafs.mount_table import TYPE, find_around

    path = os.path.abspath(place)
    around = find_around(path)
    if around is not None and around.type == TYPE:
        return path
    child = Child(partial(resolve, place))
    try:
        return child.result(PATIENCE_S)
    except NoAnswer:
        return path
    except MountError as error:
        raise fail(str(error)) from None
    finally:
        child.leave()


def _results(checks: Sequence[Check]) -> list[list[Finding] | None]:
    """Return the findings of each check, in the order of `checks`; None: it cannot be made."""
    from kafkafs.child import Child, NoAnswer

    found: list[list[Finding] | None] = []
    with ExitStack() as stack:
        children = []
        for check in checks:
            child = Child(partial(_findings, check))
            stack.callback(child.leave)
            children.append(child)
        # The checks have started together, so they have the same deadline.
        until = time.monotonic() + PATIENCE_S
        for check, child in zip(checks, children, strict=True):
            try:
                found.append(child.result(max(until - time.monotonic(), 0.0)))
            except NoAnswer:
                found.append([check.silent])
    return found


def _findings(check: Check) -> list[Finding] | None:
    try:
        return list(check.look())
    except NotLooked:
        return None
