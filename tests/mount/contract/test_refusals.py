"""Every refusal has a line in `.kafkafs/log` that says why, and what to do instead."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.control import do
from tests.mount.mounting import Mount, fails, mounted

MAKE = "to create a topic: mkdir TOPIC; its next partition: touch TOPIC/N"
DELETE = (
    "to delete the records of partition N below OFFSET: echo N OFFSET > "
    "TOPIC/.control/delete-records; by age or size: TOPIC/.config; the topic: rmdir"
)
OWN = "use chmod and chown on TOPIC or TOPIC/N; for settings: echo NAME=VALUE >> TOPIC/.config"
APPENDS = f"to append: >>; {DELETE}"
INPLACE = (
    "to create the next one: touch t/N; programs that write a new file and rename it need an "
    "option (rsync --inplace, tar --overwrite)"
)
ELSEWHERE = "to append: >> TOPIC/N; to change settings: >> TOPIC/.config; commands: TOPIC/.control"
NOT_NEW = "the partition has records: open it with O_APPEND (>>)"
NOT_REMOVED = (
    "a partition cannot be removed; to delete the topic, and its files 60 s later: rmdir t"
)
TOPICS = "directories can be created only at the top of the mount, as topics"
TAKES_NONE = "files can be created only in a topic, as its next partition"
NO_LINKS = "links are not supported"
NO_ACLS = "extended attributes are read-only, and ACLs are not supported"
ONLY = (
    "mode and owner can be set only for the mount point, topics, partitions and groups: "
    "chmod TOPIC, TOPIC/N"
)
POINTS = (
    "valid names: N@1234, N@-10, N@-15m, N@08:00, N@2026-11-21T08:00, N@start, N@end, N@group=G "
    "and N@START..END; see .kafkafs/help"
)

#: Per command that is typed in the mount point, the parts of its line in the log: the refused
#: request, the reason, and what to do instead.
REFUSED = {
    "mv t new": (
        "rename of t to new",
        "files here cannot be renamed",
        "to copy the topic instead: mkdir new; for each partition touch new/N and "
        "cp t/.batches/N new/.batches/N; rmdir t",
    ),
    "mv t/0 t/1": (
        "rename of t/0 to 1",
        "files here cannot be renamed",
        "to copy the values: cat t/0 >> TOPIC/N; whole records: .batches/N",
    ),
    "touch file": ("create of file", TAKES_NONE, MAKE),
    "touch t/5": (
        "create of t/5",
        "the next partition of topic 't' is 1, not 5: partitions are created in order",
        INPLACE,
    ),
    "cp $FILE t/name": (
        "create of t/name",
        "the name of a partition is a number, not 'name'",
        INPLACE,
    ),
    "rsync -I $FILE t/0": (
        "create of t/.0.…",
        "the name of a partition is a number, not '.0.…'",
        INPLACE,
    ),
    "touch t/.kv/1": (
        "create of t/.kv/1",
        TAKES_NONE,
        "to create a partition in all views: touch TOPIC/N",
    ),
    "mkdir t/sub": ("mkdir of t/sub", TOPICS, "to create the next partition: touch t/N"),
    "mkdir t/.kv/sub": (
        "mkdir of t/.kv/sub",
        TOPICS,
        "to create a topic: mkdir at the top of the mount",
    ),
    "mkdir 'a b'": (
        "mkdir of 'a b'",
        "a topic name consists of letters, digits, '.', '_' and '-'; 'a b' does not",
    ),
    "mkdir d_t": (
        "mkdir of d_t",
        "topic 'd_t' collides with 'd.t': Kafka's metric names do not distinguish '.' and '_'",
    ),
    "mkdir t-delete": (
        "mkdir of t-delete",
        "topic 't-delete': a broker uses such names for partitions that it deletes or moves. "
        "Choose another name",
    ),
    "cat t/0@foo": ("lookup of t/0@foo", "not a valid start or range after the @", POINTS),
    "cat t/0@99": (
        "lookup of t/0@99",
        "offset 99 is outside the log, which runs from 0 to 1",
        POINTS,
    ),
    "rm -r t": ("unlink of t/0", NOT_REMOVED),
    "rm t/.config": ("unlink of t/.config", NOT_REMOVED),
    "rm t/.meta/0/index": (
        "unlink of t/.meta/0/index",
        "files here cannot be removed",
        "to delete a topic with all its records: rmdir at the top of the mount",
    ),
    "rmdir t/.kv": (
        "rmdir of t/.kv",
        "only topics can be removed",
        "to delete the topic with all its records: rmdir t",
    ),
    "rmdir .kafkafs": ("rmdir of .kafkafs", "it is part of the file system and cannot be removed"),
    "ln t/0 t/1": (
        "link of t/0 to 1",
        NO_LINKS,
        "create the link outside of the mount, as a symbolic link",
    ),
    "ln -s t/0 link": ("symlink of link", NO_LINKS, "create the link outside of the mount"),
    "mkfifo t/1": ("mknod of t/1", "only topics and partitions can be created here", MAKE),
    "mknod node c 1 3": ("mknod of node", "only topics and partitions can be created here", MAKE),
    "setfattr -n user.x -v y t/0": ("setxattr of t/0", NO_ACLS, OWN),
    "setfattr -x user.x t/0": ("removexattr of t/0", NO_ACLS, OWN),
    "setfacl -m u:1:r t": ("setxattr of t", NO_ACLS, OWN),
    "chmod 600 t/.meta/0/index": ("setattr of t/.meta/0/index", ONLY),
    "chown 1 .kafkafs": ("setattr of .kafkafs", ONLY),
    "chmod 600 t/0@0": (
        "setattr of t/0@…",
        "this name is read-only; change the mode and owner of t/0",
        DELETE,
    ),
    "truncate -s 0 t/0": ("open of t/0", NOT_NEW, APPENDS),
    "$PYTHON -c 'import os; os.truncate(\"t/0\", 0)'": (
        "setattr of t/0",
        "a partition cannot be truncated",
        DELETE,
    ),
    "echo x > t/0": ("open of t/0", "the partition has records and cannot be truncated", APPENDS),
    "cp $FILE t/.kv/0": (
        "open of t/.kv/0",
        "the partition has records and cannot be truncated",
        APPENDS,
    ),
    "dd if=$FILE of=t/0 conv=notrunc": ("open of t/0", NOT_NEW, APPENDS),
    "echo x >> t/0@0": ("open of t/0@…", "this name is read-only; write to t/0", APPENDS),
    "echo x >> t/.follow/0": (
        "open of t/.follow/0",
        "this file is read-only; write to t/0",
        APPENDS,
    ),
    "echo x >> .kafkafs/log": ("open of .kafkafs/log", "this file is read-only", ELSEWHERE),
    "echo x >> t/.raw/0/partition.metadata": (
        "open of t/.raw/0/partition.metadata",
        "segment files are read-only here",
        ELSEWHERE,
    ),
    "cat t/.append": ("open of t/.append", "this file is write-only", ELSEWHERE),
}
#: The same of lines that are refused; their own lines have other words.
LINES = {
    "echo x=y >> t/.config": "t/.config: line 1: there is no setting 'x'",
    "echo go > t/.control/roll": "t/.control/roll: line 1: 'go' is not one of run",
    "echo '\\x' >> t/.kv/0": "t/0: append refused: line 1: byte 1: a backslash without a "
    "valid escape: valid are \\\\, \\t and \\n, and \\N for a whole field",
}


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    with mounted(tmp_path_factory.mktemp("mount"), "out_of_range=error") as started:
        started.run("mkdir t d.t; echo one >> t/0")
        (started.data.parent / "file").write_text("two\n")
        yield started


@pytest.mark.parametrize("typed", [*REFUSED, *LINES])
def test_a_refusal_says_what_to_do_instead(mount: Mount, typed: str) -> None:
    before = mount.events().splitlines()
    tree = mount.run("find . -not -path './.kafkafs*' | sort; cat t/0")
    done = mount.sh(f"set -e\n{typed}", FILE=mount.data.parent / "file", PYTHON=sys.executable)
    assert done.returncode != 0, done.stderr.decode()
    added = [line for line in mount.events().splitlines() if line not in before]
    # Another program may have met the same refusal; the name of a temporary file is rsync's.
    odd = re.compile(r" … \d+ more in [\d.]+ s$|(?<=\.0\.)\w{6}\b")
    said = {odd.sub("", line.partition(" ")[2]).replace(".0.", ".0.…") for line in added}
    what, *words = REFUSED.get(typed, (LINES.get(typed, ""),))
    line = f"{what} refused: {'; '.join(words)}" if words else what
    assert said == {line}, done.stderr.decode()
    assert mount.run("find . -not -path './.kafkafs*' | sort; cat t/0") == tree


def test_a_flood_of_refusals_pushes_no_damage_out(tmp_path: Path) -> None:
    """3,000 refusals take a bounded number of lines.

    Every second refusal has a text of its own. The other half has the same text, and is counted.
    """
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        mount.run("echo one >> $orders", orders=orders)
        do(orders, "roll", "run")
        mount.stop()
        log = min((mount.data / "orders-0").glob("*.log"))
        log.write_bytes(log.read_bytes().replace(b"one", b"two"))
        mount.start()
        fails(errno.EIO, orders.read_bytes)
        damage = [line for line in mount.events().splitlines() if "orders-0" in line]
        assert len(damage) == 2, "of the partition, and of the read"
        for number in range(1500):
            fails(errno.EPERM, os.mkdir, orders.parent / f"new{number}")
            fails(errno.EPERM, os.unlink, orders)
        lines = mount.events().splitlines()
        assert [line for line in lines if "orders-0" in line] == damage
        unlinks = [line.partition(" ")[2] for line in lines if "unlink of orders/0" in line]
        assert len(unlinks) == 2
        assert re.fullmatch(rf"{re.escape(unlinks[0])} … 1499 more in [\d.]+ s", unlinks[1])
        assert len(lines) < 1100
        assert "mkdir of orders/new1499 refused" in lines[-2]
        mount.run("rmdir orders")
