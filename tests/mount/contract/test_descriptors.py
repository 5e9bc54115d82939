"""A daemon with few descriptors: what it has to open takes turns, whoever holds what."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, check_data, mounted
from tests.storage.logs import append as append_batch

pytestmark = pytest.mark.soak

LIMIT = 256


class FewDescriptors(Mount):
    """A daemon that may have few descriptors."""

    limit = LIMIT

    def _launch(self, options: object, env: object) -> subprocess.Popen[bytes]:
        command = [*KAFKAFS, "mount", str(self.data), str(self.path), "-f"]
        return subprocess.Popen(["prlimit", f"--nofile={self.limit}", *command], env=env)  # type: ignore[call-overload,no-any-return]

    def metrics(self) -> dict[str, float]:
        """Those without labels."""
        lines = (self.path / ".kafkafs/metrics").read_text().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def check(self) -> None:
        """It has got on within its limit."""
        metrics = self.metrics()
        most = metrics["kafkafs_segment_descriptors_limit"]
        reserved = metrics["kafkafs_reserved_descriptors"]
        assert most == self.limit - reserved
        # They take some of the reserve while what they have written is not on the disk.
        assert metrics["kafkafs_segment_descriptors"] <= most + reserved // 4
        assert metrics["kafkafs_descriptor_evictions_total"] > 0
        assert metrics["process_open_fds"] < metrics["process_max_fds"] == self.limit
        assert "RLIMIT_NOFILE" not in self.events()


@contextlib.contextmanager
def made(base: Path, topics: dict[str, int], segments: int = 1) -> Iterator[FewDescriptors]:
    """A mount with these topics (partitions by name).

    Each partition has `segments` segments of one line.
    """
    (base / "data").mkdir()
    with LogManager.open(str(base / "data")) as manager:
        for topic, partitions in topics.items():
            for number, log in manager.create_topic(topic, partitions).partitions.items():
                for segment in range(segments):
                    if segment:
                        log.roll(segment)
                    append_batch(log, b"%d-%d" % (number, segment))
    mount = FewDescriptors(base)
    try:
        mount.start()
        yield mount
        mount.stop()
    finally:
        mount.end()
    check_data(mount.data)


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have more files open than the daemon."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_segments_than_descriptors(tmp_path: Path) -> None:
    """… are read as text, as records and as files, one after the other."""
    with made(tmp_path, {"orders": 1}, segments=300) as mount:
        lines = b"".join(b"0-%d\n" % segment for segment in range(300))
        assert mount.run("cat orders/0") == lines
        assert mount.run("cat orders/.jsonl/0 | wc -l") == b"300\n"
        assert mount.run("ls orders/.raw/0/*.log | xargs cat | wc -c; cat orders/0") == (
            b"%d\n" % sum(path.stat().st_size for path in mount.data.glob("orders-0/*.log")) + lines
        )
        for offset in (0, 150, 299):
            assert mount.run("head -n1 orders/0@$at", at=offset) == b"0-%d\n" % offset
        mount.check()


def test_more_partitions_than_descriptors(tmp_path: Path) -> None:
    """… are written in turns, with more bytes than a flush has brought to the disk."""
    with made(tmp_path, {"orders": 300}) as mount:
        for turn in range(3):
            for number in range(300):
                append(mount / f"orders/{number}", b"turn %d\n" % turn)
        for number in range(300):
            expected = b"%d-0\nturn 0\nturn 1\nturn 2\n" % number
            assert (mount / f"orders/{number}").read_bytes() == expected
        mount.check()


@pytest.mark.usefixtures("many_files")
def test_one_reader_takes_no_descriptors(tmp_path: Path) -> None:
    """It holds every segment's files open while others make topics, append, roll and delete."""
    segments = 100
    with (
        made(tmp_path, {"orders": 1, "others": 1}, segments) as mount,
        contextlib.ExitStack() as stack,
    ):
        raw = mount / "orders/.raw/0"
        names = [name for name in os.listdir(raw) if name.endswith((".log", "index"))]
        held = {name: stack.enter_context((raw / name).open("rb", buffering=0)) for name in names}
        assert len(held) >= 3 * segments
        before = {name: os.pread(held[name].fileno(), 4096, 0) for name in names}
        for number in range(20):
            (mount / f"new{number}").mkdir()
            append(mount / f"new{number}/0", b"line\n")
        append(mount / "others/0", b"line\n")
        mount.run(
            "echo run > others/.control/roll; echo run > orders/.control/roll;"
            " echo run > orders/.control/flush;"
            " echo 0 $end > orders/.control/delete-records;"
            " echo run > orders/.control/verify",
            end=segments,
        )
        append(mount / "orders/0", b"more\n")
        assert mount.run("cat orders/0") == b"more\n"
        # Deleted files stay readable through their open descriptors.
        logs = [name for name in names if name.endswith(".log")]
        assert len(logs) == segments
        for name in logs:
            assert os.pread(held[name].fileno(), 4096, 0) == before[name]
        mount.check()


def test_hardly_any_descriptors(tmp_path: Path) -> None:
    mount = FewDescriptors(tmp_path)
    mount.limit = 60
    try:
        mount.start()
        for number in range(60):
            (mount / f"topic{number}").mkdir()
            append(mount / f"topic{number}/0", b"line\n")
        append(mount / "topic0/0", b"another\n")
        mount.check()
        mount.kill()
        with mounted(tmp_path):
            assert (mount / "topic0/0").read_bytes() == b"line\nanother\n"
            assert (mount / "topic59/0").read_bytes() == b"line\n"
    finally:
        mount.end()
