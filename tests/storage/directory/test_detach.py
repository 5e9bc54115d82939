"""A broker's directory becomes one of our own, and its broker's again."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager
from storage.directory.detach import detach, undo
from storage.errors import InvalidConfig, PolicyViolation
from storage.files import Files
from storage.settings.settings import Settings
from tests import metadata_log as made
from tests.crash.disk import SimulatedDisk
from tests.metadata_log import BROKER
from tests.storage.directory.test_taking_over import described, fill, kept, on_topic
from tests.storage.logs import NOW_MS

SETTINGS = [
    on_topic("retention.ms", "5"),
    on_topic("compression.type", "zstd"),
    on_topic("some.setting", "a \\ b\nc"),
    made.config(BROKER, "1", "log.retention.bytes", "77"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return described(tmp_path / "data", SETTINGS, "log.cleanup.policy=delete\n")


def state(data: Path) -> dict[str, bytes]:
    """Return the content of the files, without those that opening and closing writes."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and ("metadata-0" in str(path) or path.name == "meta.properties")
    }


def listing(data: Path, topic: str = "orders") -> list[tuple[str, str, str]]:
    return Settings(Files(), str(data)).explain(topic)


def test_nothing_is_made_in_a_brokers_directory(data: Path) -> None:
    before = sorted(path.name for path in data.iterdir())
    with LogManager.open(str(data)) as manager:
        for make in (
            lambda: manager.create_topic("new", 1),
            lambda: manager.create_partition("orders", 1),
        ):
            with pytest.raises(PolicyViolation, match=f"kafkafs detach {data}"):
                make()
    left = {path.name for path in data.iterdir()} - set(before)
    assert not [name for name in left if name.startswith(("new", "orders"))]


def test_what_the_broker_has_set_holds_on(data: Path) -> None:
    before = listing(data)
    assert detach(Files(), str(data)) == []
    assert listing(data) == before
    settings = Settings(Files(), str(data))
    assert settings.overrides("orders") == {"compression.type": "zstd", "retention.ms": "5"}
    assert not settings.is_brokers
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        new = manager.create_topic("new", 1)
        assert new.partitions[0].config.retention_ms == -1
        assert new.partitions[0].config.retention_bytes == -1
        manager.create_partition("orders", 1)
        assert manager.log("orders", 1).config.retention_ms == 5
        manager.delete_topic("orders")
        manager.create_topic("orders", 1)
        assert manager.log("orders", 0).config.retention_ms == -1, "it is another topic"
    assert detach(Files(), str(data)) == [], "it may be repeated"


def test_what_is_not_known_is_kept_all_the_same(tmp_path: Path) -> None:
    data = described(tmp_path / "data", SETTINGS, None)
    lines = detach(Files(), str(data))
    assert len(lines) == 1
    assert lines[0].startswith(
        "orders: the values of cleanup.policy are unknown: the path of the broker's "
        "server.properties is"
    )
    assert lines[0].endswith(f"run kafkafs config {data} orders cleanup.policy=...")
    with LogManager.open(str(data)) as manager:
        assert kept(manager.log("orders", 0), manager)
        manager.change_topic_settings("orders", {"cleanup.policy": "delete"})
        assert manager.settings.why_no_deletion("orders") is None
        assert not manager.create_topic("new", 1).partitions[0].config.unknown


def test_a_link_in_the_place_of_a_partition_is_one_of_the_brokers(data: Path) -> None:
    (data / "orders-0").rename(data.parent / "orders-0")
    (data / "orders-0").symlink_to(data.parent / "orders-0")
    (line,) = detach(Files(), str(data))
    assert "the path contains a symbolic link" in line
    (data / "orders-0").unlink()
    (data.parent / "orders-0").rename(data / "orders-0")
    assert Settings(Files(), str(data)).is_brokers_topic("orders")
    undo(Files(), str(data))


def test_it_can_be_taken_back(data: Path) -> None:
    before, shown = state(data), listing(data)
    detach(Files(), str(data))
    assert not (data / "meta.properties").exists()
    assert not (data / "__cluster_metadata-0").exists()
    undo(Files(), str(data))
    assert state(data) == before
    assert not (data / "kafkafs-broker.properties").exists()
    assert listing(data) == shown
    assert Settings(Files(), str(data)).is_brokers
    with pytest.raises(InvalidConfig, match="was not detached"):
        undo(Files(), str(data))


def test_a_broker_without_a_metadata_log_here_does_not_start(tmp_path: Path) -> None:
    """A broker with ZooKeeper makes `meta.properties` again. No broker takes such a directory."""
    fill(tmp_path, "orders")
    before = sorted(path.name for path in tmp_path.iterdir())
    guard = tmp_path / "__cluster_metadata-0.detached"
    for _ in range(2):
        detach(Files(), str(tmp_path))
        assert guard.is_dir()
    with LogManager.open(str(tmp_path)) as manager:
        assert not manager.settings.is_brokers
    undo(Files(), str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_it_is_not_taken_back_over_what_the_broker_would_delete(data: Path) -> None:
    detach(Files(), str(data))
    with LogManager.open(str(data)) as manager:
        manager.create_topic("new", 2)
        manager.create_partition("orders", 1)
    with pytest.raises(PolicyViolation, match="created after the detach: new-0, new-1, orders-1"):
        undo(Files(), str(data))
    with LogManager.open(str(data)) as manager:
        manager.delete_topic("orders")
        # It is another topic of the same name.
        manager.create_topic("orders", 1)
    with pytest.raises(PolicyViolation, match="orders-0"):
        undo(Files(), str(data))
    assert not Settings(Files(), str(data)).is_brokers


def test_where_no_broker_has_been(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="not the directory of a broker"):
        detach(Files(), str(tmp_path))


@pytest.mark.parametrize("seed", range(8))
def test_it_survives_a_power_cut(data: Path, seed: int) -> None:
    disk = SimulatedDisk(str(data))
    detach(disk, str(data))
    disk.materialise(seed)
    settings = Settings(Files(), str(data))
    assert not settings.is_brokers
    assert settings.log_config("orders").retention_ms == 5


class Killed(Exception):  # noqa: N818 - no error
    """The process ends here."""


class Mortal(Files):
    """Ends before the change with this number."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)


@pytest.mark.parametrize("moment", range(5))
def test_killed_at_any_moment_and_repeated(data: Path, moment: int) -> None:
    """It is never forgotten what was set, nor is anything made meanwhile."""
    before, shown = state(data), listing(data)
    files = Mortal(moment)
    try:
        detach(files, str(data))
    except Killed:
        settings = Settings(Files(), str(data))
        assert settings.is_brokers
        config = settings.log_config("orders")
        assert config.unknown or config.retention_ms == 5
        detach(Files(), str(data))
    assert listing(data) == shown
    files = Mortal(moment)
    try:
        undo(files, str(data))
    except Killed:
        config = Settings(Files(), str(data)).log_config("orders")
        assert config.unknown or config.retention_ms == 5
        undo(Files(), str(data))
    assert state(data) == before
    assert listing(data) == shown
