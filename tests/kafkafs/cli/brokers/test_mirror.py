"""`kafkafs mirror` without a cluster: its words, and the directories that it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_client.requests import EARLIEST, LATEST
from kafkafs.cli import main
from kafkafs.cli.brokers.mirror import command
from kafkafs.mount_table import find
from storage import LogManager
from storage.settings.messages import Struct
from tests.fork_server import KAFKAFS
from tests.kafka_client.fake_broker import batch
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.kafkafs.mirror.fake_source import OTHER_ID, Source, SourceLog, SourceTopic
from tests.mount.test_service_manager import Manager
from tests.waits import HANG_S

# Nobody listens on this port.
NOBODY = "kafka://127.0.0.1:1"


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["mirror", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "backup"], "'data' is not the address of a cluster: kafka://HOST:PORT"),
        (["kafka://broker/orders", "backup"], "give topics after DATA"),
        (["kafka://me@broker", "backup"], "credentials do not belong into an address"),
        (["kafka://broker", "backup", "or/ders"], "'or/ders' is not the name of a topic"),
        (["kafka://broker", "backup", "--from", "soon"], "earliest, latest or a time, such as -7d"),
        (["kafka://broker", "backup", "--from", "-10"], "earliest, latest or a time, such as -7d"),
        (["kafka://broker"], "missing argument 'DATA'"),
    ],
)
def test_a_wrong_command_line(words: list[str], said: str) -> None:
    status, errors = run(*words)
    assert (status, errors.count("\n")) == (2, 1)
    assert said in errors


def test_starts_and_patterns() -> None:
    def parsed(*words: str) -> dict[str, object]:
        return command.make_context("mirror", ["kafka://one,two:7", "backup", *words]).params

    given = parsed()
    assert (given["topics"], given["start"]) == (("*",), EARLIEST)
    assert [str(each) for each in given["brokers"]] == ["one:9092", "two:7"]  # type: ignore[attr-defined]
    given = parsed("--from", "latest", "orders-*", "a[bc]?")
    assert (given["topics"], given["start"]) == (("orders-*", "a[bc]?"), LATEST)
    assert parsed("--from", "2026-11-22T00:00Z")["start"] == 1_795_305_600_000
    now_ms = time.time() * 1000
    assert abs(parsed("--from", "-7d")["start"] - (now_ms - 7 * 86_400_000)) < 60_000  # type: ignore[operator]


def test_a_directory_that_is_refused_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "others").mkdir()
    (tmp_path / "others/a.txt").write_text("")
    (tmp_path / "partition").mkdir()
    (tmp_path / "partition/00000000000000000000.log").write_text("")
    for name, said in (
        ("file", "a file, not a data directory"),
        ("others", "not a Kafka data directory"),
        ("partition", "this is the directory of one partition"),
    ):
        before = sorted(tmp_path.rglob("*"))
        status, errors = run("--once", NOBODY, tmp_path / name)
        assert (status, errors.count("\n")) == (3, 1)
        assert said in errors
        assert sorted(tmp_path.rglob("*")) == before
    status, errors = run("--once", NOBODY, tmp_path / "new", "-F", tmp_path / "nothing")
    assert status == 3
    assert str(tmp_path / "nothing") in errors


def test_a_cluster_that_cannot_be_reached_begins_no_mirror(tmp_path: Path) -> None:
    status, errors = run("--once", NOBODY, tmp_path / "backup")
    assert (status, errors) == (3, "kafkafs: broker 127.0.0.1:1: Connection refused\n")
    assert list(tmp_path.glob("backup/*")) == []


@pytest.mark.parametrize("request_name", ["Metadata", "ListGroups", "Fetch"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_a_run(tmp_path: Path, request_name: str, number: int) -> None:
    """Also before the directory is open."""
    is_over = threading.Event()
    with Source(orders=SourceTopic()) as source:
        answer = source.answers[request_name]

        def answer_after_signal(version: int, data: Struct) -> Any:
            os.kill(os.getpid(), number)
            if request_name != "Fetch":
                is_over.wait()
            return answer(version, data)

        source.answers[request_name] = answer_after_signal
        status, errors = run("--once", f"kafka://{source.address}", tmp_path / "backup")
        is_over.set()
    assert (status, errors) == (128 + number, "kafkafs: cancelled\n")


@pytest.mark.programs
def test_a_mount_that_was_there_is_left_unless_its_directory_is_opened(place: Place) -> None:
    """Another run may have mounted it. A killed run leaves its mount to the next one."""

    def run(*words: object) -> int:
        return kafkafs("mirror", *words).returncode

    with Source(orders=SourceTopic()) as source:
        words = ("--once", "--mount", place.path, f"kafka://{source.address}", place.data)
        assert run(*words) == 0
        assert find(str(place.path)) is None
        place.mount("-o", "ro")
        with LogManager.open(str(place.data), mirrors=True):
            assert run(*words) == 3
        assert run(*words[:3], NOBODY, place.data) == 3
        assert find(str(place.path)) is not None
        assert run(*words) == 0
        assert find(str(place.path)) is None


@pytest.mark.programs
@pytest.mark.parametrize("reader", ["ended", "full disk"])
def test_standard_error_that_takes_nothing_does_no_harm(tmp_path: Path, reader: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    if reader == "full disk":
        os.close(writes)
        writes = os.open("/dev/full", os.O_WRONLY)
    with Source(orders=SourceTopic()) as source, closing(Manager()) as manager:
        words = (f"kafka://{source.address}", str(tmp_path / "backup"))
        process = subprocess.Popen(
            [*KAFKAFS, "mirror", *words],
            stdout=subprocess.PIPE,
            stderr=writes,
            text=True,
            env={**os.environ, "NOTIFY_SOCKET": manager.address},
        )
        os.close(writes)
        try:
            # The first such report comes before the line on standard error.
            for _ in range(2):
                while "0 records behind" not in manager.until("STATUS")[-1]["STATUS"]:
                    pass
            process.terminate()
            said, _ = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, said) == (0, "copied 0 records, 0B\n")


@pytest.mark.programs
def test_a_mirror_with_a_partition_that_waits_is_not_up_to_date(tmp_path: Path) -> None:
    damaged = SourceLog([batch(0), batch(5)[:-1] + b"x"])
    with Source(orders=SourceTopic(), damaged=SourceTopic(OTHER_ID, logs={0: damaged})) as source:
        words = (f"kafka://{source.address}", str(tmp_path / "backup"))
        process = subprocess.Popen(
            [*KAFKAFS, "mirror", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline(), process.stderr.readline()]
            process.terminate()
            process.communicate(timeout=HANG_S)
        finally:
            process.kill()
            process.wait()
    assert lines[0].startswith("kafkafs: damaged:0: waits: ")
    expected = "kafkafs: no more can be copied now: 2 partitions, 5 records behind, 1 waiting\n"
    assert lines[1] == expected
