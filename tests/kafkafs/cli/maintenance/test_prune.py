"""`kafkafs prune` on a directory that is not mounted, and on one that is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kafkafs.quantities import local_time
from storage import LogManager
from storage.directory.retain import retain
from storage.files import Files
from storage.state import point_file
from storage.state.point_file import Point, Range
from storage.task import Task
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.log_check import check_log
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.logs import append, values, write_settings

pytestmark = pytest.mark.programs

DAY_MS = 86_400_000


def made(place: Place, topic: str = "orders", **settings: str) -> int:
    """Two partitions of four segments, each a day older than the next; the time of the last one.

    A daemon deletes nothing of its own accord.
    """
    now_ms = time.time_ns() // 1_000_000
    write_settings(place.data, log_initial_task_delay_ms=DAY_MS)
    with LogManager.open(str(place.data)) as manager:
        created = manager.create_topic(topic, 2)
        values = {name.replace("_", "."): value for name, value in settings.items()}
        manager.change_topic_settings(topic, dict(values))
        for log in created.partitions.values():
            for age in (3, 2, 1, 0):
                append(log, b"%d days" % age, b"old", timestamp_ms=now_ms - age * DAY_MS)
                if age:
                    log.roll(now_ms)
    return now_ms


def frees(now_ms: int) -> list[str]:
    """The lines about the two segments that a day and a half of retention leaves of `made`."""
    return [
        f"orders:{partition}: 168B are in 2 segments; retention.ms={DAY_MS * 3 // 2} frees 84B at "
        f"{local_time(now_ms + DAY_MS // 2 + 1)}"
        for partition in (0, 1)
    ]


def left(place: Place, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    with LogManager.open(str(place.data)) as manager:
        log = manager.log(topic, partition)
        assert check_log(log) == []
        return values(log)[::2]


def files(place: Place, directory: str) -> list[str]:
    return sorted(os.listdir(place.data / directory))


def test_what_is_too_old_is_gone_when_it_ends(place: Place) -> None:
    now_ms = made(place, retention_ms=str(DAY_MS * 3 // 2))
    size = (place.data / "orders-0" / f"{0:020}.log").stat().st_size * 2
    done = kafkafs("prune", "--bytes", place.data)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"orders:0: deleted 2 segments ({size} bytes, 4 records); the log now starts at offset 4",
        f"orders:1: deleted 2 segments ({size} bytes, 4 records); the log now starts at offset 4",
        *frees(now_ms),
        f"deleted 4 segments ({2 * size} bytes, 8 records)",
    ]
    assert {name.split(".")[0] for name in files(place, "orders-0") if name[0] == "0"} == {
        f"{4:020}",
        f"{6:020}",
        f"{8:020}",
    }
    assert not [name for name in files(place, "orders-0") if name.endswith(".deleted")]
    assert left(place) == [b"1 days", b"0 days"]
    done = kafkafs("prune", place.data)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [*frees(now_ms), "deleted 0 segments (0B, 0 records)"],
    )


def test_a_dry_run_says_what_would_go_and_why(place: Place) -> None:
    made(place, retention_ms="-1", retention_bytes="1")

    def state() -> dict[Path, tuple[int, int, int]]:
        stats = {path: path.stat() for path in place.data.rglob("*")}
        return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in stats.items()}

    before = state()
    done = kafkafs("prune", place.data, "orders:1", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    *lines, frees, whole = done.stdout.splitlines()
    assert frees == "orders:1: 336B are in 4 segments; retention.bytes=1 frees 252B now"
    assert [line.split()[:2] for line in lines] == [["orders:1", str(base)] for base in (0, 2, 4)]
    assert all(line.endswith("bytes remain without it, retention.bytes=1") for line in lines)
    assert whole.startswith("would delete 3 segments (")
    assert whole.endswith("B, 6 records)")
    assert state() == before


def test_a_dry_run_leaves_out_what_a_named_restore_point_keeps(place: Place) -> None:
    """`kafkafs mirror` is the only one that deletes there, and its run keeps these records, too."""
    made(place, retention_bytes="1")
    point = Point(1000, "C", ids={"orders": "-"}, partitions={("orders", 1): Range(3, 8)})
    path = str(place.data)
    point_file.keep(Files(), path, point_file.write(Files(), path, point), "kept")
    make_mirror(place.data, {"orders": "-"})
    done = kafkafs("prune", place.data, "orders:1", "--dry-run")
    first, frees, whole = done.stdout.splitlines()
    assert first.split()[:2] == ["orders:1", "0"]
    assert frees == "orders:1: 336B are in 4 segments; retention.bytes=1 frees 84B now"
    assert whole == "would delete 1 segment (84B, 2 records)"
    with LogManager.open(path, mirrors=True) as manager:
        done_now = retain(manager, [manager.log("orders", 1)], Task())
    assert (done_now.segments, done_now.size, done_now.offsets) == (1, 84, 2)


def test_only_the_partitions_that_are_named(place: Place) -> None:
    for topic in ("a", "b"):
        made(place, topic, retention_ms=str(DAY_MS // 2))
    assert kafkafs("prune", place.data, "a:1", "b").returncode == 0
    assert len(left(place, "a", 0)) == 4
    for topic, partition in (("a", 1), ("b", 0), ("b", 1)):
        assert left(place, topic, partition) == [b"0 days"]
    for wrong in ("c", "a:2", "a:x"):
        done = kafkafs("prune", place.data, wrong)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("given", ["data", "mnt", "mnt/orders"])
def test_what_is_mounted_is_done_by_the_daemon(place: Place, given: str) -> None:
    now_ms = made(place, retention_ms=str(DAY_MS * 3 // 2))
    size = (place.data / "orders-0" / f"{0:020}.log").stat().st_size * 2
    place.mount()
    try:
        done = kafkafs("prune", "--dry-run", place.data.parent / given)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 7
        done = kafkafs("prune", "--bytes", place.data.parent / given)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            f"orders:0: deleted 2 segments ({size} bytes, 4 records); "
            "the log now starts at offset 4",
            f"orders:1: deleted 2 segments ({size} bytes, 4 records); "
            "the log now starts at offset 4",
            *frees(now_ms),
            f"deleted 4 segments ({2 * size} bytes, 8 records)",
        ]
        assert (place.path / "orders" / "1").read_text().splitlines()[::2] == ["1 days", "0 days"]
    finally:
        place.umount()
    assert left(place) == left(place, partition=1) == [b"1 days", b"0 days"]


def test_one_partition_of_what_is_mounted(place: Place) -> None:
    made(place, retention_ms=str(DAY_MS // 2))
    place.mount()
    done = kafkafs("prune", "--json", place.path / "orders" / "1")
    place.umount()
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)["result"]
    assert (report["dry_run"], report["segments"], report["records"]) == (False, 3, 6)
    (line,) = report["partitions"]
    assert (line["topic"], line["partition"], line["log_start"]) == ("orders", 1, 6)
    assert (len(left(place)), len(left(place, partition=1))) == (4, 1)


def test_what_the_daemon_does_not_know_keeps_no_other_from_its_turn(place: Place) -> None:
    made(place, retention_ms=str(DAY_MS // 2))
    place.mount()
    (place.data / "ghost-0").mkdir()
    done = kafkafs("prune", place.path)
    (place.data / "ghost-0").rmdir()
    place.umount()
    assert done.returncode == 3
    assert done.stderr == "kafkafs: ghost:0: No such file or directory\n"
    assert done.stdout.splitlines()[-1].startswith("deleted 6 segments (")
    assert left(place) == [b"0 days"]


def test_a_job_that_fails_in_the_daemon(place: Place) -> None:
    made(place, retention_ms=str(DAY_MS // 2))
    place.mount()
    log = place.data / "orders-0" / f"{0:020}.log"
    log.unlink()
    done = kafkafs("compact", place.path / "orders")
    assert done.returncode == 3
    assert "does not include compact" in done.stderr
    kafkafs("config", place.path / "orders", "cleanup.policy=compact")
    done = kafkafs("compact", "--json", place.path / "orders")
    place.umount()
    assert done.returncode == 3
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert done.stderr == f"kafkafs: {problem['message']}\n"
    assert problem["message"].startswith("orders:0: ")
    assert [each["partition"] for each in found["result"]["partitions"]] == [1]


def test_a_broken_policy_is_said_and_the_others_have_their_turn(
    place: Place, tmp_path: Path
) -> None:
    made(place, "a", retention_ms=str(DAY_MS // 2))
    made(place, "b", retention_ms=str(DAY_MS // 2))
    (tmp_path / "faulty.py").write_text("def faulty(argument):\n    return lambda *_: argument\n")
    information = tmp_path / "faulty-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\n")
    (information / "entry_points.txt").write_text("[kafkafs.retention]\nfaulty = faulty:faulty\n")
    settings = place.data / "a-0" / "kafkafs-topic.properties"
    settings.write_text(settings.read_text() + "kafkafs.retention.policy=faulty:x\n")
    done = kafkafs("prune", place.data)
    assert done.returncode == 3
    said = done.stderr.splitlines()[-1]
    assert said.startswith("kafkafs: unknown retention policy 'faulty'; available: kafka, ")
    assert said.endswith(f" (file {settings}, topic a)")
    assert done.stdout.splitlines()[0].startswith("b:0: deleted 3 segments")
    broken = settings.read_text()
    settings.unlink()
    made(place, "c", retention_ms=str(DAY_MS // 2))
    settings.write_text(broken)
    done = kafkafs("prune", place.data, python_path=tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"kafkafs: a-{partition}: retention policy faulty:x failed, so it deletes nothing: "
        "ValueError: not "
        "enough values to unpack (expected 2, got 1)"
        for partition in (0, 1)
    ]
    assert done.stdout.splitlines()[0].startswith("c:0: deleted 3 segments")
    settings.unlink()
    assert [len(left(place, topic)) for topic in "abc"] == [4, 1, 1]


def test_a_partition_that_cannot_be_opened_is_named_and_no_obstacle(place: Place) -> None:
    made(place, retention_ms=str(DAY_MS // 2))
    (place.data / "orders-1").rename(place.data / "aside")
    (place.data / "orders-1").symlink_to("aside")
    for words in (["--dry-run"], []):
        done = kafkafs("prune", "--json", *words, place.data)
        assert (done.returncode, done.stderr.count("orders-1: cannot open: ")) == (3, 1)
        found = json.loads(done.stdout)
        assert [problem["path"] for problem in found["problems"]] == ["orders-1"]
        assert found["result"]["segments"] == 3
    assert kafkafs("prune", place.data, "orders:0").returncode == 0
    done = kafkafs("prune", place.data, "orders:1")
    assert (done.returncode, done.stdout) == (3, "")
    (place.data / "orders-1").unlink()
    (place.data / "aside").rename(place.data / "orders-1")
    assert [len(left(place, partition=number)) for number in (0, 1)] == [1, 4]


def test_all_is_in_the_newest_segment(place: Place) -> None:
    now_ms = time.time_ns() // 1_000_000
    with LogManager.open(str(place.data)) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        append(log, b"x" * 100_000, timestamp_ms=now_ms)
    for settings, said in (
        ([], "retention.bytes and retention.ms are not set: nothing is freed"),
        (["retention.bytes=9"], "retention.bytes=9 frees nothing"),
        (
            ["retention.ms=1h"],
            "retention.bytes=9 frees nothing; retention.ms=3600000 frees 97.7KiB at "
            f"{local_time(now_ms + 3_600_001)}",
        ),
    ):
        if settings:
            assert kafkafs("config", place.data, "orders", *settings).returncode == 0
        for words in (["--dry-run"], []):
            done = kafkafs("prune", *words, place.data)
            assert done.stdout.splitlines()[0] == (
                f"orders:0: all 97.7KiB are in the newest segment; {said}"
            )
    done = kafkafs("prune", "--json", place.data)
    (frees,) = json.loads(done.stdout)["result"]["frees"]
    assert (frees["topic"], frees["partition"]) == ("orders", 0)
    assert frees["frees"].endswith(said)
