"""A topic's settings are in a file in the directory of its partition 0, which a broker ignores.

With this file, the broker loads the partition after a clean stop and after a kill, reports the
sizes of its directories, appends to the partition, rolls and deletes it. DumpLogSegments reads the
logs in the same directory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage import LogManager
from storage.settings.setting_files import TOPIC_FILE
from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, Sender, admin, consume, create_topic
from tests.interop.kafka_tools import batches, dump_log_segments, run_tool
from tests.interop.workload import mixed
from tests.waits import until

LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
OWNER = (1000, 100, 0o750)
CONTROLLER = ("ControllerApis", "QuorumController", "EventPerformanceMonitor")


def is_of_the_logs(line: str) -> bool:
    """Return whether a broker reports an error. Errors of its controller do not count: it gets late
    requests of a killed broker, and on a slow machine it complains about the time that it took.
    """
    is_controllers = any(name in line for name in CONTROLLER)
    return TOPIC_FILE in line or ("ERROR" in line and not is_controllers)


@pytest.mark.soak
def test_a_broker_passes_over_it(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", log_segment_delete_delay_ms=100)
    broker.start()
    create_topic(broker, "t", 2, segment_ms=100)
    sender = Sender(broker)
    sender.send("t", mixed(20)).flush()
    broker.stop()
    with LogManager.open(str(broker.data)) as manager:
        manager.change_topic_settings("t", {"retention.ms": "1"})
        manager.settings.set_owner("t", None, *OWNER)
    file = broker.partition("t") / TOPIC_FILE
    content = file.read_bytes()
    (broker.data / ".kafka_cleanshutdown").touch()

    def load() -> None:
        broker.start()
        sender.send("t", mixed(20)).flush()
        assert not [line for line in broker.server.lines if is_of_the_logs(line)]
        told = run_tool(LOG_DIRS, "--bootstrap-server", broker.address, "--describe")
        found = json.loads(next(line for line in told.stdout.splitlines() if line[:1] == "{"))
        (directory,) = (each for node in found["brokers"] for each in node["logDirs"])
        assert directory["error"] is None
        sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
        assert sizes["t-0"] == sum(path.stat().st_size for path in file.parent.glob("*.log"))

    load()
    broker.kill()
    assert file.read_bytes() == content
    printed, errors = dump_log_segments(file.parent.glob("*.log"))
    assert errors == ""
    with LogManager.open(str(broker.data), read_only=True) as reader:
        log = reader.log("t", 0)
        assert reader.settings.log_config("t").retention_ms == 1
        assert reader.settings.get_owner("t", None) == OWNER
        assert sum(count for _, _, count in batches(printed)) == log.log_end_offset

    try:
        load()
        assert file.read_bytes() == content
        assert len(consume(broker, "t")) == log.log_end_offset + 20
        client = admin(broker)
        client.delete_topics(["t"])["t"].result(SECONDS)
        until(lambda: not list(broker.data.glob("t-*")))
    finally:
        broker.stop()
