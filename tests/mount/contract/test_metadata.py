"""What the log knows, as text and attributes: `.meta`, `.raw`, `.config`, xattrs."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from storage.log.log import Log
from storage.settings.config import LogConfig
from tests.log_check import check_log
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount
from tests.storage.logs import append as append_records
from tests.storage.logs import entries_of


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def meta(path: Path, name: str) -> Path:
    return path.parent / ".meta" / path.name / name


def raw(path: Path) -> Path:
    return path.parent / ".raw" / path.name


def table(path: Path) -> list[dict[str, str]]:
    """A header line and columns."""
    header, *rows = path.read_text().splitlines()
    names = header.split()
    assert all(len(row.split()) == len(names) for row in rows)
    return [dict(zip(names, row.split(), strict=True)) for row in rows]


@pytest.fixture
def orders(steered_mount: SteeredMount) -> Path:
    """Three sealed segments and an active one, the first removed."""
    orders = new_topic(steered_mount)
    for number in range(4):
        if number:
            steered_mount.daemon.roll(orders.parent.name)
        for start in range(0, 400, 10):
            append(orders, b"".join(b"%0200d\n" % n for n in range(start, start + 10)))
    return orders


def data_directory(mount: Mount, orders: Path) -> Path:
    return mount.data / f"{orders.parent.name}-{orders.name}"


# -- .meta ---------------------------------------------------------------------------------------


def test_offsets(steered_mount: SteeredMount, orders: Path) -> None:
    """.meta/0/offsets: log start, log end, last stable, high watermark, recovery point"""
    steered_mount.run('echo flush.ms=9223372036854775807 >> "$T/.config"', T=orders.parent)
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    steered_mount.run('sync "$F"; echo >> "$F"', F=orders)
    assert meta(orders, "offsets").read_text() == (
        "log_start 400\nlog_end 1601\nlast_stable 1601\nhigh_watermark 1601\nrecovery_point 1600\n"
    )


def test_segments(steered_mount: SteeredMount, orders: Path) -> None:
    """.meta/0/segments: a line per segment: bases, bytes, records, index fill, time span, state"""
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    rows = table(meta(orders, "segments"))
    assert [row["base_offset"] for row in rows] == ["0", "400", "800", "1200"]
    assert [row["next_offset"] for row in rows] == ["400", "800", "1200", "1600"]
    assert [row["state"] for row in rows] == ["being_deleted", "sealed", "sealed", "active"]
    assert [row["records"] for row in rows[1:]] == ["400", "400", "400"]
    directory = data_directory(steered_mount, orders)
    for row in rows[1:]:
        log = directory / f"{int(row['base_offset']):020d}.log"
        assert int(row["bytes"]) == log.stat().st_size
    index = directory / f"{400:020d}.index"
    time_index = directory / f"{400:020d}.timeindex"
    assert int(rows[1]["index_entries"]) == index.stat().st_size // 8 > 10
    assert int(rows[1]["timeindex_entries"]) == time_index.stat().st_size // 12
    fill = 100 * index.stat().st_size / LogConfig().segment_index_bytes
    assert rows[1]["index_fill"] == f"{fill:.1f}%"
    with LogManager.open(str(steered_mount.data), read_only=True) as manager:
        spans = [
            (str(segment.first_timestamp), str(segment.max_timestamp))
            for segment in manager.log(orders.parent.name, 0).segments
        ]
    assert [(row["first_timestamp"], row["last_timestamp"]) for row in rows[1:]] == spans


def test_index(steered_mount: SteeredMount, orders: Path) -> None:
    """.meta/0/index: every offset-index entry: offset, position"""
    expected = []
    for base in range(0, 1600, 400):
        data = (data_directory(steered_mount, orders) / f"{base:020d}.index").read_bytes()
        for offset, position in struct.iter_unpack(">ii", data):
            if offset or position:
                expected.append({"offset": str(base + offset), "position": str(position)})
    rows = table(meta(orders, "index"))
    assert len(rows) > 40
    assert rows == expected


def test_timeindex(steered_mount: SteeredMount, orders: Path) -> None:
    """.meta/0/timeindex: every time-index entry: timestamp, offset"""
    expected = []
    for base in range(0, 1600, 400):
        data = (data_directory(steered_mount, orders) / f"{base:020d}.timeindex").read_bytes()
        for timestamp, offset in struct.iter_unpack(">qi", data):
            if timestamp:
                expected.append({"timestamp": str(timestamp), "offset": str(base + offset)})
    rows = table(meta(orders, "timeindex"))
    assert len(rows) >= 4
    assert rows == expected


@pytest.mark.parametrize(
    "name", ["offsets", "segments", "index", "timeindex", "txnindex", "producers"]
)
def test_sized_exactly_at_open(orders: Path, name: str) -> None:
    """Text, one fact per line …, stable enough for awk, sized exactly at open."""
    path = meta(orders, name)
    for _ in range(3):
        text = path.read_bytes()
        assert len(text) == path.stat().st_size
        assert text.endswith(b"\n")
        append(orders, b"x" * 5000 + b"\n")
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        before = os.pread(fd, size, 0)
        append(orders, b"x" * 5000 + b"\n" + b"y" * 5000 + b"\n")
        # What is open stays as it was when it was opened.
        assert os.pread(fd, size + 10_000, 0) == before
        assert os.pread(fd, 30, 10) == before[10:40]
    finally:
        os.close(fd)
    assert path.stat().st_size == len(path.read_bytes())


def test_awk(steered_mount: SteeredMount, orders: Path) -> None:
    """… stable enough for awk …"""
    awk = 'awk \'$1 == "log_end" { print $2 }\' "$F"'
    assert steered_mount.run(awk, F=meta(orders, "offsets")) == b"1600\n"
    awk = "awk 'NR > 1 { n += $3 } END { print n }' \"$F\""
    bytes_used = sum(path.stat().st_size for path in raw(orders).glob("*.log"))
    assert steered_mount.run(awk, F=meta(orders, "segments")) == b"%d\n" % bytes_used


def test_meta_of_an_empty_partition(mount: Mount) -> None:
    """An empty partition has its header lines."""
    orders = new_topic(mount)
    assert "log_end 0\n" in meta(orders, "offsets").read_text()
    assert [row["state"] for row in table(meta(orders, "segments"))] == ["active"]
    assert table(meta(orders, "index")) == table(meta(orders, "timeindex")) == []


def test_meta_is_read_only(orders: Path) -> None:
    """.meta/0/: what the log knows, as text, read-only"""
    for name in os.listdir(meta(orders, ".")):
        fails(errno.EACCES, os.open, meta(orders, name), os.O_WRONLY)
        fails(errno.EACCES, os.open, meta(orders, name), os.O_RDWR | os.O_APPEND)
        assert meta(orders, name).stat().st_mode & 0o222 == 0


@pytest.fixture
def written_by_another(tmp_path: Path) -> Iterator[tuple[Mount, Log]]:
    """A read-only mount of a directory that another process writes: two segments, and entries."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        grow(log)
        log.roll(1)
        grow(log)
        mount = Mount(tmp_path, ["ro"])
        try:
            mount.start()
            yield mount, log
        finally:
            mount.end()


def grow(log: Log) -> None:
    for _ in range(20):
        append_records(log, *[b"x" * 100] * 20)


def check_meta(mount: Mount, log: Log) -> None:
    """What `.meta` and the attributes tell is what who writes the log knows."""
    path = mount / "orders" / "0"
    index = [
        {"offset": str(offset), "position": str(position)}
        for segment in log.segments
        for offset, position in entries_of(segment.offset_index)
    ]
    assert len(index) > 8
    assert table(meta(path, "index")) == index
    times = [
        {"timestamp": str(timestamp), "offset": str(offset)}
        for segment in log.segments
        for timestamp, offset in entries_of(segment.time_index)
    ]
    assert table(meta(path, "timeindex")) == times
    rows = table(meta(path, "segments"))
    assert [(row["base_offset"], row["next_offset"], row["bytes"]) for row in rows] == [
        (str(segment.base_offset), str(segment.next_offset), str(segment.size))
        for segment in log.segments
    ]
    assert [row["state"] for row in rows] == ["sealed"] * (len(rows) - 1) + ["active"]
    assert sum(int(row["index_entries"]) for row in rows) == len(index)
    assert sum(int(row["timeindex_entries"]) for row in rows) == len(times)
    assert sum(int(row["records"]) for row in rows) == log.log_end_offset
    assert [(row["first_timestamp"], row["last_timestamp"]) for row in rows] == [
        (str(segment.first_timestamp), str(segment.max_timestamp)) for segment in log.segments
    ]
    assert f"log_end {log.log_end_offset}\n" in meta(path, "offsets").read_text()
    shown = facts(path)
    assert (shown["log_end"], shown["records"]) == (str(log.log_end_offset),) * 2
    assert (shown["bytes"], shown["segments"]) == (str(log.size), str(len(log.segments)))
    assert shown["last_timestamp"] == str(log.active.max_timestamp)
    for name in os.listdir(meta(path, ".")):
        assert meta(path, name).stat().st_size == len(meta(path, name).read_bytes())


def test_meta_follows_the_process_that_writes(written_by_another: tuple[Mount, Log]) -> None:
    """Everything of `.meta` also with `-o ro`, beside who writes the log, as it is now."""
    mount, log = written_by_another
    check_meta(mount, log)
    grow(log)
    check_meta(mount, log)
    log.roll(1)
    grow(log)
    check_meta(mount, log)


def test_meta_of_a_directory_that_nobody_writes(
    written_by_another: tuple[Mount, Log],
) -> None:
    """… and of one that lies still."""
    mount, log = written_by_another
    mount.stop()
    segments = log.segments
    assert len(segments) == 2
    rows_before = [(segment.first_timestamp, segment.max_timestamp) for segment in segments]
    log.close()
    mount.start()
    path = mount / "orders" / "0"
    rows = table(meta(path, "segments"))
    assert [row["records"] for row in rows] == ["400", "400"]
    assert [(row["first_timestamp"], row["last_timestamp"]) for row in rows] == [
        (str(first), str(last)) for first, last in rows_before
    ]
    for name, kind, layout in (("index", "index", ">ii"), ("timeindex", "timeindex", ">qi")):
        stored = sum(
            file.stat().st_size // struct.calcsize(layout)
            for file in (mount.data / "orders-0").glob(f"*.{kind}")
        )
        assert len(table(meta(path, name))) == stored > 1


# -- .raw ----------------------------------------------------------------------------------------


def test_raw_is_the_segment_files_byte_for_byte(steered_mount: SteeredMount, orders: Path) -> None:
    """.raw/0/: the segment files themselves, byte for byte, read-only: .log .index .timeindex …
    .snapshot, leader-epoch-checkpoint, partition.metadata
    """
    on_disk = data_directory(steered_mount, orders)
    shown = {path.name for path in raw(orders).iterdir()}
    there = {path.name for path in on_disk.iterdir()}
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = {"leader-epoch-checkpoint", "partition.metadata"}
    assert shown == {name for name in there if name.endswith(suffixes)} | files
    assert len([name for name in shown if name.endswith(".log")]) == 4
    for name in shown:
        assert (raw(orders) / name).read_bytes() == (on_disk / name).read_bytes(), name
        assert (raw(orders) / name).stat().st_size == (on_disk / name).stat().st_size
        assert (raw(orders) / name).stat().st_blocks == (on_disk / name).stat().st_blocks


def test_raw_is_read_only(orders: Path) -> None:
    """… read-only"""
    path = raw(orders) / f"{0:020d}.log"
    fails(errno.EROFS, os.open, path, os.O_WRONLY)
    fails(errno.EROFS, os.open, path, os.O_RDWR | os.O_APPEND)
    fails(errno.EPERM, os.truncate, path, 0)
    fails(errno.EPERM, os.unlink, path)
    assert path.stat().st_mode & 0o222 == 0


def test_raw_shows_nothing_else(steered_mount: SteeredMount, orders: Path) -> None:
    """Nor what is not part of Kafka's format, nor what waits for deletion."""
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    assert (data_directory(steered_mount, orders) / "kafkafs.history").exists()
    fails(errno.ENOENT, os.stat, raw(orders) / "kafkafs.history")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{0:020d}.log")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{0:020d}.log.deleted")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{400:020d}.lines")
    assert f"{400:020d}.log" in os.listdir(raw(orders))


def test_a_segment_that_is_deleted_while_it_is_read(
    steered_mount: SteeredMount, orders: Path
) -> None:
    """An open segment file can be read to its end, as any file that is unlinked."""
    path = raw(orders) / f"{0:020d}.log"
    content = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    try:
        steered_mount.daemon.remove_head(orders.parent.name, 1)
        assert os.pread(fd, len(content), 0) == content
        steered_mount.daemon.delete_retired()
        assert os.pread(fd, len(content), 0) == content
    finally:
        os.close(fd)


def test_cp_of_raw_is_a_log(steered_mount: SteeredMount, orders: Path, tmp_path: Path) -> None:
    """`.raw` is a way to take a partition elsewhere: what was copied opens as a log."""
    steered_mount.run('mkdir "$D/copy-0"; cp "$R"/* "$D/copy-0"', D=tmp_path, R=raw(orders))
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("copy", 0)
        assert log.log_end_offset == 1600
        assert sum(len(record.value or b"") + 1 for record in log.records()) == (
            orders.stat().st_size
        )
        assert check_log(log) == []


# -- .config -------------------------------------------------------------------------------------


def config(orders: Path) -> Path:
    return orders.parent / ".config"


def test_config_lists_all_settings(tmp_path: Path) -> None:
    """`.config` lists `name=value` for what is set on the topic and then
    `# name=value (where it comes from)` for the rest …
    """
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kafkafs.properties").write_text("log.retention.hours=24\n")
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        before = config(orders).read_text().splitlines()
        assert all(line.startswith("# ") for line in before)
        assert "# segment.bytes=1073741824 (default)" in before
        assert any(
            line.startswith("# retention.ms=86400000 (") and "log.retention.hours" in line
            for line in before
        )
        mount.run("echo segment.ms=5000 >> orders/.config; echo flush.ms=10 >> orders/.config")
        after = config(orders).read_text().splitlines()
        assert sorted(after[:2]) == ["flush.ms=10", "segment.ms=5000"]
        assert set(after[2:]) == {
            line for line in before if not line.startswith(("# flush.ms=", "# segment.ms="))
        }
        assert config(orders).stat().st_size == len(config(orders).read_bytes())


def test_config_sets_and_goes_back(own: Mount) -> None:
    """… a line `name=value` appended sets, `name=` goes back to the default …"""
    orders = own.topic()
    own.run("echo max.message.bytes=1000 >> orders/.config")
    with open(orders, "ab", buffering=0) as file:
        fails(errno.EMSGSIZE, file.write, b"x" * 2000 + b"\n")
    own.restart()
    assert config(orders).read_text().startswith("max.message.bytes=1000\n")
    with open(orders, "ab", buffering=0) as file:
        fails(errno.EMSGSIZE, file.write, b"x" * 2000 + b"\n")
        own.run("echo max.message.bytes= >> orders/.config")
        file.write(b"x" * 2000 + b"\n")
    assert "# max.message.bytes=1048588 (default)\n" in config(orders).read_text()


def test_config_ignores_comments_so_that_it_can_be_copied(mount: Mount) -> None:
    """… `#` lines are ignored, so that `cat a/.config >> b/.config` copies."""
    first, second = new_topic(mount), new_topic(mount)
    mount.run(
        'echo retention.ms=77 >> "$F"; printf "cleanup.policy=compact\n" > "$F"', F=config(first)
    )
    mount.run('cat "$A" >> "$B"', A=config(first), B=config(second))
    assert config(second).read_text() == config(first).read_text()
    assert "retention.ms=77\n" in config(second).read_text()
    assert "cleanup.policy=compact\n" in config(second).read_text()


@pytest.mark.parametrize(
    "line", ["no.such.setting=1", "retention.ms=soon", "retention.ms", "=1", "segment.bytes=1"]
)
def test_a_wrong_line_is_einval_and_changes_nothing(mount: Mount, line: str) -> None:
    """A wrong command is EINVAL and changes nothing …, inside the `write()` that carries its
    newline, which returns the errno. `>` and `>>` both do.
    """
    orders = new_topic(mount)
    before = config(orders).read_text()
    events = mount.events()
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
        fd = os.open(config(orders), flags)
        try:
            fails(errno.EINVAL, os.write, fd, f"segment.ms=1000\n{line}\n".encode())
        finally:
            os.close(fd)
        assert config(orders).read_text() == before
    assert orders.parent.name in mount.events().removeprefix(events)
    assert mount.sh('echo "$L" >> "$F"', L=line, F=config(orders)).returncode != 0


def test_a_line_acts_inside_its_write(mount: Mount, orders_here: Path) -> None:
    """Control files take a line and act inside the `write()` that carries its newline …"""
    fd = os.open(config(orders_here), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b"retention.ms=1")
        assert "# retention.ms=-1" in config(orders_here).read_text()
        os.write(fd, b"234\n# a comment\n\nsegment.ms=99")
        assert config(orders_here).read_text().startswith("retention.ms=1234\n")
        assert "# segment.ms=" in config(orders_here).read_text()
    finally:
        os.close(fd)
    # The release comes by itself after close(): a change of the tree comes after it.
    orders_here.parent.chmod(0o755)
    assert "segment.ms=99\n" in config(orders_here).read_text()


@pytest.fixture
def orders_here(mount: Mount) -> Path:
    return new_topic(mount)


# -- extended attributes -------------------------------------------------------------------------


def facts(path: Path) -> dict[str, str]:
    return {
        name.removeprefix("user.kafkafs."): os.getxattr(path, name).decode()
        for name in os.listxattr(path)
    }


def test_extended_attributes(steered_mount: SteeredMount, orders: Path) -> None:
    """Extended attributes give the scalar facts without parsing: … (log_start, log_end, records,
    bytes, segments, first_timestamp, last_timestamp, generation).
    """
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    shown = facts(orders)
    generation = shown.pop("generation")
    rows = table(meta(orders, "segments"))[1:]
    assert shown == {
        "log_start": "400",
        "log_end": "1600",
        "last_stable": "1600",
        "records": "1200",
        "bytes": str(sum(int(row["bytes"]) for row in rows)),
        "segments": "3",
        "first_timestamp": rows[0]["first_timestamp"],
        "last_timestamp": rows[-1]["last_timestamp"],
    }
    append(orders, b"x\n")
    assert facts(orders)["log_end"] == "1601"
    assert facts(orders)["records"] == "1201"
    assert facts(orders)["generation"] == generation, "appending makes no new one"
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    assert facts(orders)["generation"] != generation
    assert facts(orders)["records"] == "801"


def test_extended_attributes_of_an_empty_partition(orders_here: Path) -> None:
    """… of a partition without records: no timestamps."""
    shown = facts(orders_here)
    assert (shown["log_start"], shown["log_end"], shown["records"]) == ("0", "0", "0")
    assert (shown["first_timestamp"], shown["last_timestamp"]) == ("-1", "-1")
    assert (shown["bytes"], shown["segments"]) == ("0", "1")


def test_timestamps_are_the_records(tmp_path: Path) -> None:
    """first_timestamp, last_timestamp: of records, in milliseconds."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        for timestamp_ms in (1_700_000_000_000, 1_700_000_000_500, 1_700_000_001_000):
            append_records(log, b"x", timestamp_ms=timestamp_ms)
    with mounted(tmp_path) as mount:
        shown = facts(mount / "orders" / "0")
        assert shown["first_timestamp"] == "1700000000000"
        assert shown["last_timestamp"] == "1700000001000"


def test_other_attributes(orders_here: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    fails(errno.ENODATA, os.getxattr, orders_here, "user.kafkafs.nothing")
    fails(errno.ENODATA, os.getxattr, orders_here, "user.other")
    fails(errno.ENODATA, os.getxattr, orders_here.parent, "user.kafkafs.log_end")
    fails(errno.EOPNOTSUPP, os.setxattr, orders_here, "user.kafkafs.log_end", b"1")
    fails(errno.EOPNOTSUPP, os.setxattr, orders_here, "user.other", b"1")
    fails(errno.EOPNOTSUPP, os.removexattr, orders_here, "user.kafkafs.log_end")
    assert os.listxattr(orders_here.parent) == []


def test_attributes_in_every_view(steered_mount: SteeredMount, orders: Path) -> None:
    """They are the partition's, whatever file of it is asked: but the view's own generation."""
    topic = orders.parent
    of_values = facts(orders)
    for view in (".kv", ".jsonl", ".batches"):
        shown = facts(topic / view / "0")
        assert shown == of_values, view
