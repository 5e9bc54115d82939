"""A mount beside a broker."""

from __future__ import annotations

from pathlib import Path

from tests.broker_files import BrokerDirectory
from tests.mount.mounting import Mount


class Beside(Mount):
    """A broker's directory, with a record in its one partition, and a read-only mount of it."""

    def __init__(self, base: Path, *options: str) -> None:
        super().__init__(base, ["ro", *options])
        self.broker = BrokerDirectory(self.data)
        self.partition = self.broker.partition()
        self.partition.append(b"zero")
        self.file = self.path / "t" / "0"
