"""`kafkafs compact`, as a process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, values

pytestmark = pytest.mark.programs

OLD, NEW = [b"%d old" % n for n in range(50)], [b"%d new" % n for n in range(50)]


def keyed(texts: Iterable[bytes]) -> bytearray:
    """A batch of records whose keys are the first words of their values."""
    return bytearray(
        encode(
            [Record(n, NOW_MS, 0, text.split()[0], text) for n, text in enumerate(texts)],
        )
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`orders` and `others` are compacted, and half of their sealed records may go."""
    path = tmp_path / "data"
    path.mkdir()
    with LogManager.open(str(path)) as manager:
        for name in ("orders", "others", "plain"):
            topic = manager.create_topic(name, 2)
            for log in topic.partitions.values():
                for texts in (OLD, NEW):
                    log.append(keyed(texts), now_ns=NOW_NS)
                log.roll(NOW_MS)
            if name != "plain":
                manager.change_topic_settings(name, {"cleanup.policy": "compact"})
    return path


def held(data: Path) -> dict[str, list[bytes | None]]:
    with LogManager.open(str(data)) as manager:
        faults = check(manager)
        assert faults == [], faults
        return {f"{log.topic}:{log.partition}": values(log) for log in manager.logs()}


TOLD = (
    "50 of 100 records removed: 50 superseded or deleted, 0 without a key, 0 aborted, 0 markers; "
)


def test_all_that_is_compacted(data: Path) -> None:
    done = kafkafs("compact", data)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        *("orders:0", "orders:1", "others:0", "others:1")
    ]
    assert all(TOLD in line for line in lines)
    left = held(data)
    assert left.pop("plain:0") == left.pop("plain:1") == OLD + NEW
    assert all(texts == NEW for texts in left.values())
    assert not list(data.glob("*/*.deleted"))
    again = kafkafs("compact", data)
    assert again.returncode == 0
    assert "orders:0: 0 of 50 records removed" in again.stdout


@pytest.mark.parametrize(
    ("places", "cleaned"),
    [(["orders"], {"orders:0", "orders:1"}), (["orders:1", "others:0"], {"orders:1", "others:0"})],
)
def test_what_is_named(data: Path, places: list[str], cleaned: set[str]) -> None:
    assert kafkafs("compact", data, *places).returncode == 0
    assert {name for name, texts in held(data).items() if texts == NEW} == cleaned


def test_a_dry_run_changes_nothing_and_wants_no_lock(data: Path, tmp_path: Path) -> None:
    def contents() -> dict[str, tuple[int, int]]:
        return {
            str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in data.rglob("*")
        }

    before = contents()
    done = kafkafs("compact", data, "orders:0", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"orders:0: {TOLD.replace('removed', 'would be removed')}")
    assert contents() == before
    with LogManager.open(str(data)):
        assert kafkafs("compact", data, "--dry-run").returncode == 0
        done = kafkafs("compact", data)
        assert done.returncode == 3
        assert f"in use by process {os.getpid()}" in done.stderr


def test_what_it_cannot_do(data: Path) -> None:
    for places, why in (
        (["nothing"], "there is no topic 'nothing'"),
        (["orders:2"], "topic 'orders' has no partition 2"),
        (["plain"], "the cleanup.policy of topic 'plain' does not include compact"),
    ):
        done = kafkafs("compact", data, "orders:0", *places)
        assert done.returncode == 3
        assert why in done.stderr
        assert done.stdout == ""
    assert held(data)["orders:0"] == OLD + NEW
    assert kafkafs("compact", data, "orders:x").returncode == 2
    assert kafkafs("compact", data / "nowhere").returncode == 3


@pytest.fixture
def mounted(data: Path) -> Iterator[Place]:
    (data.parent / "base").mkdir()
    place = Place(data.parent / "base")
    place.data.rmdir()
    place.data.symlink_to(data)
    # The clock would clean them as well.
    (data / "kafkafs.properties").write_text("log.cleaner.enable=false\n")
    place.mount()
    yield place
    place.end()


def test_what_is_mounted_is_cleaned_by_the_daemon(data: Path, mounted: Place) -> None:
    done = kafkafs("compact", mounted.path / "orders" / "1", mounted.path / "others")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["orders:1", "others:0", "others:1"]
    assert all(TOLD in line for line in lines), lines
    assert "records removed" in kafkafs("compact", data, "orders:0").stdout
    done = kafkafs("compact", "--json", mounted.path)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)["result"]
    assert [(each["topic"], each["records_dropped"]) for each in report["partitions"]] == [
        *(("orders", 0), ("orders", 0), ("others", 0), ("others", 0))
    ]
    for refused in ([data, "plain"], [mounted.path / "plain"]):
        done = kafkafs("compact", *refused)
        assert (done.returncode, done.stdout) == (3, "")
        assert "cleanup.policy of topic 'plain' does not include compact" in done.stderr
    mounted.umount()
    left = held(data)
    assert left.pop("plain:0") == left.pop("plain:1") == OLD + NEW
    assert all(texts == NEW for texts in left.values())


def test_a_damaged_log_of_a_mount_is_named(data: Path, mounted: Place) -> None:
    path = data / "orders-0" / f"{0:020}.log"
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"7 old")
    damaged[at] ^= 1
    path.write_bytes(damaged)
    done = kafkafs("compact", mounted.path)
    assert done.returncode == 3
    assert done.stderr.startswith("kafkafs: orders:0: ")
    assert done.stdout.count(TOLD) == 3


def test_a_damaged_log_is_named_and_the_others_are_cleaned(data: Path) -> None:
    path = data / "orders-0" / f"{0:020}.log"
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"7 old")
    damaged[at] ^= 1
    path.write_bytes(damaged)
    done = kafkafs("compact", data)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("kafkafs: orders:0: ")
    assert path.read_bytes() == damaged
    damaged[at] ^= 1
    path.write_bytes(damaged)
    left = held(data)
    assert left["orders:0"] == OLD + NEW
    assert left["orders:1"] == left["others:0"] == NEW


def test_a_partition_that_cannot_be_opened_is_named_and_no_obstacle(data: Path) -> None:
    def break_partition(name: str) -> None:
        (data / name).rename(data / "aside")
        (data / name).symlink_to("aside")

    def mend_partition(name: str) -> None:
        (data / name).unlink()
        (data / "aside").rename(data / name)

    break_partition("plain-0")
    done = kafkafs("compact", data, "others")
    assert (done.returncode, done.stderr.count("plain-0: cannot open: ")) == (0, 1)
    mend_partition("plain-0")
    break_partition("orders-1")
    for words in (["--dry-run"], []):
        done = kafkafs("compact", "--json", *words, data)
        assert (done.returncode, done.stderr.count("orders-1: cannot open: ")) == (3, 1)
        assert [problem["path"] for problem in json.loads(done.stdout)["problems"]] == ["orders-1"]
    mend_partition("orders-1")
    left = held(data)
    assert left["orders:1"] == OLD + NEW
    assert left["orders:0"] == left["others:0"] == left["others:1"] == NEW


def test_a_topic_with_unknown_settings_is_named_and_no_obstacle(data: Path) -> None:
    settings = data / "orders-0" / "kafkafs-topic.properties"
    given = settings.read_text()
    settings.write_text(given + "segment.bytes=many\n")
    for words in (["--dry-run"], []):
        done = kafkafs("compact", *words, data)
        assert (done.returncode, f"(file {settings})" in done.stderr) == (3, True)
        assert [line[:9] for line in done.stdout.splitlines()] == ["others:0:", "others:1:"]
    settings.write_text(given)
    left = held(data)
    assert left["orders:0"] == OLD + NEW
    assert left["others:0"] == NEW
