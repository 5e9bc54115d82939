"""`kafkafs handover`: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager
from storage.files import Files
from storage.paths import LOCK, LOG, PARTITION_METADATA, file_name
from storage.state import checkpoint_file
from tests import metadata_log as made
from tests.kafkafs.cli.conftest import kafkafs
from tests.metadata_log import MetadataLog
from tests.storage.directory.test_taking_over import described
from tests.storage.handed import TOPICS, clock_ms, leave_open, shown, write_broker, write_source
from tests.storage.handover.test_restore_points import NAME, copy_on, take_point
from tests.storage.old_logs import content

pytestmark = pytest.mark.programs


def set_settings(data: Path) -> None:
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        settings = {"cleanup.policy": "compact,delete", "retention.ms": "5000"}
        manager.change_topic_settings("sent", dict(settings))
        manager.change_topic_settings("plain", {"cleanup.policy": "none"})


def test_a_dry_run_and_then_the_handover(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    set_settings(data)
    there = {topic: count for topic, count in TOPICS.items() if topic != "sent"}
    write_broker(broker, there)
    before = content(broker)
    done = kafkafs("handover", data, broker, "plain", "sent", "--dry-run")
    assert done.returncode == 1
    assert (
        done.stderr
        == "kafkafs: the broker has no topic sent in this directory: create it at the broker\n"
    )
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[:2]] == [
        "# plain:0: offsets 0 to 6",
        "# plain:1: offsets 0 to 6",
    ]
    assert "# 2 partitions would be handed over" in lines
    # The output is a shell script.
    assert all(line.startswith(("# ", "kafka-topics ", "kafka-configs ")) for line in lines)
    server = "--bootstrap-server localhost:9092"
    alter = f"kafka-configs {server} --alter --entity-type topics --entity-name plain --add-config"
    (plain,) = (line for line in lines if line.startswith(alter))
    assert "cleanup.policy=[]," in plain
    (sent,) = (line for line in lines if line.startswith("kafka-topics"))
    assert f"{server} --create --topic sent --partitions 1 --replication-factor 1 --config" in sent
    assert "--config cleanup.policy=compact,delete" in sent
    assert "--config retention.ms=5000" in sent
    assert content(broker) == before
    refused = kafkafs("handover", data, broker)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.startswith(
        f"kafkafs: {broker}: the broker has no topic sent in this directory"
    )
    assert content(broker) == before
    done = kafkafs("handover", data, broker, "plain", "old")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# 3 partitions handed over\n" in done.stdout
    assert done.stdout.endswith("# now start the broker\n")
    ours, theirs = shown(data), shown(broker)
    for item in (("plain", 0), ("plain", 1), ("old", 0)):
        assert theirs[item] == ours[item]
    again = kafkafs("handover", data, broker, "plain")
    assert again.returncode == 0
    assert again.stdout.startswith(
        "# plain:0: already handed over\n# plain:1: already handed over\n"
    )


@pytest.mark.parametrize("at", [(), ("--at", NAME)])
def test_the_script_leaves_refused_topics_alone(tmp_path: Path, at: tuple[str, ...]) -> None:
    """They may be in use at the broker, whose retention could delete their records."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    set_settings(data)
    take_point(data)
    write_broker(broker, {"plain": 2, "started-late": 1, "emptied": 1, "sent": 2})
    (broker / "plain-1" / file_name(0, LOG)).write_bytes(b"live")
    metadata = str(broker / "emptied-0" / PARTITION_METADATA)
    topic_id = checkpoint_file.read_partition_metadata(Files(), metadata)
    assert topic_id is not None
    log = MetadataLog(broker)
    log.append(made.topic("emptied", topic_id))
    log.append(made.config(made.TOPIC, "emptied", "remote.storage.enable", "true"))
    done = kafkafs("handover", "--dry-run", *at, data, broker)
    assert done.returncode == 1
    for reason in (
        "plain:1 is not empty at the broker",
        "emptied is a tiered topic at the broker",
        "sent has 1 partition, but 2 at the broker",
        "the broker has no topic old",
    ):
        assert f"kafkafs: {reason}" in done.stderr
    words = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert {(word[0], topic) for word in words for topic in TOPICS if topic in word} == {
        ("kafka-configs", "started-late"),
        ("kafka-topics", "old"),
    }


def test_transactions_and_links(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    leave_open(data)
    write_broker(broker)
    for option, status in (("--dry-run", 1), ("--copy", 3)):
        done = kafkafs("handover", data, broker, option)
        assert done.returncode == status
        assert "sent:0 has an open transaction of producer 99. To abort it: --abort" in done.stderr
        assert "--entity-name sent " not in done.stdout
    done = kafkafs("handover", data, broker, "--abort", "--link")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sent:0: the transaction of producer 99 was aborted" in done.stdout
    assert "of them hard-linked" in done.stdout
    (first, *_) = sorted((data / "plain-0").glob("*.log"))
    assert first.samefile(broker / "plain-0" / first.name)


def test_a_restore_point(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    take_point(data, state="split", settings={"sent": {"cleanup.policy": "compact"}})
    copy_on(data)
    write_broker(broker)
    done = kafkafs("handover", data, broker, "--at", NAME)
    assert done.returncode == 3
    assert "the restore point is split. To hand it over: --force" in done.stderr
    done = kafkafs("handover", data, broker, "--at", NAME, "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert "plain:0: offsets 0 to 6," in done.stdout
    (sent,) = (line for line in done.stdout.splitlines() if "--entity-name sent " in line)
    assert "cleanup.policy=compact," in sent
    assert "retention.ms=-1" in sent
    for option in (["--force"], ["--at", NAME, "--abort"]):
        assert kafkafs("handover", data, broker, *option).returncode == 2


def test_a_directory_in_use(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    write_broker(broker)
    files = Files()
    fd = files.lock(str(data / LOCK))
    try:
        done = kafkafs("handover", data, broker)
    finally:
        files.unlock(fd)
    assert done.returncode == 3
    assert "the data directory is in use by process" in done.stderr


def test_settings_that_are_not_known(tmp_path: Path) -> None:
    """Of a broker's directory whose `server.properties` is not named."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    data.mkdir()
    described(data, [], None)
    write_broker(broker, {"orders": 1})
    for option in ([], ["--dry-run"]):
        done = kafkafs("handover", data, broker, "orders", *option)
        assert done.returncode == (1 if option else 3)
        assert "unknown" not in done.stdout
        assert (
            "orders: the values of cleanup.policy, retention.ms, retention.bytes are unknown: "
            in done.stderr
        )
        assert done.stderr.endswith(f"kafkafs config {data} --broker-config FILE\n")
    server = tmp_path / "server.properties"
    server.write_text("log.retention.ms=5000\n")
    assert kafkafs("config", data, "--broker-config", server).returncode == 0
    done = kafkafs("handover", data, broker, "orders", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "retention.ms=5000" in done.stdout
