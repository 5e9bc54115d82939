"""`kafkafs repair --indexes`: rebuilds indexes from the logs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kafkafs.cli.common.addresses import (
    checked_directory,
    directory_to_open,
    partitions_at,
    resolve,
)
from kafkafs.cli.common.ending import end, warn
from kafkafs.cli.common.output import Output
from kafkafs.cli.common.progress import reading_shown
from storage.plural import counted

NOTHING_CHANGED = "nothing was changed; to do this, add --apply"


def _targets(words: Sequence[str], *, may_be_open: bool) -> list[str]:
    """Return directories, or files of segments. Errors: ClickException."""
    from storage.paths import base_offset_of

    if not any(
        base_offset_of(os.path.basename(each)) is None or os.path.isdir(each) for each in words
    ):
        places = (os.path.split(os.path.abspath(word)) for word in words)
        return [
            os.path.join(checked_directory(directory, may_be_partition=True), name)
            for directory, name in places
        ]
    logs = resolve(words, may_be_partition=True)
    data_dir = logs.data_dir if may_be_open else directory_to_open(logs)
    there = partitions_at(logs) if logs.places else []
    return [os.path.join(data_dir, f"{topic}-{n}") for topic, n in there] or [data_dir]


def rebuild(words: Sequence[str], out: Output, *, applies: bool) -> None:
    """Print the indexes that differ from the logs, and rebuild them if `applies`; exit."""
    from storage.verify.reindex import log_bytes, reindex

    targets = _targets(words, may_be_open=not applies)
    with reading_shown("reading", log_bytes(targets)) as progress:
        outcome = reindex(targets, check_only=not applies, progress=progress)
    for difference in outcome.different:
        out.say(difference)
    for damaged in outcome.damaged:
        out.problem(str(damaged), "FAULT")
    for line in [*outcome.damaged, *outcome.tiered]:
        warn(line)
    done = "rebuilt" if applies else "differ"
    files = counted(len(outcome.different), "file")
    out.say(f"{counted(outcome.segments, 'segment')} read, {files} {done}")
    if outcome.different and not applies:
        out.say(NOTHING_CHANGED)
    out.json(
        {
            "applied": applies,
            "segments": outcome.segments,
            "different": list(map(str, outcome.different)),
            "tiered": outcome.tiered,
        }
    )
    is_refused = bool(outcome.tiered) and not outcome.segments
    end(
        found=bool(outcome.different or outcome.damaged),
        failed=is_refused or (applies and bool(outcome.damaged)),
    )
