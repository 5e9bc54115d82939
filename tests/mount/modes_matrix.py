"""Users try every operation on a partition, under many owners and modes of it and its topic.

POSIX defines what each user may do with files of these owners and modes. In the data directory no
user has more rights than that.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.mount.mounting import Mount

ONE, TWO, GROUP, NOBODY = 54321, 65432, 43210, 65534
User = tuple[int, tuple[int, ...]]
"""A uid, and the groups, the first of them the user's own."""
USERS: Sequence[User] = [
    *((ONE, (ONE,)), (ONE, (ONE, GROUP)), (TWO, (TWO,)), (TWO, (TWO, GROUP)), (TWO, (GROUP,))),
    (NOBODY, (NOBODY,)),
]
TOPIC_MODES = [
    *(0o777, 0o755, 0o750, 0o711, 0o700, 0o1777, 0o2770, 0o770, 0o775, 0o705, 0o071, 0o311, 0),
]
MODES = [0o666, 0o664, 0o644, 0o640, 0o604, 0o600, 0o444, 0o222, 0o060, 0o006, 0o646, 0]
OWNERS = [(ONE, ONE), (ONE, GROUP), (TWO, GROUP), (0, GROUP), (0, 0), (NOBODY, NOBODY)]

_RAW = ".raw/0/00000000000000000000"
READ = (
    *("0", ".kv/0", ".jsonl/0", ".batches/0", ".follow/0", "0@0", ".kv/0@-1", ".batches/0@0..1"),
    *(f"{_RAW}.log", f"{_RAW}.index", ".meta/0/offsets", ".ship/0"),
)
LISTED = (".raw/0", ".meta/0")
APPEND = ("0", ".kv/0", ".jsonl/0", ".batches/0")
ACTS_ON_ALL = (
    *(".append", ".kv/append", ".jsonl/append", ".config"),
    *(f".control/{name}" for name in ("roll", "flush", "verify", "retention", "compaction")),
    *(f".control/{name}" for name in ("delete-records", "abort-transaction")),
)
_WRITE = os.O_WRONLY | os.O_APPEND

# Reads a line of [path, how] each, and writes the errno of each.
_CHILD = """
import json, os, sys
uid, groups = json.loads(sys.argv[1])
os.setgroups(groups[1:]); os.setgid(groups[0]); os.setuid(uid)
def answer(path, how):
    try:
        if how == "list":
            os.listdir(path)
        elif how == "xattr":
            os.getxattr(path, "user.kafkafs.log_end")
        elif how == "stat":
            os.stat(path)
        else:
            fd = os.open(path, how)
            if how == os.O_RDONLY:
                os.read(fd, 1)
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0
for line in sys.stdin:
    print(json.dumps([answer(*each) for each in json.loads(line)]), flush=True)
"""


class Rights(NamedTuple):
    """Modes, and (uid, gid)."""

    topic_mode: int
    topic: tuple[int, int]
    mode: int
    partition: tuple[int, int]


def any_rights(draw: random.Random) -> Rights:
    owner = draw.choice(OWNERS)
    other = draw.choice([owner, draw.choice(OWNERS)])
    return Rights(draw.choice(TOPIC_MODES), owner, draw.choice(MODES), other)


def _bits(mode: int, owner: tuple[int, int], user: User) -> int:
    uid, groups = user
    if uid == owner[0]:
        return mode >> 6 & 7
    return mode >> (3 if owner[1] in groups else 0) & 7


class Matrix:
    """See the module.  ``checks``: how many answers were compared."""

    def __init__(self, mount: Mount) -> None:
        self._topic = mount / "t"
        self._data = mount.data / "t-0"
        self.checks = 0
        mount.run("mkdir t; echo x >> t/0")
        self._children = [
            subprocess.Popen(
                [sys.executable, "-c", _CHILD, json.dumps(user)],
                cwd=mount.path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for user in USERS
        ]

    def try_all(self, rights: Rights) -> list[str]:
        """A line for each answer that is wrong."""
        topic_mode, topic, mode, partition = rights
        os.chown(self._topic, *topic)
        self._topic.chmod(topic_mode)
        os.chown(self._topic / "0", *partition)
        (self._topic / "0").chmod(mode)
        # Relative to the mount point: the users may not search all of what is above it.
        data = f"../{self._data.parent.name}/{self._data.name}"
        on_disk = [data, *(f"{data}/{name}" for name in os.listdir(self._data))]
        asked: list[tuple[str, int | str]] = [
            *((f"t/{name}", os.O_RDONLY) for name in READ),
            *((f"t/{name}", "list") for name in LISTED),
            ("t/0", "xattr"),
            *((f"t/{name}", _WRITE) for name in APPEND),
            ("t/0", "stat"),
            ("t", "list"),
        ]
        on_all = [(f"t/{name}", _WRITE) for name in ACTS_ON_ALL]
        disk: list[tuple[str, int | str]] = [
            (on_disk[0], "list"),
            *((path, how) for path in on_disk[1:] for how in (os.O_RDONLY, os.O_WRONLY)),
        ]
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(json.dumps([*asked, *on_all, *disk]) + "\n")
            child.stdin.flush()
        wrong = []
        for user, child in zip(USERS, self._children, strict=True):
            assert child.stdout is not None
            found = iter([number == 0 for number in json.loads(child.stdout.readline())])
            above, own = _bits(topic_mode, topic, user), _bits(mode, partition, user)
            search = above & 1 == 1
            reads, writes = search and own & 4 == 4, search and own & 2 == 2
            expected = [reads] * (len(READ) + len(LISTED) + 1) + [writes] * len(APPEND)
            expected += [search, above & 4 == 4]
            who = f"{rights} {user}"
            for (name, how), wanted in zip(asked, expected, strict=True):
                if next(found) != wanted:
                    wrong.append(f"{name} {how}: not {wanted} for {who}")
            # Exactly so where topic and partition are of the same owner; else perhaps less.
            wanted = writes and above & 2 == 2
            for name, _ in on_all:
                is_given = next(found)
                if is_given != wanted and (is_given or topic == partition):
                    wrong.append(f"{name}: not {wanted} for {who}")
            for name, how in disk:
                if next(found) and (how == os.O_WRONLY or not reads):
                    wrong.append(f"{name} {how}: is given to {who}")
            self.checks += len(asked) + len(on_all) + len(disk)
        return wrong

    def end(self) -> None:
        for child in self._children:
            child.communicate()
        # So that the mount's owner may remove it.
        os.chown(self._topic, 0, 0)


@contextlib.contextmanager
def matrix(mount: Mount) -> Iterator[Matrix]:
    tried = Matrix(mount)
    try:
        yield tried
    finally:
        tried.end()
