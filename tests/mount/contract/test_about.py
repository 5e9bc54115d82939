"""`.kafkafs`: the daemon: version, config, metrics, log, topics, help."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from storage import LogManager
from tests.mount.mounting import SETTINGS, Mount, fails, mounted
from tests.storage.logs import append as append_records

Labels = tuple[tuple[str, str], ...]


def metrics(mount: Mount) -> dict[str, dict[Labels, float]]:
    """Name of a sample -> labels -> value, by prometheus_client's own parser."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families((mount / ".kafkafs/metrics").read_text()):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in values, sample
            values[labels] = sample.value
    return found


def of_partition(topic: str, partition: int = 0, **others: str) -> Labels:
    return (("partition", str(partition)), ("topic", topic), *others.items())


def rows(mount: Mount) -> dict[str, dict[str, str]]:
    """`.kafkafs/topics`, by topic."""
    text = (mount / ".kafkafs/topics").read_text()
    header, *lines = (line for line in text.splitlines() if not line.startswith("#"))
    names = header.split()
    assert all(len(line.split()) == len(names) for line in lines)
    assert len({len(line) for line in (header, *lines)}) == 1, "columns of fixed width"
    found = [dict(zip(names, line.split(), strict=True)) for line in lines]
    return {row["topic"]: row for row in found}


# -- what there is ---------------------------------------------------------------------------------


def test_sizes_in_a_listing(own: Mount) -> None:
    """`ls -l` tells sizes, of what is made for it."""
    own.topic()
    listed = own.run("ls -l .kafkafs | awk 'NR > 1 { print $9, $5 }'").decode().split()
    sizes = dict(zip(listed[::2], map(int, listed[1::2]), strict=True))
    assert sizes["topics"] == len((own / ".kafkafs/topics").read_bytes())
    assert sizes["help"] == len((own / ".kafkafs/help").read_bytes())
    assert sizes["metrics"] > 1000


# -- help ----------------------------------------------------------------------------------------


def help_lines(mount: Mount, part: str) -> list[str]:
    """The lines of a part of `help`."""
    text = (mount / ".kafkafs/help").read_text()
    return text.partition(f"{part}")[2].split("\n\n")[1].splitlines()


def test_help_fits_on_a_terminal(mount: Mount) -> None:
    lines = (mount / ".kafkafs/help").read_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 80


def test_what_help_says_can_be_typed(own: Mount, tmp_path: Path) -> None:
    """Command by command, in the order in which they stand there."""
    shown = {}
    for line in help_lines(own, "Try it") + help_lines(own, "Delete"):
        command = line.partition("  #")[0].strip()
        shown[command] = own.run(command, TMPDIR=tmp_path).decode()
    all_three = "3 apples\n1 pear\n2 figs\n"
    for name in ("orders/0", "orders/*", "orders/0@-15m"):
        assert shown[f"cat {name}"] == all_three
    assert shown["cat orders/0@1"] == shown["cat orders/0@-2"] == "1 pear\n2 figs\n"
    assert shown["cat orders/0@0..2"] == "3 apples\n1 pear\n"
    assert shown["sort orders/.snapshot/*"] == "1 pear\n2 figs\n3 apples\n"
    assert "al\t5 nuts\n" in shown["cat orders/.kv/*"]
    assert shown["cat orders/.jsonl/*"].count('"offset":') == 4
    (copied,) = tmp_path.glob("tmp.*/.snapshot/0")
    assert copied.read_text() == all_three
    assert "retention.ms=604800000\n" in (own / "orders/.config").read_text()
    assert (own / "orders/0").read_text().startswith("2 figs\n")


def test_help_calls_errors_as_programs_do(mount: Mount) -> None:
    told = [line.strip().partition("  ")[0] for line in help_lines(mount, "If a request fails")]
    known = {os.strerror(number) for number in errno.errorcode}
    assert len(told) > 5
    assert set(told) <= known


# -- config ----------------------------------------------------------------------------------------


def test_config_lists_what_is_in_force(tmp_path: Path) -> None:
    """config: `name=value` for what was set, `# name=value (where it comes from)` for the rest."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kafkafs.properties").write_text(
        "# ours\nnum.partitions = 3\nlog.retention.hours=24\n"
    )
    with mounted(tmp_path, "show_dot,umask=022") as mount:
        text = (mount / ".kafkafs" / "config").read_text()
        options, settings = text.removeprefix("# mount -o\n").split("# kafkafs.properties\n")
        assert options.splitlines()[:2] == ["show_dot=true", "umask=22"]
        assert "# isolation=read_committed (default)" in options.splitlines()
        assert "# ro=false (default)" in options.splitlines()
        assert [line for line in options.splitlines() if "uid=" in line] == [
            "# suid=false (default)"
        ]
        lines = settings.splitlines()
        assert lines[:2] == ["num.partitions=3", "log.retention.hours=24"]
        assert all(re.fullmatch(r"# [a-z0-9.]+=\S* \(.+\)", line) for line in lines[2:])
        assert "# delete.topic.enable=true (default)" in lines
        assert "# retention.ms=86400000 (log.retention.hours in kafkafs.properties)" in lines
        assert "# flush.ms=1000 (default)" in lines
        assert not [line for line in lines if line.startswith("# num.partitions=")]
        # The settings of a topic are in its own file.
        mount.topic()
        mount.run("echo flush.ms=5 >> orders/.config")
        assert (mount / ".kafkafs" / "config").read_text() == text


# -- topics ----------------------------------------------------------------------------------------


def test_topics(tmp_path: Path) -> None:
    """topics: a header line and a line per topic, in columns of fixed width."""
    (tmp_path / "data").mkdir()
    # An empty list is shown as a word, so that each row has all columns.
    (tmp_path / "data" / "kafkafs.properties").write_text("log.cleanup.policy=\n")
    with mounted(tmp_path) as mount:
        orders = mount.topic("orders", 3)
        mount.topic("a-longer-name")
        mount.run("seq 5 >> orders/0; seq 7 >> orders/2")
        mount.run("echo cleanup.policy=compact,delete >> orders/.config")
        shown = rows(mount)
        assert list(shown) == ["a-longer-name", "orders"]
        row = shown["orders"]
        logs = list(mount.data.glob("orders-*/*.log"))
        assert (row["partitions"], row["offsets"], row["segments"]) == ("3", "12", "3")
        assert int(row["bytes"]) == sum(path.stat().st_size for path in logs) > 0
        last = max((orders.parent / str(n)).stat().st_mtime_ns for n in (0, 2))
        assert int(row["last_append"]) == last // 1_000_000
        assert row["cleanup.policy"] == "compact,delete"
        recorded = (mount.data / "orders-0" / "partition.metadata").read_text().splitlines()
        assert f"topic_id: {row['id']}" in recorded
        empty = shown["a-longer-name"]
        assert (empty["offsets"], empty["bytes"], empty["last_append"]) == ("0", "0", "-1")
        assert empty["cleanup.policy"] == "none"
        awk = "awk 'NR > 1 { n += $3 } END { print n }' .kafkafs/topics"
        assert mount.run(awk) == b"12\n"
        mount.run("rmdir orders")
        assert list(rows(mount)) == ["a-longer-name"]


# -- metrics ---------------------------------------------------------------------------------------


def test_metrics_count_what_happens(own: Mount) -> None:
    """Appends, refusals, requests, flushes and events are counted from the mount on."""
    orders = own.topic()
    before = metrics(own)
    size = sum(path.stat().st_size for path in own.data.glob("orders-0/*.log"))
    own.run(
        "seq 100 >> orders/0; cat orders/0 > /dev/null;echo max.message.bytes=500 >> orders/.config"
    )
    fd = os.open(orders, os.O_WRONLY | os.O_APPEND)
    try:
        fails(errno.EMSGSIZE, os.write, fd, b"x" * 1000 + b"\n")
        os.write(fd, b"short\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    fails(errno.EPERM, os.rename, orders, own / "orders" / "5")
    fails(errno.ENOENT, os.stat, own / "orders" / "17")
    after = metrics(own)

    def risen(name: str, **labels: str) -> float:
        key = tuple(sorted(labels.items()))
        return after[name][key] - before.get(name, {}).get(key, 0)

    appended = sum(path.stat().st_size for path in own.data.glob("orders-0/*.log")) - size
    assert risen("kafkafs_appended_records_total") == 101
    assert risen("kafkafs_appended_batches_total") == 2
    assert risen("kafkafs_appended_bytes_total") == appended
    assert risen("kafkafs_refused_appends_total", reason="RecordTooLarge") == 1
    assert risen("kafkafs_requests_total", operation="write") == 4
    assert risen("kafkafs_requests_total", operation="rename") == 1
    assert risen("kafkafs_request_errors_total", operation="write", errno="EMSGSIZE") == 1
    assert risen("kafkafs_request_errors_total", operation="rename", errno="EPERM") == 1
    assert risen("kafkafs_request_errors_total", operation="lookup", errno="ENOENT") >= 1
    assert risen("kafkafs_written_bytes_total") == 292 + len("max.message.bytes=500\nshort\n")
    assert risen("kafkafs_read_bytes_total") >= 292
    assert risen("kafkafs_flush_seconds_count") >= 1
    assert risen("kafkafs_flush_seconds_sum") > 0
    assert risen("kafkafs_events_total") >= 1


def test_metrics_of_the_process_and_the_tree(mount: Mount, orders: Path) -> None:
    """Process metrics (start time, RSS, descriptors), build info, handles, inodes, view indexes."""
    from importlib.metadata import version

    with open(orders, "ab", buffering=0) as file:
        file.write(b"some\n" * 100)
        before = metrics(mount)
        with open(orders, "rb"):
            orders.stat()
            found = metrics(mount)
    assert found["kafkafs_open_handles"][()] == before["kafkafs_open_handles"][()] + 1
    assert found["kafkafs_known_inodes"][()] >= 3
    (build,) = found["kafkafs_build_info"]
    assert dict(build)["version"] == version("kafkafs")
    resident = found["process_resident_memory_bytes"][()]
    status = Path(f"/proc/{mount.pid}/status").read_text()
    shown = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert shown is not None
    assert 0.5 < resident / (int(shown[1]) * 1024) < 2
    assert found["process_open_fds"][()] > 3
    boot = re.search(r"btime (\d+)", Path("/proc/stat").read_text())
    assert boot is not None
    assert found["process_start_time_seconds"][()] > int(boot[1])
    measured = found["kafkafs_view_index_measured_bytes"]
    assert (
        measured[(("view", "values"),)]
        >= found["kafkafs_partition_size_bytes"][of_partition(orders.parent.name)]
    )
    assert found["kafkafs_recovery_clean"][()] in (0, 1)


def test_metrics_of_recovery(own: Mount) -> None:
    """The results of opening the data directory."""
    own.topic()
    own.run("seq 1000 >> orders/0")
    own.kill()
    log = next(own.data.glob("orders-0/*.log"))
    with open(log, "ab") as file:
        file.write(b"torn" * 10)
    own.start()
    found = metrics(own)
    assert found["kafkafs_recovery_clean"] == {(): 0}
    assert found["kafkafs_recovery_cuts"] == {(): 1}
    assert found["kafkafs_recovery_cut_bytes"] == {(): 40}
    assert found["kafkafs_recovery_read_bytes"][()] >= log.stat().st_size > 0
    assert found["kafkafs_recovery_seconds"][()] > 0
    own.restart()
    assert metrics(own)["kafkafs_recovery_clean"] == {(): 1}


def test_metrics_of_what_goes_in_and_out_of_a_partition(own: Mount) -> None:
    """Bytes appended and read, by view, and open files; nothing of what nobody uses."""
    own.topic("orders", 3)
    own.run("seq -w 10000 >> orders/1")
    size = sum(path.stat().st_size for path in own.data.glob("orders-1/*.log"))
    own.run("cat orders/1 > /dev/null; tail -n 10 orders/.jsonl/1 > /dev/null")
    own.run("cat orders/.raw/1/00000000000000000000.log > /dev/null")
    jsonl = (own / "orders/.jsonl/1").stat().st_size
    with (own / "orders/1").open("rb") as reader, (own / "orders/2").open("ab"):
        found = metrics(own)
        reader.read(1)
    values, raw = of_partition("orders", 1, view="values"), of_partition("orders", 1, view="raw")
    assert found["kafkafs_partition_appended_bytes_total"] == {of_partition("orders", 1): size}
    read = found["kafkafs_partition_read_bytes_total"]
    as_json = of_partition("orders", 1, view="jsonl")
    assert read == {values: 60_000, raw: size, as_json: read[as_json]}
    assert 0 < read[as_json] <= jsonl
    means = found["kafkafs_partition_record_bytes"]
    assert means == {values: 6, as_json: jsonl / 10_000, raw: size / 10_000}
    opened = {values: 1, of_partition("orders", 2, view="values"): 1}
    assert found["kafkafs_partition_open_handles"] == opened
    assert metrics(own)["kafkafs_partition_read_bytes_total"][values] > 60_000


def test_metrics_of_fsyncs_and_jobs(own: Mount) -> None:
    """How long fsync took, in classes; a compaction that runs, with its progress."""
    orders = own.topic()
    fsyncs = metrics(own)["kafkafs_fsync_seconds_count"][()]
    with orders.open("ab") as writer:
        writer.write(b"a line\n")
        writer.flush()
        os.fsync(writer.fileno())
    found = metrics(own)
    assert found["kafkafs_fsync_seconds_count"][()] == fsyncs + 1
    assert found["kafkafs_fsync_seconds_sum"][()] > 0
    for name in ("fsync", "flush"):
        classes = list(found[f"kafkafs_{name}_seconds_bucket"].values())
        assert classes == sorted(classes)
        assert classes[-1] == found[f"kafkafs_{name}_seconds_count"][()]
    assert found.get("kafkafs_jobs", {}) == {}
    slow = "log.cleaner.io.max.bytes.per.second=1000\n"
    own.stop()
    (own.data / "kafkafs.properties").write_text(SETTINGS + slow)
    own.start()
    own.run("for n in 1 2 3 4 5 6; do seq 1000 | sed 's/^/k\t/' >> orders/.kv/0; done")
    own.run("echo cleanup.policy=compact >> orders/.config; echo run > orders/.control/roll")
    own.run("echo run > orders/.control/compaction")
    job = (("job", "compaction"), ("topic", "orders"))
    while not (found := metrics(own)).get("kafkafs_job_total_bytes", {}).get(job):
        pass  # it waits for its limit between two steps
    assert 0 <= found["kafkafs_job_done_bytes"][job] <= found["kafkafs_job_total_bytes"][job]
    (labels,) = found["kafkafs_jobs"]
    assert {("job", "compaction"), ("state", "running"), ("topic", "orders")} < set(labels)
    own.run("echo cancel > orders/.control/compaction")


# -- other people's directories --------------------------------------------------------------------


@pytest.fixture
def broker_like(tmp_path: Path) -> Iterator[tuple[Mount, LogManager]]:
    """A read-only mount of a directory that another process writes."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        append_records(manager.create_topic("orders", 2).partitions[0], b"first")
        mount = Mount(tmp_path, ["ro"])
        try:
            mount.start()
            yield mount, manager
        finally:
            mount.end()


def test_a_directory_that_another_process_writes(
    broker_like: tuple[Mount, LogManager],
) -> None:
    """Topics and metrics tell what it has done by now, also of what nobody has looked at."""
    mount, manager = broker_like
    assert rows(mount)["orders"]["offsets"] == "1"
    append_records(manager.log("orders", 0), b"second", b"third")
    append_records(manager.create_topic("late", 1).partitions[0], b"x")
    shown = rows(mount)
    assert (shown["orders"]["offsets"], shown["late"]["offsets"]) == ("3", "1")
    append_records(manager.log("late", 0), b"y")
    found = metrics(mount)
    assert found["kafkafs_partition_log_end_offset"][of_partition("orders")] == 3
    assert found["kafkafs_partition_log_end_offset"][of_partition("late")] == 2
    assert found["kafkafs_appended_records_total"] == {(): 0}
    assert found["kafkafs_read_only"] == {(): 1}
    config = (mount / ".kafkafs" / "config").read_text()
    assert config.startswith("# mount -o\nro=true\n")
