"""The grammar of `addresses` for commands that read the files of a mount: `tail` and `consume`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from kafkafs.cli.common.addresses import check_no_address, resolve
from kafkafs.cli.common.mount_files import patiently
from kafkafs.cli.common.mounts import mount_around, mount_that_writes
from kafkafs.cli.common.serving import check_served

_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
# The directories of a topic that have a growing file for each partition.
_VIEWS = frozenset({".kv", ".jsonl", ".batches", ".follow"})


def paths_of(words: Sequence[str]) -> list[str]:
    """Return the topics and partitions that the words name, as paths below a mount.

    Words that are paths stay as they are, also if the paths name something else.

    Errors: ClickException.
    """
    mounted, path = mount_around(words[0])
    if mounted is None and mount_that_writes(os.path.realpath(path)) is None:
        check_no_address(words[0])
        return list(words)
    if mounted is not None and path != mounted.path:
        return list(words)
    address = resolve(words, needs="files")
    assert address.mount is not None
    mount = address.mount
    check_served(mount)
    if not address.places:
        return [os.path.join(mount, topic) for topic in _topics(mount)]
    return [
        os.path.join(mount, topic, *([] if number is None else [str(number)]))
        for topic, number in address.places
    ]


def _topics(mount: str) -> list[str]:
    from storage.paths import ABOUT, GROUPS

    found = patiently(lambda: os.listdir(mount))
    return sorted(name for name in found if name not in (ABOUT, GROUPS))


def files_of(path: str) -> list[str]:
    """Return the files of a topic's partitions. `path`: the topic, or one of its views.

    Any other path is the path of a file, and is returned unchanged.
    """
    from storage.paths import ABOUT, GROUPS

    mounted, place = mount_around(path)
    if mounted is None:
        return [path]
    topic, *view = os.path.relpath(place, mounted.path).split(os.sep)
    if topic in (os.curdir, ABOUT, GROUPS) or (view and (len(view) > 1 or view[0] not in _VIEWS)):
        return [path]
    numbers: list[int] = []
    with suppress(OSError):  # opening the path reports the error
        found = patiently(lambda: os.listdir(path))
        numbers = sorted(int(name) for name in found if _NUMBER.fullmatch(name))
    return [os.path.join(path, str(number)) for number in numbers] or [path]
