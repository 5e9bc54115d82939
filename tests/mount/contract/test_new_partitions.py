"""A partition that never held a record: `>`, cp, tar and rsync write it from its beginning."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.contract.test_batches import batches, workload
from tests.mount.contract.writing import APPEND, append, offsets, opened, view, write_all
from tests.mount.control import do
from tests.mount.mounting import Mount, fails
from tests.mount.programs import program
from tests.storage.logs import batch

WRITE = os.O_WRONLY
LINES = b"".join(b"line %d %s\n" % (number, b"x" * (number % 300)) for number in range(10_000))

#: Each writes the file $S into the partition $F.
PROGRAMS = {
    "cp": 'cp "$S" "$F"',
    "cp -p": 'cp -p "$S" "$F"',
    "cp --sparse=always": 'cp --sparse=always "$S" "$F"',
    ">": 'cat "$S" > "$F"',
    "dd": 'dd if="$S" of="$F" bs=4093 status=none',
    "dd notrunc": 'dd if="$S" of="$F" bs=1M conv=notrunc,fsync status=none',
    "tee": 'tee "$F" < "$S" > /dev/null',
    "python": "$PYTHON -c \"open('$F', 'w').write(open('$S').read())\"",
    "rsync": 'rsync -I --inplace "$S" "$F"',
    "rsync -a": 'rsync -aI --inplace "$S" "$F"',
    "tar": 'tar -c -C "${S%/*}" --transform "s/.*/${F##*/}/" "${S##*/}" |'
    ' tar -x --overwrite -C "${F%/*}"',
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program("rsync")
    path = tmp_path_factory.mktemp("source") / "lines"
    path.write_bytes(LINES)
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_written_from_its_beginning(mount: Mount, lines: Path, name: str) -> None:
    """The first time, whether mkdir, touch or the program has made it; never again."""
    orders = new_topic(mount)
    (orders.parent / "1").touch()
    for number in range(3):
        path = orders.parent / str(number)
        mount.run(PROGRAMS[name], S=lines, F=path, PYTHON=sys.executable)
        assert path.read_bytes() == LINES
        again = mount.sh(PROGRAMS[name], S=lines, F=path, PYTHON=sys.executable)
        assert again.returncode != 0
        assert b"Operation not permitted" in again.stderr
        assert path.read_bytes() == LINES
        assert f"{orders.parent.name}/{number}" in mount.events().splitlines()[-1]
        mount.run('echo more >> "$F"', F=path)
        assert path.read_bytes() == LINES + b"more\n"


@pytest.mark.parametrize("name", [".kv", ".jsonl"])
def test_in_each_view(mount: Mount, name: str) -> None:
    """`cp a/.jsonl/0 b/.jsonl/0`: all but the offsets, which count from 0."""
    a, b = new_topic(mount), new_topic(mount)
    append(view(a, ".kv"), b"alice\tone\n\\N\ttwo\nbob\t\\N\n" * 1000)
    mount.run('cp "$A" "$B"', A=view(a, name), B=view(b, name))
    assert view(b, ".kv").read_bytes() == view(a, ".kv").read_bytes()
    shown = [view(each, ".jsonl").read_bytes().splitlines() for each in (a, b)]
    if name == ".jsonl":
        assert shown[0] == shown[1]
    assert [json.loads(line)["offset"] for line in shown[1]] == list(range(3000))


@pytest.mark.parametrize(
    "script",
    [
        'for n in 3 0 2 1; do cp "$A/$n" "$B/$n"; done',
        'cp "$A"/* "$B/"',
        'cp -rT "$A" "$B"',
        'tar -c -C "$A" 3 1 0 2 | tar -x --overwrite -C "$B"',
        'rsync -r --inplace "$A/" "$B/"',
        'rsync -a --inplace "$A/" "$B/"',
    ],
)
def test_in_any_order(mount: Mount, script: str) -> None:
    """Once the partitions exist: a topic's copy."""
    a, b = new_topic(mount, 4).parent, new_topic(mount, 4).parent
    for number in range(4):
        append(a / str(number), LINES[number * 1000 :])
    mount.run(script, A=a, B=b)
    for number in range(4):
        assert (b / str(number)).read_bytes() == (a / str(number)).read_bytes()


@pytest.mark.parametrize(
    "script", ['cp -a "$A/." "$B"', 'tar -c -C "$A" . | tar -x --overwrite -C "$B"']
)
def test_a_directory_of_a_view(mount: Mount, script: str) -> None:
    """Such a directory has no mode of its own; the one that it has already is set in vain."""
    a, b = (new_topic(mount).parent / ".batches" for _ in range(2))
    append(a.parent / "0", LINES)
    mount.run(script, A=a, B=b)
    assert (b / "0").read_bytes() == (a / "0").read_bytes()
    for refused in ('chmod 700 "$B"', 'chown 12345 "$B"'):
        mount.run(f"! {refused} 2>&1", B=b)


def test_the_rest_of_the_last_line(mount: Mount, orders: Path, tmp_path: Path) -> None:
    """As in an append it becomes a record when the file is closed."""
    source = tmp_path / "source"
    source.write_bytes(b"one\ntwo")
    mount.run('rsync --inplace "$S" "$F"', S=source, F=orders)
    mount.run('echo -n three >> "$F"', F=orders)
    assert orders.read_bytes() == b"one\ntwo\nthree\n"


def test_only_in_order(orders: Path) -> None:
    """A write elsewhere is EPERM, and changes nothing."""
    with opened(orders, WRITE | os.O_TRUNC) as fd:
        fails(errno.EPERM, os.pwrite, fd, b"hole\n", 4096)
        os.write(fd, b"one\ntw")
        fails(errno.EPERM, os.pwrite, fd, b"one\n", 0)
        fails(errno.EPERM, os.pwrite, fd, b"gap\n", 7)
        assert os.write(fd, b"o\n") == 2
        for size in (0, 7, 9):
            fails(errno.EPERM, os.ftruncate, fd, size)
        os.ftruncate(fd, 8)
    assert orders.read_bytes() == b"one\ntwo\n"
    for flags in (WRITE, os.O_RDWR, APPEND | os.O_TRUNC, os.O_TRUNC):
        fails(errno.EPERM, os.open, orders, flags)
    fails(errno.EPERM, os.truncate, orders, 8)


def test_cut_to_the_nothing_that_it_holds(mount: Mount, orders: Path) -> None:
    """O_TRUNC and truncate of an empty one succeed, and it stays new."""
    mount.run('> "$F"; truncate -s 0 "$F"; : > "$F"', F=orders)
    for flags in (WRITE, os.O_RDWR, APPEND, os.O_RDONLY):
        with opened(orders, flags | os.O_TRUNC):
            pass
    fails(errno.EPERM, os.truncate, orders, 1)
    with opened(orders, os.O_RDWR) as fd:
        os.write(fd, b"one\n")
        assert os.pread(fd, 10, 0) == b"one\n"


def test_one_handle_has_the_right(mount: Mount, orders: Path) -> None:
    """The handle that writes first has the right to write, until it is closed.

    An append is accepted, and ends that right.
    """
    with opened(orders, WRITE) as first, opened(orders, WRITE) as second:
        os.write(first, b"on")
        fails(errno.EPERM, os.write, second, b"other\n")
        fails(errno.EPERM, os.open, orders, WRITE)
        os.write(first, b"e\n")
        fails(errno.EPERM, os.write, second, b"other\n")
        append(orders, b"appended\n")
        fails(errno.EPERM, os.write, first, b"two\n")
        assert "was appended to meanwhile" in mount.events().splitlines()[-1]
    assert orders.read_bytes() == b"one\nappended\n"


def test_what_began_in_vain_leaves_it_new(orders: Path) -> None:
    with opened(orders, WRITE) as fd:
        fails(errno.EMSGSIZE, write_all, fd, b"x" * (2 << 20))
    fd = os.open(batches(orders), WRITE)
    os.write(fd, b"\0" * 8)
    fails(errno.EINVAL, os.close, fd)
    fd = os.open(view(orders, ".jsonl"), WRITE)
    fails(errno.EINVAL, os.write, fd, b"{}}\n")
    os.write(fd, b"{")
    fails(errno.EINVAL, os.close, fd)
    with opened(orders, WRITE) as fd:
        write_all(fd, LINES)
    assert orders.read_bytes() == LINES


def test_new_or_emptied(own: Mount) -> None:
    """After a remount one that never held a record still is new, one that retention emptied not."""
    orders = own.topic(partitions=2)
    append(orders, b"one\n")
    do(orders, "delete-records", "0 1")
    assert orders.read_bytes() == b""
    for _ in range(2):
        fails(errno.EPERM, os.open, orders, WRITE)
        fails(errno.EPERM, os.truncate, orders, 0)
        with opened(orders.parent / "1", WRITE):
            pass
        own.restart()
    own.run('echo one > "$F"', F=orders.parent / "1")
    own.restart()
    fails(errno.EPERM, os.open, orders.parent / "1", WRITE)


def test_a_refused_creation_leaves_nothing(mount: Mount, orders: Path) -> None:
    """… a number that is not the next one is refused before anything is made."""
    topic = orders.parent
    for script in (
        'echo x > "$T/2"',
        'cp /etc/passwd "$T/7"',
        'rsync /etc/passwd "$T/1"',
        'tar -c -C /etc passwd | tar -x -C "$T"',
        'tar -c -C /etc --transform s/passwd/0/ passwd | tar -x -C "$T"',
        'tar -c -C /etc --transform s/passwd/4/ passwd | tar -x --overwrite -C "$T"',
        'install /etc/passwd "$T/0"',
        'echo x > "$T/.batches/1"',
    ):
        assert mount.sh(script, T=topic).returncode != 0
    assert os.listdir(topic) == ["0"]
    assert orders.read_bytes() == b""


def test_a_sparse_source(mount: Mount, tmp_path: Path) -> None:
    """Zeros that cp would skip: EPERM and a line, and `--sparse=never` writes them."""
    source, orders = tmp_path / "sparse", new_topic(mount, 2)
    with opened(source, WRITE | os.O_CREAT) as fd:
        os.pwrite(fd, b"one\n", 0)
        os.pwrite(fd, b"\ntwo\n", 1 << 19)
    assert mount.sh('cp --sparse=always "$S" "$F"', S=source, F=orders).returncode != 0
    assert "cp --sparse=never" in mount.events().splitlines()[-1]
    other = orders.parent / "1"
    mount.run('cp --sparse=never "$S" "$F"', S=source, F=other)
    assert other.read_bytes() == source.read_bytes()


# -- `.batches` --------------------------------------------------------------------------------


def text_of(orders: Path) -> list[bytes]:
    return [path.read_bytes() for path in (batches(orders), view(orders, ".jsonl"), orders)]


def test_a_backup_of_batches_comes_back(own: Mount) -> None:
    """`cp a/.batches/0 b/.batches/0`: offsets, epochs, producers, transactions and gaps."""
    a = own.topic("a")
    own.run('echo min.cleanable.dirty.ratio=0 >> "$T/.config"', T=a.parent)
    append(batches(a), b"".join(workload()))
    do(a, "roll", "run")
    append(view(a, ".kv"), b"key\tlast\n")
    do(a, "delete-records", "0 1")
    own.run('cp "$A" "$F"', A=batches(a), F=own.data / "kept")
    b = own.topic("b", 3)
    # The checkpoints know the partitions as they are before they hold a record.
    own.restart()
    for number in range(3):
        copy = b.parent / ".batches" / str(number)
        script = ('cp "$A" "$B"', 'rsync --inplace "$A" "$B"', 'dd if="$A" of="$B" bs=997')[number]
        own.run(f"{script} status=none" if number == 2 else script, A=batches(a), B=copy)
        own.run('cmp "$A" "$B"', A=batches(a), B=copy)
    expected = text_of(a)
    inodes = [(b.parent / str(number)).stat().st_ino for number in range(3)]
    own.kill()
    own.start()
    assert [(b.parent / str(number)).stat().st_ino for number in range(3)] == inodes
    for number in range(3):
        copy = b.parent / str(number)
        assert text_of(copy) == expected
        ours, theirs = offsets(a), offsets(copy)
        for fact in ("log_start", "log_end", "last_stable"):
            assert ours[fact] == theirs[fact], fact


def test_gaps_and_a_log_start(mount: Mount) -> None:
    """Offsets that compaction left, far apart, and epochs; a log start that is not 0."""
    orders = new_topic(mount)
    data = b""
    for offset, epoch in ((5, 0), (9, 3), (3 << 31, 3), (5 << 31, 8)):
        made = batch([b"%d" % offset] * 2)
        made[:8] = offset.to_bytes(8, "big")
        made[12:16] = epoch.to_bytes(4, "big")
        data += made
    with opened(batches(orders), WRITE) as fd:
        assert os.write(fd, data) == len(data)
    assert batches(orders).read_bytes() == data
    assert offsets(orders)["log_start"] == 5
    assert offsets(orders)["log_end"] == (5 << 31) + 2
    epochs = orders.parent / ".raw" / "0" / "leader-epoch-checkpoint"
    do(orders, "flush", "run")
    assert epochs.read_text() == f"0\n3\n0 5\n3 9\n8 {5 << 31}\n"
    append(orders, b"next\n")
    assert json.loads(view(orders, ".jsonl").read_bytes().splitlines()[-1])["offset"] == (
        (5 << 31) + 2
    )


def test_batches_that_are_refused(mount: Mount) -> None:
    """Nothing of the write that has a bad one; what came before stays."""
    good = [batch([b"%d" % number]) for number in range(3)]
    for number, each in enumerate(good):
        each[:8] = number.to_bytes(8, "big")
    broken = bytearray(good[1])
    broken[-1] ^= 1
    bad = {
        "but the previous batch ends": (errno.EINVAL, good[0]),
        "crc": (errno.EINVAL, broken),
        "no valid batch starts": (errno.EINVAL, b"line\n" * 20),
        "max.message.bytes": (errno.EMSGSIZE, batch([b"x" * (2 << 20)])),
    }
    for reason, (number, data) in bad.items():
        orders = new_topic(mount)
        with opened(batches(orders), WRITE) as fd:
            os.write(fd, good[0])
            if number == errno.EMSGSIZE:
                fails(number, os.write, fd, data[: 1 << 16])
            else:
                fails(number, os.write, fd, bytes(good[1]) + bytes(data))
            assert reason in mount.events().splitlines()[-1].lower()
        assert orders.read_bytes() == b"0\n"
        assert offsets(orders)["log_end"] == 1


def test_the_topic_s_codec_and_times_do_not_change_them(mount: Mount) -> None:
    a, b = new_topic(mount), new_topic(mount)
    append(a, LINES)
    settings = "compression.type=zstd\nmessage.timestamp.type=LogAppendTime\n"
    append(b.parent / ".config", f"{settings}message.timestamp.before.max.ms=1\n".encode())
    mount.run('cp "$A" "$B"', A=batches(a), B=batches(b))
    assert text_of(a) == text_of(b)
