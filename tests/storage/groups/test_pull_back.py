"""Positions that lie beyond what is left of their logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.adopt.adoptions import Adoptions, Pending
from storage.files import Files
from storage.groups.offset_records import Committed
from storage.record.control import COMMIT
from storage.state.checkpoint_file import new_topic_id
from tests import metadata_log as made
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.groups.records import end, position, positions, write, write_in_transaction
from tests.storage.logs import NOW_MS, append, opened, write_settings

OFFSETS = "__consumer_offsets"


def killed(data: Path) -> LogManager:
    """A directory whose process dies, before anything is flushed."""
    write_settings(data, offsets_topic_num_partitions=1)
    manager = LogManager.open(str(data), clock_ms=lambda: NOW_MS)
    for topic in ("orders", "more"):
        log = manager.create_topic(topic).partitions[0]
        append(log, *(b"x" * 10 for _ in range(5)))
        append(log, *(b"y" * 10 for _ in range(5)))
    manager.groups.prepare()
    return manager


def cut_in_half(data: Path, topic: str) -> None:
    """Cut the log inside its last batch, as a power cut may."""
    path = data / f"{topic}-0" / f"{0:020d}.log"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 10])


def test_they_are_pulled_back_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = killed(tmp_path)
    manager.groups.commit("g", "orders", {0: Committed(10, metadata="m", time_ms=NOW_MS - 7)})
    manager.groups.commit("g", "more", {0: Committed(10)})
    manager.groups.commit("h", "orders", {0: Committed(5)})
    manager.groups.commit("gone", "orders", {0: Committed(10)})
    manager.groups.forget("gone")
    offsets = manager.log(OFFSETS, 0)
    write_in_transaction(offsets, 5, 0, position("t", "orders", 0, 9))
    end(offsets, 5, COMMIT)
    write_in_transaction(offsets, 6, 0, position("open", "orders", 0, 9))
    write(offsets, position("others", "orders", 0, 9, topic_id=new_topic_id()))
    manager.abandon()
    cut_in_half(tmp_path, "orders")
    with opened(tmp_path) as manager:
        assert manager.log("orders", 0).log_end_offset == 5
        assert manager.groups.names() == ["g", "h", "t"]
        assert positions(manager, "g") == {("more", 0): 10, ("orders", 0): 5}
        group = manager.groups.find("g")
        assert group is not None
        pulled = group.committed["orders", 0]
        assert (pulled.metadata, pulled.time_ms) == ("m", NOW_MS - 7)
        assert positions(manager, "h") == {("orders", 0): 5}
        assert positions(manager, "t") == {("orders", 0): 5}
    lines = [each.message for each in caplog.records if "reset to" in each.message]
    assert lines == [
        f"group '{name}': committed offset {at} of orders/0 was beyond the log end; reset to 5, "
        "because the records before it are missing"
        for name, at in (("g", 10), ("t", 9))
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING), opened(tmp_path) as manager:
        append(manager.log("orders", 0), b"new")
        assert positions(manager, "g")["orders", 0] == 5
    assert "reset to" not in caplog.text


def test_nothing_is_pulled_back_where_the_loss_is_not_accepted(tmp_path: Path) -> None:
    manager = killed(tmp_path)
    manager.groups.commit("g", "orders", {0: Committed(10)})
    manager.close()
    (tmp_path / "orders-0" / f"{0:020d}.log").unlink()
    for _ in range(2):
        with LogManager.open(str(tmp_path)) as manager:
            assert manager.log("orders", 0).lost_end == 10
            assert positions(manager, "g") == {("orders", 0): 10}
    outcome = CliRunner().invoke(main, ["repair", str(tmp_path), "--accept-loss"])
    assert (
        "group 'g': committed offset 10 of orders/0 was beyond the log end; would be reset to 0"
        in outcome.output
    )
    outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path), "--accept-loss"])
    assert outcome.exit_code == 0, outcome.output
    assert (
        "group 'g': committed offset 10 of orders/0 was beyond the log end; reset to 0"
        in outcome.output
    )
    with opened(tmp_path) as manager:
        append(manager.log("orders", 0), *(b"new" for _ in range(20)))
        assert positions(manager, "g") == {("orders", 0): 0}


@pytest.mark.parametrize("replicas", [None, 1, 3])
def test_nothing_is_appended_where_another_broker_may_lead(
    tmp_path: Path, replicas: int | None
) -> None:
    manager = killed(tmp_path)
    manager.groups.commit("g", "orders", {0: Committed(10)})
    topic_id = manager.topic(OFFSETS).id
    manager.abandon()
    cut_in_half(tmp_path, "orders")
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    if replicas is not None:
        records = made.topic(OFFSETS, topic_id), made.partition(topic_id, 0, replicas)
        made.MetadataLog(tmp_path).append(*records)
    with opened(tmp_path) as manager:
        is_reset = replicas == 1
        assert positions(manager, "g") == {("orders", 0): 5 if is_reset else 10}
        assert manager.log(OFFSETS, 0).log_end_offset == 1 + is_reset


def test_a_mirror_appends_nothing(tmp_path: Path) -> None:
    """Its copy of the records may be older than that of the offsets."""
    manager = killed(tmp_path)
    manager.groups.commit("g", "orders", {0: Committed(10)})
    manager.abandon()
    pending = Pending("q", 0, 7, committed=False, files=(("orders", 0, "x"), ("more", 0, "x")))
    Adoptions(pending=pending).save(Files(), str(tmp_path))
    cut_in_half(tmp_path, "orders")
    make_mirror(tmp_path)
    with LogManager.open(str(tmp_path), mirrors=True) as manager:
        ends = {log.name: log.log_end_offset for log in manager.logs()}
        assert ends == {"orders/0": 5, "more/0": 10, f"{OFFSETS}/0": 1}
        assert positions(manager, "g") == {("orders", 0): 10}
        manager.groups.commit("h", "orders", {0: Committed(20)})
        manager.log(OFFSETS, 0).flush()
        assert positions(manager, "h") == {("orders", 0): 20}


def test_read_only_nothing_is_changed(tmp_path: Path) -> None:
    manager = killed(tmp_path)
    manager.groups.commit("g", "orders", {0: Committed(10)})
    manager.abandon()
    cut_in_half(tmp_path, "orders")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert positions(manager, "g") == {("orders", 0): 10}
