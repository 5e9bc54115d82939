"""Consumer groups: `.groups`, and `N@group=G`."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from storage import LogManager
from storage.groups.offset_records import partition_for
from tests.mount.contract.writing import append, opened
from tests.mount.control import do
from tests.mount.mounting import OFFSETS_PARTITIONS, Mount, fails
from tests.storage.groups.records import (
    classic_group,
    group_key,
    position,
    share_group,
    write,
)
from tests.storage.producers import Producer

NONE = {"position": "none", "lag": "none", "committed": "none", "leader_epoch": "-1"}
LINES = b"a\nb\nc\nd\ne\n"
OWNER, OTHER = 54321, 65432
REFERENCE = Path(__file__).parents[3] / "docs/reference/following.md"


@pytest.fixture
def group(mount: Mount, orders: Path) -> Path:
    """A new group's directory for the topic of `orders`, whose partition 0 has five records."""
    append(orders, LINES)
    found = mount / ".groups" / f"of-{orders.parent.name}"
    found.mkdir()
    return found / orders.parent.name


def facts(path: Path) -> dict[str, str]:
    """The lines `name value` of a position."""
    lines = path.read_text().splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def position_in(path: Path) -> str:
    return facts(path)["position"]


def committed(data: Path) -> dict[str, dict[tuple[str, int], int]]:
    """The positions of all groups, as the log has them."""
    with LogManager.open(str(data), read_only=True) as manager:
        return {
            name: {item: each.position for item, each in found.committed.items()}
            for name in manager.groups.names()
            if (found := manager.groups.find(name)) is not None
        }


# -- what is there ---------------------------------------------------------------------------------


def test_a_group_is_there_once_it_is_made_or_has_committed(own: Mount) -> None:
    own.topic("orders", 2)
    append(own / "orders/0", LINES)
    assert own.run("ls -A; ls -A .groups") == b"orders\n"
    fails(errno.ENOENT, os.listdir, own / ".groups/G")
    fails(errno.ENOENT, os.stat, own / ".groups/G/orders/0")
    own.run("mkdir .groups/G .groups/empty; mkdir -p .groups/G/orders")
    fails(errno.EEXIST, os.mkdir, own / ".groups/G")
    assert own.run("ls .groups; ls -A .groups/G; ls -A .groups/G/orders") == b"G\nempty\n"
    own.run("echo 2 > .groups/G/orders/0")
    assert own.run("ls .groups; ls -A .groups/G; ls -A .groups/G/orders") == (
        b"G\nempty\norders\n0\n"
    )
    for name in ("orders/2", "orders/x", "orders/00", "orders/-1", "users", ".x", "orders/.lag"):
        fails(errno.ENOENT, os.stat, own / ".groups/G" / name)
    own.restart("show_dot", "show_internal")
    assert own.run("ls -A; ls -A .groups").split() == [
        *(b".groups", b".kafkafs", b"__consumer_offsets", b"orders"),
        b"G",
    ]


def test_the_facts_of_a_position(own: Mount) -> None:
    own.topic()
    append(own / "orders/0", LINES)
    own.run("mkdir .groups/G")
    path = own / ".groups/G/orders/0"
    log = {"log_start": "0", "high_watermark": "5", "log_end": "5", "last_stable": "5"}
    assert facts(path) == {**NONE, **log, "metadata": ""}
    before_ns = path.stat().st_mtime_ns
    own.run("printf '3\\ta note\\n' > .groups/G/orders/0")
    found = facts(path)
    assert found == {
        "position": "3",
        **log,
        "lag": "2",
        "committed": found["committed"],
        "leader_epoch": "-1",
        "metadata": "a note",
    }
    assert list(found)[:3] == ["position", "log_start", "high_watermark"]
    assert path.stat().st_mtime_ns > before_ns
    assert path.stat().st_mtime_ns // 1_000_000 == int(found["committed"])
    append(own / "orders/0", b"f\n")
    assert facts(path)["lag"] == "3"
    assert (
        own.run("stat -c %s .groups/G/orders/0; wc -c < .groups/G/orders/0").split()
        == [b"%d" % len(path.read_bytes())] * 2
    )


# -- commits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("+1\n", "3"),
        ("1\n2\n3\n", "3"),
        ("1\n3", "3"),
        ("3\tmetadata with a\ttab\n", "3"),
    ],
)
@pytest.mark.parametrize("how", [">", ">>"])
def test_a_line_commits(mount: Mount, group: Path, lines: str, expected: str, how: str) -> None:
    mount.run('echo 2 > "$P"', P=group / "0")
    mount.run(f'printf %s "$LINES" {how} "$P"', LINES=lines, P=group / "0")
    assert position_in(group / "0") == expected
    metadata = lines.strip("\n").partition("\t")[2]
    assert facts(group / "0")["metadata"] == metadata.replace("\t", "\\t")


@pytest.mark.parametrize("line", ["6", "3\n\n", "3\nx", "x\n3", "3\t" + "m" * 4097])
def test_a_wrong_line_is_einval_and_changes_nothing(mount: Mount, group: Path, line: str) -> None:
    mount.run("printf '2\\tkept\\n' > \"$P\"", P=group / "0")
    before = (group / "0").read_bytes()
    with opened(group / "0", os.O_WRONLY) as fd:
        fails(errno.EINVAL, os.write, fd, f"{line}\n".encode())
    assert (group / "0").read_bytes() == before
    assert f"of-{group.name}/{group.name}/0: " in mount.events()


@pytest.mark.parametrize("line", ["6", "x", "3\t" + "m" * 4097])
def test_a_wrong_line_without_its_newline_is_einval_at_close(group: Path, line: str) -> None:
    for name in ("0", ".all"):
        fd = os.open(group / name, os.O_WRONLY)
        os.write(fd, line.encode())
        fails(errno.EINVAL, os.close, fd)
    assert position_in(group / "0") == "none"


def test_a_write_in_pieces_and_both_ways_at_once(mount: Mount, group: Path) -> None:
    with opened(group / "0", os.O_RDWR) as fd:
        os.write(fd, b"1")
        assert position_in(group / "0") == "none"
        os.write(fd, b"\n2\n3")
        assert position_in(group / "0") == "2"
        assert os.pread(fd, 13, 0) == b"position none"
        os.fsync(fd)
    assert position_in(group / "0") == "3"


def test_a_whole_topic_in_one_append(own: Mount) -> None:
    own.topic("orders", 3)
    own.run("mkdir .groups/G; seq 3 >> orders/0; seq 5 >> orders/1; echo 1 > .groups/G/orders/1")
    with opened(own / ".groups/G/orders/.all", os.O_WRONLY) as fd:
        # Not all of them have it, or have a position.
        fails(errno.EINVAL, os.write, fd, b"1\n")
        fails(errno.EINVAL, os.write, fd, b"+1\n")
    assert own.run("ls .groups/G/orders") == b"1\n"
    number = partition_for("G", OFFSETS_PARTITIONS)
    before = own.run(f"getfattr --only-values -n user.kafkafs.log_end __consumer_offsets/{number}")
    own.run("printf 'latest\\tall' > .groups/G/orders/.all")
    assert own.run("grep -h ^position .groups/G/orders/*; ls .groups/G/orders") == (
        b"position 3\nposition 5\nposition 0\n0\n1\n2\n"
    )
    batches = (own / f"__consumer_offsets/.batches/{number}@{before.decode()}").read_bytes()
    assert len(batches) == 12 + int.from_bytes(batches[8:12], "big")
    own.run("echo +0 > .groups/G/orders/.all")
    fails(errno.EPERM, (own / ".groups/G/orders/.all").unlink)


def test_many_commits_before_the_mount(own: Mount) -> None:
    """More than the daemon reads while it answers a request."""
    own.topic("orders", 10)
    own.run("echo a >> orders/0; for g in {1..40}; do mkdir .groups/$g; done")
    own.run("for g in {1..40}; do printf '0\\t%4000d' 1 > .groups/$g/orders/.all; done")
    for script, shown in (
        ("echo 1 > .groups/7/orders/0; grep ^position .groups/7/orders/0", b"position 1\n"),
        ("cat orders/0@group=7 orders/0@group=8", b"a\n"),
        ("rm -r .groups/8; ls .groups | wc -l", b"39\n"),
        ("cat .groups/.lag | grep -c .", b"%d\n" % (39 * 10 + 2)),
    ):
        own.restart()
        assert own.run(script) == shown
    assert own.run("grep -c ^kafkafs_group_lag .kafkafs/metrics") == b"%d\n" % (39 * 10)


# -- what goes -------------------------------------------------------------------------------------


def test_rm_and_rmdir_take_commits_back(own: Mount) -> None:
    own.topic("orders", 2)
    own.topic("users")
    commit = "echo 0 > .groups/G/orders/.all; echo 0 > .groups/G/users/0"
    own.run(f"mkdir .groups/G; {commit}; rm .groups/G/orders/0")
    assert position_in(own / ".groups/G/orders/0") == "none"
    assert own.run("ls .groups/G/*") == (b".groups/G/orders:\n1\n\n.groups/G/users:\n0\n")
    own.run(f"{commit}; rmdir .groups/G/orders")
    assert own.run("ls .groups/G") == b"users\n"
    own.run("rm .groups/G/users/0; rm .groups/G/users/0")
    assert own.run("ls .groups; ls .groups/G") == b"G\n"
    own.run(f"{commit}; rmdir .groups/G; ls .groups")
    fails(errno.ENOENT, os.stat, own / ".groups/G")
    own.run(f"mkdir .groups/G; {commit}; rm -r .groups/G; mkdir .groups/G; ls .groups/G")
    own.run(f"{commit}; rm -rf .groups/*; ls .groups")
    fails(errno.ENOENT, os.rmdir, own / ".groups/G")
    own.stop()
    assert committed(own.data) == {}


def test_a_removed_directory_is_found_again(own: Mount) -> None:
    """Also by who stands in the old one."""
    own.topic()
    again = "mkdir ../G; echo 0 > ../G/orders/0; ls ../G ../G/orders"
    assert own.run(f"mkdir .groups/G; cd .groups/G; rmdir ../G; {again}") == (
        b"../G:\norders\n\n../G/orders:\n0\n"
    )
    assert own.run("cd .groups/G/orders; rmdir ../orders; echo 0 > ../orders/0; ls ../orders") == (
        b"0\n"
    )


@pytest.mark.parametrize(
    "script",
    [
        "mkdir .groups/G/new",
        "touch .groups/new",
        "touch .groups/G/new",
        "touch .groups/G/$T/1",
        "mv .groups/G .groups/H",
        "rm .groups/G/$T/.all",
        "chmod 600 .groups/G/$T/0",
        "truncate -s 1 .groups/G/.lag",
        "echo 1 > .groups/G/.lag",
        "rmdir .groups",
        "mkdir .groups/.G",
        "mkdir .groups/$(printf %0201d 1)",
    ],
)
def test_what_is_refused(mount: Mount, orders: Path, script: str) -> None:
    mount.run("mkdir -p .groups/G")
    done = mount.sh(script, T=orders.parent.name)
    assert done.returncode == 1, done.stderr
    assert mount.sh("ls .groups/new .groups/G/new .groups/H .groups/%2EG").stdout == b""


# -- names -----------------------------------------------------------------------------------------

SPELT = [
    ("plain", "plain"),
    ("a b", "a b"),
    ("a/b", "a%2Fb"),
    ("100%", "100%25"),
    ("a\nb\x1b\x7f", "a%0Ab%1B%7F"),
    (".lag", "%2Elag"),
    ("a..b.c.", "a.%2Eb.c%2E"),
    ("...", "%2E%2E%2E"),
    ("grün@=", "grün@="),
]


def test_groups_of_any_name(own: Mount) -> None:
    """As others may have made them."""
    own.topic()
    own.run("seq 5 >> orders/0; mkdir .groups/G; echo 1 > .groups/G/orders/0")
    own.stop()
    names = [name for name, _ in SPELT] + ["x" * 200, "x" * 201, "é" * 3000, "\udcff"]
    with LogManager.open(str(own.data)) as manager:
        topic = manager.topics["__consumer_offsets"]
        for name in names:
            log = topic.partitions[partition_for(name, OFFSETS_PARTITIONS)]
            write(log, position(name, "orders", 0, 3, topic_id=manager.topics["orders"].id))
    own.start()
    listed = os.listdir(own / ".groups")
    assert len(set(listed)) == len(names) - 2 + 1
    assert {spelt for _, spelt in SPELT} | {"x" * 200, "\udcff"} <= set(listed)
    for name in listed:
        assert own.run('cat "orders/0@group=$G..4"', G=name) == (
            b"4\n" if name != "G" else b"2\n3\n4\n"
        )
    assert own.run("ls .groups/*/orders | grep -c ^0") == b"%d\n" % len(listed)
    *table, not_shown = own.run("cat .groups/.lag").splitlines()
    assert len(table) == len(listed) + 2
    assert not_shown == b"# not shown: 2 groups with a name of more than 200 bytes"
    fails(errno.ENOENT, os.stat, own / f".groups/{'x' * 201}")
    own.run("rm -rf .groups/*; ls .groups")
    assert os.listdir(own / ".groups") == []
    fails(errno.EINVAL, os.mkdir, own / ".groups/\udcff")


# -- N@group=G -------------------------------------------------------------------------------------


def test_a_groups_position_as_a_start(mount: Mount, group: Path) -> None:
    topic, name = mount / group.name, f"0@group={group.parent.name}"
    fails(errno.ENOENT, os.stat, topic / "0@group=nobody")
    assert "there is no group nobody. To create it: mkdir .groups/nobody" in mount.events()
    fails(errno.ENOENT, os.stat, topic / "0@group=no%2fbody")
    assert "no group has the file name 'no%2fbody'; use no%2Fbody" in mount.events()
    fails(errno.ENOENT, os.stat, topic / f"0@group={'x' * 201}")
    assert "groups with names of more than 200 bytes are not supported" in mount.events()
    for wrong in ("0@group=", "0@group", "9@group=x", "0@group=x...5", "0@Group=x"):
        fails(errno.ENOENT, os.stat, topic / wrong)
    # A group without a committed offset misses nothing.
    assert (topic / name).read_bytes() == LINES
    mount.run('echo 3 > "$P"', P=group / "0")
    assert (topic / name).read_bytes() == b"d\ne\n"
    assert (topic / name).stat().st_ino == (topic / "0@3").stat().st_ino
    assert (topic / f"{name}..4").read_bytes() == b"d\n"
    assert (topic / f"{name}..").read_bytes() == b"d\ne\n"
    assert (topic / f"0@..{name[2:]}").read_bytes() == b"a\nb\nc\n"
    assert (topic / f"0@2..{name[2:]}").read_bytes() == b"c\n"
    assert (topic / ".kv" / name).read_bytes() == b"d\ne\n"
    assert (topic / ".follow" / name).read_bytes() == b"d\ne\n"
    assert b'"offset":3,' in (topic / ".jsonl" / f"{name}..end").read_bytes()
    assert (topic / ".batches" / name).read_bytes() == (topic / ".batches/0@3").read_bytes()
    with opened(topic / name, os.O_RDONLY) as fd:
        # The name is looked up again, also while the file that it named before is open.
        mount.run('echo 4 > "$P"', P=group / "0")
        assert (topic / name).read_bytes() == b"e\n"
        append(topic / "0", b"f\n")
        assert os.pread(fd, 100, 0) == b"d\ne\nf\n"
    mount.run('echo latest > "$P"', P=group / "0")
    assert (topic / name).read_bytes() == b""


def test_a_gap_is_named(mount: Mount, group: Path) -> None:
    mount.run('echo 1 > "$P"', P=group / "0")
    do(mount / group.name / "0", "delete-records", "0 3")
    start = mount / group.name / f"0@group={group.parent.name}"
    assert start.read_bytes() == b"d\ne\n"
    line = f"{group.name}/0: group {group.parent.name} has not read offsets 1 to 2 (2)"
    assert line in mount.events()
    # It is as it was committed.
    assert (position_in(group / "0"), facts(group / "0")["lag"]) == ("1", "4")


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_script_that_needs_no_program_of_ours(own: Mount, shell: str) -> None:
    """The reference's own, with a `load` that sometimes fails."""
    own.topic()
    own.run("mkdir .groups/report; touch ../loaded")
    (script,) = re.findall(r"^```sh\n(end=.*?)^```$", REFERENCE.read_text(), re.M | re.S)
    (own.path.parent / "job").write_text(
        f'load() {{ cat >> loaded; test -z "$FAILS"; }}\nset -u\n{script}'
    )

    def job(fails: str = "") -> int:
        return own.sh(f"cd .. && FAILS={fails} {shell} job").returncode

    own.run("seq 4 >> orders/0")
    assert (job(), job()) == (0, 0)
    assert own.run("cat ../loaded") == b"1\n2\n3\n4\n"
    own.run("seq 5 6 >> orders/0")
    assert job("yes") == 1
    assert position_in(own / ".groups/report/orders/0") == "4"
    own.run("seq 7 8 >> orders/0")
    assert (job(), job()) == (0, 0)
    assert own.run("cat ../loaded") == b"1\n2\n3\n4\n" + b"5\n6\n" + b"5\n6\n7\n8\n"
    assert position_in(own / ".groups/report/orders/0") == "8"


def test_a_script_reads_nothing_of_an_open_transaction(own: Mount) -> None:
    """And what it has not read it does not commit."""
    own.topic()
    own.run("mkdir .groups/G; echo a >> orders/0")
    producer = Producer(1, transactional=True)
    append(own / "orders/.batches/0", producer.batch(b"b"))
    own.run("echo c >> orders/0; echo latest > .groups/G/orders/0")
    found = facts(own / ".groups/G/orders/0")
    assert [found[name] for name in ("position", "last_stable", "lag")] == ["1", "1", "2"]
    assert own.run("getfattr --only-values -n user.kafkafs.last_stable orders/0") == b"1"
    assert own.run("cat orders/0@group=G") == b""
    append(own / "orders/.batches/0", producer.commit())
    assert own.run("cat orders/0@group=G") == b"b\nc\n"
    own.run("echo latest > .groups/G/orders/0")
    assert position_in(own / ".groups/G/orders/0") == "4"


# -- tables ----------------------------------------------------------------------------------------


def test_the_tables_and_the_metric(own: Mount) -> None:
    own.topic("orders", 2)
    own.topic("a")
    own.run("seq 5 >> orders/0; seq 3 >> orders/1; echo x >> a/0; mkdir .groups/{G,'h h'}")
    assert own.run("cat .groups/G/.lag") == (
        b"topic partition position high_watermark lag committed\n# lag 0, partitions 0\n"
    )
    own.run("echo earliest > .groups/G/orders/.all; echo 1 > .groups/G/a/0")
    own.run("echo 2 > '.groups/h h/orders/1'")
    lines = own.run("cat .groups/G/.lag").decode().splitlines()
    assert len({len(line) for line in lines[:-1]}) == 1
    assert [line.split()[:5] for line in lines[:-1]] == [
        ["topic", "partition", "position", "high_watermark", "lag"],
        ["a", "0", "1", "1", "0"],
        ["orders", "0", "0", "5", "5"],
        ["orders", "1", "0", "3", "3"],
    ]
    assert lines[-1] == "# lag 8, partitions 3"
    everything = own.run("cat .groups/.lag").decode().splitlines()
    assert everything[-2].split()[:6] == ["h%20h", "orders", "1", "2", "3", "1"]
    assert everything[-1] == "# lag 9, partitions 4, groups 2"
    metrics = re.findall(
        r"^kafkafs_group_lag{(.*)} (.*)$", own.run("cat .kafkafs/metrics").decode(), re.M
    )
    assert ('group="G",partition="0",topic="orders"', "5.0") in [
        (",".join(sorted(labels.split(","))), value) for labels, value in metrics
    ]
    assert len(metrics) == 4


def test_the_kind_of_a_brokers_group_and_whether_it_has_members(own: Mount) -> None:
    """Only brokers change a share group."""
    own.topic("orders", 2)
    own.run("mkdir .groups/ours; echo 0 > .groups/ours/orders/0")
    own.stop()
    with LogManager.open(str(own.data)) as manager:
        for key, value in (
            (group_key("theirs"), classic_group(since_ms=-1, members=2)),
            (group_key("left"), classic_group(since_ms=5, members=0)),
            *share_group("shared"),
        ):
            write(manager.log("__consumer_offsets", 0), (key, value))
    own.start()
    assert own.run("ls .groups") == b"left\nours\nshared\ntheirs\n"
    fails(errno.EPERM, os.rmdir, own / ".groups/shared")
    assert "kafka-share-groups --delete --group" in own.events()
    with opened(own / ".groups/shared/orders/0", os.O_WRONLY) as fd:
        fails(errno.EPERM, os.write, fd, b"0\n")
    assert own.run("grep '^# kind' .groups/{ours,theirs,left,shared}/.lag") == (
        b".groups/theirs/.lag:# kind classic, members yes\n"
        b".groups/left/.lag:# kind classic, members no\n"
        b".groups/shared/.lag:# kind share, members no\n"
    )
    assert own.run("ls -A .groups/theirs .groups/shared; tail -n 1 .groups/.lag") == (
        b".groups/shared:\n\n.groups/theirs:\n# lag 0, partitions 1, groups 4\n"
    )
    own.run("rm -r .groups/theirs")
    assert own.run("ls .groups") == b"left\nours\nshared\n"


# -- the topic of the positions --------------------------------------------------------------------


def test_the_topic_is_written_by_commits_alone(own: Mount) -> None:
    own.topic()
    own.run("echo a >> orders/0; mkdir .groups/G; echo 1 > .groups/G/orders/0")
    assert own.run("ls; ls __consumer_offsets | wc -l") == b"orders\n%d\n" % OFFSETS_PARTITIONS
    config = own.run("cat __consumer_offsets/.config")
    assert b"cleanup.policy=compact\n" in config
    for name in ("0", ".jsonl/0", ".batches/0", ".append", ".kv/append"):
        fails(errno.EPERM, os.open, own / "__consumer_offsets" / name, os.O_WRONLY | os.O_APPEND)
        assert "this topic takes no records. To commit an offset" in own.events()
    before = own.run("cat __consumer_offsets/.batches/*")
    for command in (
        "rmdir __consumer_offsets",
        "echo cleanup.policy=delete > __consumer_offsets/.config",
        "echo max.message.bytes=1 > __consumer_offsets/.config",
        "echo 0 -1 > __consumer_offsets/.control/delete-records",
    ):
        assert b"Operation not permitted" in own.sh(command).stderr
        line = own.events().splitlines()[-1]
        assert "To delete those of one group: rmdir .groups/GROUP" in line, (command, line)
    assert own.run("cat __consumer_offsets/.config") == config
    assert own.run("cat __consumer_offsets/.batches/*") == before
    own.run("touch __consumer_offsets/0")
    own.restart("show_internal")
    assert own.run("ls") == b"__consumer_offsets\norders\n"
