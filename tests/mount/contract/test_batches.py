"""`.batches`: the record batches as stored, and appending ready ones."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import random
from pathlib import Path

import pytest

from storage import LogManager
from storage.log.append import append_batches
from storage.record.header import parse_header
from storage.record.plain import recompress
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import APPEND, append, opened
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount
from tests.storage.logs import batch
from tests.storage.producers import Producer, sparse

LIMIT = 1048588
"""max.message.bytes"""


def batches(orders: Path) -> Path:
    return orders.parent / ".batches" / orders.name


def raw(orders: Path) -> bytes:
    directory = orders.parent / ".raw" / orders.name
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def payloads(data: bytes) -> list[bytes]:
    """Batches back to back, each without its base offset and leader epoch."""
    found = []
    while data:
        size = parse_header(data).size
        found.append(data[16:size])
        data = data[size:]
    return found


def offsets(orders: Path) -> dict[str, int]:
    """`.meta/N/offsets` of a partition."""
    lines = (orders.parent / ".meta" / orders.name / "offsets").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def workload(seed: int = 1, size: int = 3 << 20) -> list[bytes]:
    """Batches of every kind and codec, of producers that may follow each other."""
    draw = random.Random(seed)
    producers = [
        Producer(number, codec=number % 5, transactional=number % 2 == 0) for number in range(1, 7)
    ]
    made = [bytes(batch([b"x" * (LIMIT - 100)]))]
    left = size - len(made[0])
    while left > 0:
        producer = draw.choice(producers)
        choice = draw.randrange(12)
        if choice == 0:
            new = bytes(batch([draw.randbytes(draw.randrange(50_000)), None, b""]))
        elif choice == 1:
            new = producer.empty(draw.randrange(1, 5))
        elif choice < 6 and producer.transactional:
            new = draw.choice([producer.commit, producer.abort])()
        else:
            values = [draw.randbytes(draw.randrange(3000)) for _ in range(draw.randrange(1, 30))]
            new = producer.batch(*values)
            if choice == 6:
                new = sparse(new, len(values) + 2)
                producer.sequence += 3
        made.append(new)
        left -= len(new)
    return [*made, *(producer.commit() for producer in producers if producer.transactional)]


@pytest.fixture(scope="module")
def seg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of batches, 3 MiB."""
    path = tmp_path_factory.mktemp("batches") / "seg.log"
    path.write_bytes(b"".join(workload()))
    return path


# -- reading -------------------------------------------------------------------------------------


def test_the_batches_as_stored(own: Mount, seg: Path) -> None:
    """`.batches` holds whole record batches as stored, to the log end, nothing filtered …"""
    orders = own.topic()
    own.run('echo internal.segment.bytes=1100000 >> "$T/.config"', T=orders.parent)
    own.run('cat "$S" >> "$B"; seq 1000 >> "$F"', S=seg, B=batches(orders), F=orders)
    assert len(list((orders.parent / ".raw" / "0").glob("*.log"))) > 2
    data = raw(orders)
    assert batches(orders).read_bytes() == data
    assert batches(orders).stat().st_size == len(data)
    own.run('cmp "$B" <(cat "$R"/*.log)', B=batches(orders), R=orders.parent / ".raw" / "0")
    half = len(data) // 2
    assert own.run('dd if="$B" bs=4093 status=none', B=batches(orders)) == data
    assert own.run('tail -c +$((H + 1)) "$B"', B=batches(orders), H=half) == data[half:]
    own.restart()
    assert batches(orders).read_bytes() == data


def test_to_the_log_end(orders: Path) -> None:
    """… to the log end, nothing filtered: an open transaction, an aborted one."""
    one, two = Producer(1, transactional=True), Producer(2, transactional=True)
    data = one.batch(b"a") + two.batch(b"b") + two.abort()
    append(batches(orders), data)
    assert payloads(batches(orders).read_bytes()) == payloads(data)
    assert orders.read_bytes() == b""
    assert (offsets(orders)["last_stable"], offsets(orders)["log_end"]) == (0, 3)


def test_a_reader_sees_it_grow(orders: Path) -> None:
    """What is appended through any view is there when `write()` has returned."""
    with open(batches(orders), "rb", buffering=0) as reader:
        assert reader.read(100) == b""
        append(orders, b"line\n")
        first = reader.read(1000)
        assert first == batches(orders).read_bytes()
        append(batches(orders), bytes(batch([b"x"])))
        assert first + reader.read(1000) == batches(orders).read_bytes()
        assert os.fstat(reader.fileno()).st_size == batches(orders).stat().st_size


def test_extended_attributes(mount: Mount, orders: Path) -> None:
    """`getfattr -n user.kafkafs.log_end`: as of the topic's own files."""
    append(batches(orders), bytes(batch([b"a", b"b"])))
    for name in os.listxattr(orders):
        assert os.getxattr(batches(orders), name) == os.getxattr(orders, name)
    assert os.getxattr(batches(orders), "user.kafkafs.log_end") == b"2"
    assert os.getxattr(batches(orders), "user.kafkafs.records") == b"2"
    assert batches(orders).stat().st_ino != orders.stat().st_ino
    assert batches(orders).stat().st_mtime_ns == orders.stat().st_mtime_ns


# -- appending -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        'dd if="$S" of="$B" bs=7919 oflag=append conv=notrunc status=none',
        'dd if="$S" of="$B" bs=1500001 oflag=append conv=notrunc status=none',
        '{ head -c 100001; cat; } < "$S" >> "$B"',
    ],
    ids=["dd 7919", "dd 1500001", "two programs"],
)
def test_wherever_writes_cut_them(mount: Mount, orders: Path, seg: Path, command: str) -> None:
    """… whole batches only (an incomplete one waits in the handle) …"""
    mount.sh(command, S=seg, B=batches(orders))
    assert payloads(batches(orders).read_bytes()) == [made[16:] for made in workload()]
    assert offsets(orders)["last_stable"] == offsets(orders)["log_end"]


def test_one_write_of_everything(orders: Path, seg: Path) -> None:
    """The kernel cuts it into pieces of 1 MiB, anywhere in a batch."""
    data = seg.read_bytes()
    with opened(batches(orders)) as fd:
        assert os.write(fd, data) == len(data)
        assert os.writev(fd, [data[:0], bytes(batch([b"x"])), bytes(batch([b"y"]))]) > 0
    assert len(payloads(batches(orders).read_bytes())) == len(workload()) + 2


def test_a_partition_is_copied_compressed_as_it_is(mount: Mount, seg: Path) -> None:
    """`cat a/.batches/0 >> b/.batches/0` copies a partition compressed as it is."""
    first, second = new_topic(mount), new_topic(mount)
    script = 'cat "$S" >> "$A"; cat "$A" >> "$B"; cmp "$A" "$B"'
    mount.run(script, S=seg, A=batches(first), B=batches(second))
    assert second.read_bytes() == first.read_bytes()
    for name in ("producers", "txnindex"):
        tables = [(path.parent / ".meta" / "0" / name).read_bytes() for path in (first, second)]
        assert tables[0] == tables[1]
        assert tables[0].count(b"\n") > 4


def test_new_offsets(mount: Mount, orders: Path) -> None:
    """… a follower's rules with new offsets …: they go on where the log is."""
    append(orders, b"one\ntwo\n")
    append(batches(orders), b"".join(bytes(batch([b"%d" % n] * 3)) for n in range(4)))
    append(orders, b"last\n")
    bases, data = [], batches(orders).read_bytes()
    while data:
        bases.append(parse_header(data).base_offset)
        data = data[parse_header(data).size :]
    assert bases == [0, 2, 5, 8, 11, 14]
    assert orders.read_bytes() == b"one\ntwo\n0\n0\n0\n1\n1\n1\n2\n2\n2\n3\n3\n3\nlast\n"


def test_what_is_there_already_is_acknowledged(mount: Mount, orders: Path) -> None:
    """… a duplicate by sequence is acknowledged and not written …"""
    one = Producer(1, codec=4)
    data = one.batch(b"a") + one.batch(b"b") + one.batch(b"c")
    append(batches(orders), data)
    before = batches(orders).stat()
    append(batches(orders), data)
    after = batches(orders).stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert orders.read_bytes() == b"a\nb\nc\n"


def test_what_does_not_follow_is_refused(mount: Mount, orders: Path) -> None:
    """… an old epoch is refused, a sequence gap too unless that producer's previous batch came
    through the same handle.
    """
    old, new = Producer(1), Producer(1, epoch=1)
    with opened(batches(orders)) as first, opened(batches(orders)) as second:
        os.write(first, old.batch(b"a"))
        old.batch(b"lost")
        third = old.batch(b"b")
        fails(errno.EINVAL, os.write, second, third)
        assert f"{orders.parent.name}/0: append refused: producer 1: sequence 2 of epoch 0" in (
            mount.events()
        )
        os.write(first, third)
        os.write(second, new.batch(b"c"))
        fails(errno.EINVAL, os.write, first, old.batch(b"d"))
        assert "epoch 0 is fenced" in mount.events()
    assert orders.read_bytes() == b"a\nb\nc\n"


def test_the_codec_is_kept_unless_compression_type_says_otherwise(
    mount: Mount, orders: Path
) -> None:
    """… codec kept unless `compression.type` says otherwise …"""

    def codecs() -> list[int]:
        data, found = batches(orders).read_bytes(), []
        while data:
            found.append(parse_header(data).codec)
            data = data[parse_header(data).size :]
        return found

    made = [recompress(batch([b"value" * 100]), codec) for codec in range(5)]
    append(batches(orders), b"".join(made))
    assert codecs() == [0, 1, 2, 3, 4]
    mount.run('echo compression.type=lz4 >> "$T/.config"', T=orders.parent)
    append(batches(orders), b"".join(made))
    mount.run('echo compression.type=uncompressed >> "$T/.config"', T=orders.parent)
    append(batches(orders), b"".join(made))
    assert codecs() == [0, 1, 2, 3, 4, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0]
    assert orders.read_bytes() == (b"value" * 100 + b"\n") * 15
    assert batches(orders).stat().st_size == len(batches(orders).read_bytes())


def test_writers_at_the_same_time(mount: Mount, orders: Path) -> None:
    """Batches stay whole, and each writer's are in its order, whatever else is written."""
    files, made = [], {}
    for number in range(1, 4):
        producer = Producer(number, codec=number)
        made[number] = [producer.batch(b"%d" % n * 400) for n in range(700)]
        files.append(mount.path.parent / f"writer{number}")
        files[-1].write_bytes(b"".join(made[number]))
    script = """
        for S in $FILES; do dd if="$S" of="$B" bs=30011 oflag=append conv=notrunc status=none & done
        for N in $(seq 300); do echo "line $N" >> "$F"; done
        wait
    """
    mount.run(script, FILES=" ".join(map(str, files)), B=batches(orders), F=orders)
    found: dict[int, list[bytes]] = {number: [] for number in (-1, 1, 2, 3)}
    data = batches(orders).read_bytes()
    while data:
        header = parse_header(data)
        found[header.producer_id].append(data[16 : header.size])
        data = data[header.size :]
    assert len(found.pop(-1)) == 300
    assert found == {number: [one[16:] for one in ones] for number, ones in made.items()}


def test_a_new_history(steered_mount: SteeredMount, steered_orders: Path) -> None:
    """One inode shows one history …: what rewrites history publishes a *new* inode under the
    name; an old inode that is still open goes on growing with new appends.
    """
    path = batches(steered_orders)
    topic = steered_orders.parent.name
    for number in range(3):
        append(path, bytes(batch([b"%d" % number])))
        steered_mount.daemon.roll(topic)
    whole = path.read_bytes()
    third = len(whole) // 3
    with open(path, "rb", buffering=0) as old:
        inode = path.stat().st_ino
        steered_mount.daemon.remove_head(topic, 1)
        assert path.stat().st_ino != inode
        assert path.read_bytes() == whole[third:]
        assert parse_header(path.read_bytes()).base_offset == 1
        append(path, bytes(batch([b"new"])))
        assert os.pread(old.fileno(), 10_000, third) == path.read_bytes()
        steered_mount.daemon.delete_retired()
        assert os.pread(old.fileno(), third, 0) == whole[:third], "the last megabyte is kept"
        assert os.pread(old.fileno(), 10_000, third) == path.read_bytes()


def test_a_batch_that_takes_long_delays_nobody_else(own: Mount) -> None:
    """A process that waits in FUSE cannot be killed: others are answered meanwhile."""
    orders = own.topic()
    own.run('echo compression.type=zstd >> "$T/.config"', T=orders.parent)
    one = recompress(batch([bytes(40 << 20)]), 4)
    with concurrent.futures.ThreadPoolExecutor() as pool, opened(batches(orders)) as fd:
        writing = pool.submit(os.write, fd, one * 3)
        answered = 0
        while not writing.done():
            (own / ".kafkafs" / "version").read_text()
            answered += 1
        assert writing.result() == 3 * len(one)
    # Without a thread of its own one at most would come before, and one behind it.
    assert answered > 10
    assert batches(orders).stat().st_size == 3 * len(one)


# -- what is not whole, and refusals -------------------------------------------------------------


def test_an_incomplete_batch_is_refused_at_flush_and_dropped_at_release(
    mount: Mount, orders: Path
) -> None:
    """… flush refuses an incomplete rest, at release it is dropped with a line in the log."""
    made = bytes(batch([b"value"]))
    fd = os.open(batches(orders), APPEND)
    os.write(fd, made + made[:-3])
    copy = os.dup(fd)
    fails(errno.EINVAL, os.close, copy)
    assert f"an incomplete batch, {len(made) - 3} of {len(made)} bytes" in mount.events()
    os.write(fd, made[-3:])
    os.close(fd)
    assert orders.read_bytes() == b"value\nvalue\n"
    part = mount.path.parent / "part"
    part.write_bytes(made * 2 + made[:40])
    refused = mount.sh('cat "$P" >> "$B"', P=part, B=batches(orders))
    assert b"Invalid argument" in refused.stderr
    assert refused.returncode != 0
    append(orders, b"line\n")
    assert orders.read_bytes() == b"value\n" * 4 + b"line\n", "never a record"
    assert f"an incomplete batch, 40 of {len(made)} bytes at the end; dropped" in mount.events()


def test_the_end_of_the_daemon_drops_it(own: Mount) -> None:
    """At orderly shutdown what is not whole is dropped; what was, is there after a kill."""
    orders = own.topic()
    made = bytes(batch([b"value"]))
    for end in (own.stop, own.kill):
        fd = os.open(batches(orders), APPEND)
        os.write(fd, made + made[:30])
        end()
        fails(errno.ENOTCONN, os.close, fd)
        own.start()
    assert orders.read_bytes() == b"value\nvalue\n"


@pytest.mark.parametrize("size", [LIMIT + 1, (1 << 31) + 11])
def test_too_large_a_batch(mount: Mount, orders: Path, size: int) -> None:
    """EMSGSIZE over max.message.bytes: as soon as its length is there, so that nobody waits."""
    head = (0).to_bytes(8) + (size - 12).to_bytes(4) + bytes(4) + b"\x02"
    made = bytes(batch([b"fits"]))
    with opened(batches(orders)) as fd:
        os.write(fd, head[:12])
        fails(errno.EMSGSIZE, os.write, fd, head[12:])
        fails(errno.EMSGSIZE, os.write, fd, made + head + b"x" * 100)
        assert batches(orders).read_bytes() == b"", "nothing of a refused write() stays"
        os.write(fd, made)
    assert orders.read_bytes() == b"fits\n"
    assert f"a batch of {size} bytes exceeds max.message.bytes" in mount.events()


def test_of_a_large_write_what_came_before_the_refusal_stays(mount: Mount, orders: Path) -> None:
    """… of a write in pieces the earlier ones stay: a short count, as POSIX has it."""
    made = [bytes(batch([b"%d" % n + b"x" * 9_000])) for n in range(300)]
    wrong = made[200][:-1] + bytes([made[200][-1] ^ 1])
    data = b"".join([*made[:200], wrong, *made[201:]])
    with opened(batches(orders)) as fd:
        done = os.write(fd, data)
        assert 0 < done < len(b"".join(made[:200])) + len(wrong)
        for _ in range(2):
            fails(errno.EINVAL, os.write, fd, data[done:])
        kept = len(payloads(batches(orders).read_bytes()))
        assert len(b"".join(made[:kept])) <= done < len(b"".join(made[: kept + 1]))
        fails(errno.EINVAL, os.write, fd, data[done + 5 :])
        os.write(fd, made[0])
    assert len(payloads(batches(orders).read_bytes())) == kept + 1
    assert "a batch's CRC is wrong" in mount.events()


@pytest.mark.parametrize("content", [b"a line\n" * 10, bytes(200), b"\xff" * 200])
def test_what_is_no_batch(mount: Mount, orders: Path, content: bytes) -> None:
    """… EINVAL with the reason in .kafkafs/log."""
    with opened(batches(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, content)
    assert "no valid batch starts here" in mount.events()
    assert batches(orders).read_bytes() == b""


def test_it_is_opened_as_the_topic_s_own_files(mount: Mount, orders: Path) -> None:
    """As with a file under `chattr +a`."""
    append(orders, b"line\n")
    for flags in (os.O_WRONLY, os.O_RDWR, APPEND | os.O_TRUNC):
        fails(errno.EPERM, os.open, batches(orders), flags)
    fails(errno.EPERM, os.truncate, batches(orders), 0)
    fails(errno.EPERM, os.unlink, batches(orders))
    fails(errno.EPERM, os.open, batches(orders).parent / "1", APPEND | os.O_CREAT)
    data = batches(orders).read_bytes()
    with opened(batches(orders), os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, bytes(batch([b"x"])))
        assert os.pread(fd, 1000, 0)[: len(data)] == data
    assert orders.read_bytes() == b"line\nx\n"


@pytest.mark.parametrize("flag", [0, os.O_SYNC, os.O_DSYNC], ids=["", "O_SYNC", "O_DSYNC"])
def test_what_makes_it_survive_the_machine(mount: Mount, orders: Path, flag: int) -> None:
    """`fsync`, O_SYNC and O_DSYNC, `flush.messages` …: as for lines."""
    mount.run('echo flush.ms=9223372036854775807 >> "$T/.config"', T=orders.parent)
    with opened(batches(orders), APPEND | flag) as fd:
        os.write(fd, bytes(batch([b"a", b"b"])))
        assert offsets(orders)["recovery_point"] == (2 if flag else 0)
        os.fsync(fd)
        assert offsets(orders)["recovery_point"] == 2
        mount.run('echo flush.messages=3 >> "$T/.config"', T=orders.parent)
        os.write(fd, bytes(batch([b"a"] * 3)))
        assert offsets(orders)["recovery_point"] == 5


def test_a_read_only_mount_shows_them(tmp_path: Path, seg: Path) -> None:
    """EROFS a read-only mount."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        append_batches(log, seg.read_bytes(), now_ns=1_700_000_000_000_000_000)
    with mounted(tmp_path, "ro") as mount:
        orders = mount / "orders" / "0"
        assert payloads(batches(orders).read_bytes()) == payloads(seg.read_bytes())
        fails(errno.EROFS, os.open, batches(orders), APPEND)
