"""A broker with records, and the programs that print them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from latency import KAFKAFS

from storage import Record

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.interop.brokers import Broker
from tests.interop.clients import Sender, create_topic
from tests.interop.kafka_tools import java_command

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class Printing:
    """A running broker with `count` records in `topic`, sent by librdkafka, uncompressed.

    Each peer's figure is 1,000 records/s. The time for a single record, which is the time to start,
    is subtracted. A slow peer prints only some of the records.
    """

    topic = "mixed"

    def __init__(self, base: Path, records: Sequence[Record], times: int) -> None:
        self.broker = Broker(base / "broker")
        self._records = records
        self._times = times
        self.count = len(records) * times

    def __enter__(self) -> Self:
        try:
            self.broker.start()
            now_ms = int(time.time() * 1000)
            records = [r._replace(timestamp=now_ms + r.timestamp) for r in self._records]
            create_topic(self.broker, self.topic)
            sender = Sender(self.broker, enable_idempotence=False)
            for _ in range(self._times):
                sender.send(self.topic, records)
        except BaseException:
            self.broker.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.kill()

    def kcat(self, *options: str, share: int = 1) -> float:
        program = shutil.which("kcat")
        if program is None:
            raise SystemExit("no kcat here; run scripts/setup test")
        where = ["-b", self.broker.address, "-t", self.topic, "-p", "0", "-o", "beginning"]
        return self._rate([program, "-C", *where, "-q", *options, "-c"], share)

    def console_consumer(self, share: int = 1) -> float:
        where = ["--bootstrap-server", self.broker.address, "--topic", self.topic]
        return self._rate(
            java_command(CONSOLE, *where, "--from-beginning", "--max-messages"), share
        )

    def kafkafs(self, *options: str) -> float:
        place = f"kafka://{self.broker.address}/{self.topic}@.."
        return self._rate([str(KAFKAFS), "cat", *options], 1, place)

    def _rate(self, command: list[str], share: int, before: str = "") -> float:
        """Return the rate of a command without its last argument, the number of records.

        `before`: the text before the number.
        """
        printed = self.count // share
        starting = _seconds([*command, f"{before}1"])
        return printed / max(_seconds([*command, f"{before}{printed}"]) - starting, 1e-6) / 1e3


def _seconds(command: list[str]) -> float:
    begun = time.monotonic()
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=quiet, stderr=quiet)
    return time.monotonic() - begun
