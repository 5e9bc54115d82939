"""`kafkafs config`: settings of a topic without a mount."""

from __future__ import annotations

import json

import pytest

from storage import LogManager
from storage.settings.config import TOPIC_SETTINGS
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.storage.logs import write_settings

pytestmark = pytest.mark.programs


def made(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("orders", 1)


def config(place: Place, *arguments: str) -> list[str]:
    done = kafkafs("config", place.data, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_each_value_and_where_it_comes_from(place: Place) -> None:
    write_settings(place.data, log_retention_hours=2, log_cleaner_backoff_ms=5)
    made(place)
    assert config(place, "orders", "segment.ms=60000", "kafkafs.retention.policy=mtime:7") == []
    lines = config(place, "orders")
    assert lines[:2] == ["kafkafs.retention.policy=mtime:7", "segment.ms=60000"]
    assert "# retention.ms=7200000 (log.retention.hours in kafkafs.properties)" in lines
    assert "# retention.bytes=-1 (default)" in lines
    assert len(lines) == len(TOPIC_SETTINGS) - 1, "all but internal.segment.bytes"
    assert config(place, "orders", "segment.ms=", "cleanup.policy=compact,delete") == []
    lines = config(place, "orders")
    assert "# segment.ms=604800000 (default)" in lines
    assert "cleanup.policy=compact,delete" in lines


def test_the_defaults(place: Place) -> None:
    write_settings(place.data, log_retention_hours=2)
    lines = config(place)
    assert lines[0] == "log.retention.hours=2"
    assert "# log.retention.check.interval.ms=300000 (default)" in lines
    assert "# retention.ms=7200000 (log.retention.hours in kafkafs.properties)" in lines


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["retention.ms=x"], "retention.ms=x is not a whole number from -1 to 9223372036854775807"),
        (["max.message.bytes=100MiB"], "exceeds the memory limit for user data, 67108864 bytes"),
        (["retention.ms=5", "no.such=1"], "there is no setting 'no.such'"),
        (["retentionms=5"], "there is no setting 'retentionms': did you mean 'retention.ms'?"),
        (["kafkafs.retention.policy=none"], "unknown retention policy 'none'; available: kafka, "),
        (["max.compaction.lag.ms=1", "min.compaction.lag.ms=2"], "is above max.compaction.lag.ms"),
    ],
)
def test_all_changes_or_none(place: Place, changes: list[str], reason: str) -> None:
    made(place)
    before = config(place, "orders")
    done = kafkafs("config", place.data, "orders", *changes)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("kafkafs: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert config(place, "orders") == before


def test_what_is_no_change(place: Place) -> None:
    made(place)
    for wrong in ("retention.ms", "=5"):
        done = kafkafs("config", place.data, "orders", wrong)
        assert done.returncode == 2
        assert f"{wrong!r} is not NAME=VALUE" in done.stderr


@pytest.mark.parametrize("given", ["data orders", "mnt orders", "mnt/orders"])
def test_what_is_mounted_is_changed_by_the_daemon(place: Place, given: str) -> None:
    made(place)
    place.mount()
    first, *topic = given.split()
    words = [str(place.data.parent / first), *topic]
    done = kafkafs("config", *words, "segment.ms=7d", "retention.ms=5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = (place.path / "orders" / ".config").read_text().splitlines()
    assert shown[:2] == ["retention.ms=5", "segment.ms=604800000"]
    assert kafkafs("config", *words).stdout.splitlines() == shown
    done = kafkafs("config", *words, "retention.ms=6", "segment.ms=x")
    assert (done.returncode, done.stdout) == (3, "")
    assert "segment.ms=x is not a whole number" in done.stderr
    assert kafkafs("config", *words, "segment.ms=").returncode == 0
    assert (place.path / "orders" / ".config").read_text().startswith("retention.ms=5\n# ")
    place.umount()


def test_through_a_read_only_mount_nothing_is_set(place: Place) -> None:
    made(place)
    place.mount("-o", "ro")
    done = kafkafs("config", place.path / "orders", "segment.ms=5")
    assert (done.returncode, done.stderr) == (
        3,
        f"kafkafs: {place.path}: mounted read-only. Try: kafkafs config {place.data} orders\n",
    )
    assert kafkafs("config", place.path / "orders").stdout.startswith("# ")
    place.umount()


def test_json(place: Place) -> None:
    made(place)
    config(place, "orders", "segment.ms=5")
    found = json.loads(kafkafs("config", "--json", place.data, "orders").stdout)["result"]
    assert found[0] == {"name": "segment.ms", "value": "5", "source": "topic"}
    assert {"name": "retention.bytes", "value": "-1", "source": "default"} in found
    assert len(found) == len(TOPIC_SETTINGS) - 1
    found = json.loads(kafkafs("config", "--json", place.data).stdout)["result"]
    assert {"name": "retention.bytes", "value": "-1", "source": "default"} in found


def test_settings_without_a_topic(place: Place) -> None:
    made(place)
    for words in (["segment.ms=5"], ["orders:0", "segment.ms=5"]):
        done = kafkafs("config", place.data, *words)
        assert (done.returncode, done.stdout) == (2, "")


def test_the_directory_stays_cleanly_closed(place: Place) -> None:
    made(place)
    assert place.was_closed_cleanly()
    config(place, "orders", "segment.ms=5")
    assert place.was_closed_cleanly()


def test_a_directory_that_another_process_has_open_is_left_as_it_is(place: Place) -> None:
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("orders", 1)
        done = kafkafs("config", place.data, "orders", "retention.ms=1")
        assert done.returncode == 3
        assert "the data directory is in use by process" in done.stderr
    done = kafkafs("config", place.data, "orders", "retention.ms=1")
    assert done.returncode == 0
