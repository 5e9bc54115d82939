"""A crash while old formats become v2 loses nothing, and converting again comes to its end."""

from __future__ import annotations

from pathlib import Path

from storage import LogManager
from storage.convert.convert import convert
from tests.crash.moments import Found, Stops, Unsynced
from tests.storage.logs import opened, values
from tests.storage.old_logs import TORN, old_and_legacy


def everything(manager: LogManager) -> list[list[bytes | None]]:
    return [values(manager.log(topic, 0)) for topic in ("t", "u")]


def test_a_crash_at_every_operation(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old_and_legacy(data)
    with LogManager.open(str(data), read_only=True) as manager:
        expected = everything(manager)
    stops = Stops(data, seeds=(0, 2))
    convert(str(data), files=stops.disk)
    stops.end()
    assert len(stops.found) > 50

    def check(path: Path, found: Found) -> None:
        disk = Unsynced(str(path))
        assert convert(str(path), files=disk).faults == []
        with LogManager.open(str(path), read_only=True) as manager:
            assert everything(manager) == expected
        assert TORN in [cut.read_bytes() for cut in path.rglob("*.cut")]
        assert list(path.rglob("*.kafka")) == []
        with opened(path, disk) as manager:
            assert everything(manager) == expected

    stops.judge(check, tmp_path / "stopped")
