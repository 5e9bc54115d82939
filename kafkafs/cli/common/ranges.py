"""Names of logs with ranges in a directory or a mount: TOPIC[:PARTITION][@START[..END]]."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import click

from kafkafs.cli.common.addresses import Address, partitions_at, resolve
from kafkafs.cli.common.mounts import mount_around
from kafkafs.cli.common.views import taken_from_paths
from kafkafs.quantities import local_time


class Range(NamedTuple):
    """Records of a partition. `points`: START..END."""

    topic: str
    partition: int
    points: str


def resolve_ranges(words: Sequence[str]) -> tuple[Address, str, list[Range]]:
    """Return the logs that the words name, the view of their paths or of `--view`, and the ranges.

    Without a topic, the ranges are those of all logs.

    Errors: ClickException, UnknownTopicOrPartition, OSError.
    """
    plain, found = _divided(words)
    plain, view = taken_from_paths(plain)
    address = resolve(plain)
    starts = found[-len(address.places) :]
    addresses = [address._replace(places=(place,)) for place in address.places] or [address]
    return (
        address,
        view,
        [
            Range(topic, number, points)
            for each, points in zip(addresses, starts, strict=True)
            for topic, number in partitions_at(each)
        ],
    )


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without @START..END, and the ranges. Errors: ClickException."""
    plain, points = [], []
    now_ms = time.time_ns() // 1_000_000
    for number, word in enumerate(words):
        directory, slash, last = word.rpartition("/")
        name, at, point = last.partition("@")
        if not at or (number == 0 and _is_directory(word)):
            plain.append(word)
            points.append("start..end")
            continue
        plain.append(f"{directory}{slash}{name}")
        points.append(_fixed(point, now_ms))
    return plain, points


def _fixed(points: str, now_ms: int) -> str:
    """Return START..END without relative times: they are the same for all partitions.

    Errors: ClickException.
    """
    from kafkafs.tree.files.start_names import Time, parse_point, parse_start_name

    parsed = parse_start_name(f"0@{points}", now_ms)
    if parsed is None:
        raise click.BadParameter(f"{points!r} is not a valid start or range (START or START..END)")
    start, dots, end = points.partition("..")
    texts = (
        local_time(point.timestamp_ms)
        if isinstance(point, Time) and point != parse_point(text, 0)
        else text
        for point, text in ((parsed.start, start), (parsed.end, end if dots else "end"))
    )
    return "..".join(texts)


def _is_directory(word: str) -> bool:
    """Return whether a name with @ is that of a directory. Below a mount, there is none."""
    mounted, path = mount_around(word)
    return os.path.isdir(word) if mounted is None else path == mounted.path
