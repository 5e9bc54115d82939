"""Facts of topics and partitions for `ls` and `describe`, from the files of a mount."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkafs.cli.common.addresses import Address, partitions_at
from kafkafs.cli.common.ending import failure
from kafkafs.cli.common.mount_files import MountFiles
from kafkafs.cli.common.output import Output
from kafkafs.quantities import Size, TimeMs, Value

if TYPE_CHECKING:
    from storage.state.gaps_file import Gap
    from storage.state.mirror_file import MirrorFile

# Of a line of a deleted topic, which names the command for the file it stands in.
_TO_UNDELETE = re.compile(r"(?<=: )undelete (\S+) (\S+)$")
#: How many records are not copied yet, and when the copy last had all records of the source.
MIRROR_COLUMNS = ("lag", "complete_at")
_SETTING = re.compile(r"(# )?([a-z0-9.]+)=(\S*)")


def notes_of(logs: Address, lines: Sequence[str], mirror: MirrorFile | None) -> list[str]:
    """Return the lines of `.kafkafs/topics` with `#`, with what to type in a shell.

    For a mirror, also return its source, and the partitions that it cannot copy.
    """
    where = shlex.quote(logs.mount or logs.data_dir)
    undelete = f"kafkafs undelete {where}"
    notes = [
        _TO_UNDELETE.sub(lambda found: f"{undelete} {found[1]} --id {found[2]}", line)
        for line in lines
    ]
    if mirror is None:
        return notes
    waiting = (
        f"{topic}:{number}: not copied at present: {copy.reason}"
        for (topic, number), copy in sorted(mirror.partitions.items())
        if copy.is_waiting
    )
    return [*notes, f"mirror of {mirror.source}", *waiting]


def mirror_of(logs: Address) -> MirrorFile | None:
    """Return the state of the mirror in the data directory. None: it is no mirror, or this user
    cannot read the state.
    """
    from storage.errors import StorageError
    from storage.files import Files
    from storage.state import mirror_file

    with contextlib.suppress(OSError, StorageError):
        return mirror_file.read(Files(), logs.data_dir)
    return None


def lags_of(mirror: MirrorFile) -> dict[str, Value]:
    """Return how many records of each topic are not copied yet; None: not known."""
    lags: dict[str, Value] = {}
    for (topic, _), copy in mirror.partitions.items():
        lag, before = copy.lag, lags.get(topic, 0)
        lags[topic] = None if lag is None or before is None else int(before) + lag
    return lags


def partitions(
    files: MountFiles, logs: Address, mirror: MirrorFile | None
) -> list[dict[str, Value]]:
    """Return the facts of the selected partitions; None for facts that cannot be read."""
    from storage.errors import StorageError

    found: list[dict[str, Value]] = []
    for topic, number in partitions_at(logs):
        facts: Mapping[str, Value] = {}
        try:
            facts = _facts(files, topic, str(number))
        except (OSError, StorageError):
            facts = dict.fromkeys(_FACTS)
        copy = None if mirror is None else mirror.partitions.get((topic, number))
        mirrored: dict[str, Value] = dict.fromkeys(MIRROR_COLUMNS)
        if copy is not None:
            complete = None if copy.at_end_ms < 0 else TimeMs(copy.at_end_ms)
            mirrored = dict(zip(MIRROR_COLUMNS, (copy.lag, complete), strict=True))
        found.append({"topic": topic, "partition": number, **facts, **mirrored})
    return found


_FACTS = (
    *("log_start", "log_end", "high_watermark", "records", "segments", "size"),
    *("first_timestamp", "last_timestamp"),
)


def _facts(files: MountFiles, topic: str, number: str) -> dict[str, Value]:
    """Return the facts of a partition. Errors: OSError, StorageError."""
    lines = files.read(topic, ".meta", number, "offsets").splitlines()
    offsets = {name: int(value[0]) for name, *value in map(str.split, lines) if name != "gap"}
    segments, _ = files.table(topic, ".meta", number, "segments")
    kept = [each for each in segments if each["state"] != "being_deleted"]
    times = [[int(each[name]) for each in kept] for name in _FACTS[-2:]]
    first = min((time for time in times[0] if time >= 0), default=None)
    last = max((time for time in times[1] if time >= 0), default=None)
    return {
        "log_start": offsets["log_start"],
        "log_end": offsets["log_end"],
        "high_watermark": offsets["high_watermark"],
        "records": offsets["log_end"] - offsets["log_start"],
        "segments": len(kept),
        "size": Size(sum(int(each["bytes"]) for each in kept)),
        "first_timestamp": None if first is None else TimeMs(first),
        "last_timestamp": None if last is None else TimeMs(last),
    }


def gaps_of(files: MountFiles, topic: str, number: str) -> list[Gap]:
    """Return the gaps of a partition of a mirror; none if the partition cannot be opened."""
    from storage.errors import StorageError
    from storage.state.gaps_file import Gap

    found: list[Gap] = []
    with contextlib.suppress(OSError, StorageError):
        for line in files.read(topic, ".meta", number, "offsets").splitlines():
            name, *values = line.split()
            if name == "gap":
                kind, first, last, time_ms = values
                found.append(Gap(kind, int(first), int(last), int(time_ms)))
    return found


def gap_facts(gap: Gap) -> dict[str, Value]:
    """Return the facts of a gap; None for those of a list that cannot be read."""
    kind, *numbers = gap
    first, last, time_ms = (None if number < 0 else number for number in numbers)
    return {
        "kind": kind,
        "first": first,
        "last": last,
        "time": None if time_ms is None else TimeMs(time_ms),
    }


def gap_text(gap: Gap, out: Output) -> str:
    """Return the facts of a gap as one text."""
    return " ".join(map(out.text, gap_facts(gap).values()))


def settings_of(
    files: MountFiles, topic: str, notes: list[str]
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the settings in force, and those set on the topic; None if they cannot be read. Then
    `notes` gets the reason.
    """
    from storage.errors import StorageError

    try:
        lines = files.read(topic, ".config").splitlines()
    except (OSError, StorageError) as error:
        failed = failure(error)
        assert failed is not None
        notes.append(f"{topic}: the settings cannot be read: {failed.message}")
        return None
    in_force, given = {}, {}
    for match in filter(None, map(_SETTING.match, lines)):
        in_force[match[2]] = match[3]
        if not match[1]:
            given[match[2]] = match[3]
    return in_force, given
