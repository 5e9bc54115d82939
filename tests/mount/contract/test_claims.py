"""Claims of consumers: `.groups/G/.claims`."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.contract.test_groups import position_in
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, let_others_in, needs_root
from tests.mount.test_two_users import run_as
from tests.waits import HANG_S

OTHER = 65432

#: Opens the file, claims, and waits to be killed.
CLAIM = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
os.write(fd, sys.argv[2].encode() + b"\\n")
print(os.pread(fd, 4096, 0).decode(), flush=True)
time.sleep(10**6)
"""


class Consumer:
    """One that has the file open."""

    def __init__(self, group: Path) -> None:
        self.fd = os.open(group / ".claims", os.O_RDWR)
        self.poll = select.poll()
        self.poll.register(self.fd, select.POLLPRI)

    def write(self, *lines: str) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        assert os.write(self.fd, data) == len(data)

    def has(self) -> dict[str, str]:
        """The states of its partitions."""
        lines = os.pread(self.fd, 1 << 20, 0).decode().splitlines()
        return {f"{topic}/{number}": state for topic, number, state, _ in map(str.split, lines)}

    def held(self) -> set[str]:
        return {name for name, state in self.has().items() if state == "held"}

    def is_told(self, timeout_s: float = 0) -> bool:
        return bool(self.poll.poll(timeout_s * 1000))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Group:
    """A new group `G` and a new topic `orders` with four partitions, in a mount."""

    def __init__(self, mount: Mount, stack: ExitStack) -> None:
        self.mount = mount
        mount.topic("orders", 4)
        for number in range(4):
            append(mount / f"orders/{number}", b"a\nb\nc\n")
        self.path = mount / ".groups/G"
        self.path.mkdir()
        self.stack = stack

    def consumer(self, *claims: str) -> Consumer:
        made = Consumer(self.path)
        self.stack.callback(made.close)
        made.write(*(f"claim {claim}" for claim in claims))
        return made


@pytest.fixture
def group(mount: Mount) -> Iterator[Group]:
    """In the module's mount, and removed at the end."""
    with ExitStack() as stack:
        group = Group(mount, stack)
        yield group
    mount.run("rmdir orders")
    if group.path.exists():
        group.path.rmdir()


@pytest.fixture
def own_group(own: Mount) -> Iterator[Group]:
    """In a mount of the test's own."""
    with ExitStack() as stack:
        yield Group(own, stack)


def names(*numbers: int, topic: str = "orders") -> set[str]:
    return {f"{topic}/{number}" for number in numbers}


def test_single_partitions_can_be_claimed(group: Group) -> None:
    assert group.consumer("orders 1", "orders 3").held() == names(1, 3)


def test_a_partition_changes_hands_when_its_holder_gives_it_back(group: Group) -> None:
    one = group.consumer("orders")
    one.has()
    assert not one.is_told()
    two = group.consumer("orders")
    assert one.is_told()
    told = one.has()
    assert not one.is_told()
    asked = {name for name, state in told.items() if state == "return"}
    assert len(asked) == 2
    assert two.has() == dict.fromkeys(sorted(asked), "wait")
    assert not two.is_told()
    for name in sorted(asked):
        topic, number = name.split("/")
        one.write(f"return {topic} {number}")
    assert two.is_told()
    assert two.held() == asked
    assert one.held() == names(0, 1, 2, 3) - asked


def test_what_a_closed_file_held_is_granted_to_others_at_once(group: Group) -> None:
    one, two = group.consumer("orders"), group.consumer("orders")
    two.has()
    one.close()
    assert two.is_told(HANG_S)
    assert two.held() == names(0, 1, 2, 3)


def test_a_killed_process_holds_nothing(group: Group) -> None:
    command = [sys.executable, "-c", CLAIM, str(group.path / ".claims"), "claim orders"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"orders 0 held")
    two = group.consumer("orders")
    assert not two.held()
    process.kill()
    assert two.is_told(HANG_S)
    assert two.held() == names(0, 1, 2, 3)
    process.wait()
    process.stdout.close()


def test_while_a_partition_is_claimed_nobody_else_commits(group: Group) -> None:
    consumer = group.consumer("orders 1")
    consumer.write("commit orders 1 2\tmine")
    position = group.path / "orders"
    fails(errno.EBUSY, (position / "1").write_text, "0\n")
    fails(errno.EBUSY, (position / ".all").write_text, "0\n")
    fails(errno.EBUSY, os.unlink, position / "1")
    fails(errno.EBUSY, os.rmdir, position)
    fails(errno.EBUSY, os.rmdir, group.path)
    assert position_in(position / "1") == "2"
    assert f"claimed by process {os.getpid()} (" in (group.mount / ".kafkafs/log").read_text()
    table = (group.path / ".claims").read_text().splitlines()
    assert table[1].split()[:5] == ["orders", "1", "held", "process", str(os.getpid())]
    (position / "0").write_text("1\n")
    assert position_in(position / "0") == "1"
    consumer.close()
    os.rmdir(group.path)


def test_only_its_holder_commits_through_a_claim(group: Group) -> None:
    one, two = group.consumer("orders 1"), group.consumer("orders 1")
    for line in ("commit orders 1 2", "return orders 1", "commit orders 2 1"):
        fails(errno.EPERM, two.write, line)
    one.write("commit orders 1 3", "return orders 1")
    assert position_in(group.path / "orders/1") == "3"


WRONG = [
    *("claim", "claim ", "claim a/b", "claim orders x", "claim orders 1 2", "claims orders"),
    *("commit orders 0", "commit orders 0 x", "commit orders 0 +1", "commit orders x 1"),
    *("return orders", "return", "", "x"),
]


def test_a_wrong_line_changes_nothing(group: Group) -> None:
    consumer = group.consumer("orders 0")
    consumer.write("commit orders 0 1")
    for line in WRONG:
        fails(errno.EINVAL, consumer.write, "commit orders 0 2", line)
    assert position_in(group.path / "orders/0") == "1"
    assert consumer.held() == names(0)


def test_new_partitions_are_shared_too(group: Group) -> None:
    consumer = group.consumer("orders")
    consumer.has()
    group.mount.run("touch orders/4")
    assert consumer.is_told(HANG_S)
    assert consumer.held() == names(0, 1, 2, 3, 4)


def test_a_topic_that_is_made_again_is_another(group: Group) -> None:
    consumer = group.consumer("orders", "later")
    before = os.pread(consumer.fd, 4096, 0)
    group.mount.run("rmdir orders")
    assert consumer.is_told(HANG_S)
    assert not consumer.held()
    fails(errno.EPERM, consumer.write, "commit orders 0 1")
    group.mount.topic("orders", 4)
    assert consumer.is_told(HANG_S)
    after = os.pread(consumer.fd, 4096, 0)
    assert len(after) == len(before)
    assert after != before
    consumer.write("commit orders 0 0")


def test_the_file_is_opened_for_both_or_to_read(own_group: Group) -> None:
    path = own_group.path / ".claims"
    fails(errno.EINVAL, os.open, path, os.O_WRONLY)
    assert path.read_text().split() == ["topic", "partition", "state", "consumer"]
    assert not os.listdir(own_group.path)
    own_group.mount.restart("ro")
    fails(errno.ENOENT, os.open, path, os.O_RDWR)


def test_a_read_only_mount_has_no_consumers(own_group: Group) -> None:
    (own_group.path / "orders/0").write_text("1\n")
    own_group.mount.restart("ro")
    fails(errno.EROFS, os.open, own_group.path / ".claims", os.O_RDWR)


@needs_root
def test_who_may_not_read_a_topic_claims_none_of_it(own_group: Group) -> None:
    own = own_group.mount
    own.restart("allow_other")
    let_others_in(own.path)
    own.run("chmod 755 .; mkdir .groups/G; chmod 777 .groups/G; chmod 600 orders/2")
    for line, is_taken in (
        ("claim orders", False),
        ("claim orders 2", False),
        ("claim orders 1", True),
    ):
        done = run_as(OTHER, f"exec 3<>.groups/G/.claims && echo '{line}' >&3", own)
        assert (done.returncode == 0) is is_taken, done
