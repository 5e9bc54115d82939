"""`kafkafs words`: where the files lie, beside owners of all kinds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from storage import LogManager, paths
from storage.groups.offset_records import Committed
from storage.log.log import Log
from storage.words.words import Words
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.storage.directory.test_word_files import left_in, names_of
from tests.storage.handed import write_broker
from tests.storage.logs import append, write_settings
from tests.storage.old_logs import old_file, write_old

pytestmark = pytest.mark.programs


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fill(log: Log, count: int = 3) -> None:
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        append(log, b"line %d" % number, timestamp_ms=now_ms)
        log.roll(now_ms)


def fill_topic(data: Path, topic: str = "t") -> None:
    with LogManager.open(str(data)) as manager:
        fill(manager.create_topic(topic, 2).partitions[0])


def words(*given: object) -> dict[str, Any]:
    """Run the command; return what it did to the first partition."""
    ran = kafkafs("words", "--json", *given)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)["result"]["partitions"][0]
    return found


def are_valid(data: Path, directory: Path | str) -> bool:
    """Return whether the files of `t` are those of its segments."""
    with LogManager.open(str(data), read_only=True) as manager:
        return all(
            Words.open(each, os.path.join(directory, paths.file_name(each.base_offset, ".words")))
            for each in manager.log("t", 0).segments[:-1]
        )


def test_beside_the_segments_of_our_own(place: Place) -> None:
    fill_topic(place.data)
    stray = place.data / "t-0" / paths.file_name(7, ".words")
    stray.touch()
    ran = kafkafs("words", "--bytes", place.data)
    size = sum((place.data / "t-0" / name).stat().st_size for name in names_of(0, 1, 2))
    assert ran.stdout == (
        f"t:0: built 3 files; 3 of 3 closed segments have one ({size} bytes)\n"
        "t:1: built 0 files; 0 of 0 closed segments have one (0 bytes)\n"
    )
    assert left_in(place.data / "t-0") == names_of(0, 1, 2)
    assert are_valid(place.data, place.data / "t-0")
    assert words(place.data, "t:0") == {
        "topic": "t",
        "partition": 0,
        "files": 0,
        "directory": str(place.data / "t-0"),
        "bytes": size,
        "segments": 3,
        "missing": 0,
    }
    ran = kafkafs("words", "--remove", place.data, "t:0")
    assert ran.stdout == "t:0: removed 3 files\n"
    assert left_in(place.data / "t-0") == []


def test_beside_a_mount(place: Place) -> None:
    """The files do not show."""
    fill_topic(place.data)
    place.mount()
    before = sorted(os.listdir(place.path / "t/.raw/0"))
    assert words(place.path / "t/0")["files"] == 3
    assert left_in(place.data / "t-0") == names_of(0, 1, 2)
    assert sorted(os.listdir(place.path / "t/.raw/0")) == before
    (place.path / "t/.control/delete-records").write_text("0 2\n")
    (place.path / "t/.control/retention").write_text("run\n")
    assert kafkafs("wait", place.path / "t/.control/retention").returncode == 0
    assert [n for n in left_in(place.data / "t-0") if n.endswith(".words")] == names_of(2)


def test_what_is_a_brokers_gets_them_in_the_cache(place: Place) -> None:
    write_broker(place.data / "broker", {"t": 1})
    data = place.data / "broker"
    with LogManager.open(str(data)) as manager:
        fill(manager.log("t", 0))
    before = sorted(os.listdir(data / "t-0"))
    found = words(data, "t")
    assert found["files"] == 3
    assert left_in(found["directory"]) == names_of(0, 1, 2)
    assert sorted(os.listdir(data / "t-0")) == before
    assert Path(found["directory"]).stat().st_mode & 0o777 == 0o700
    assert are_valid(data, found["directory"])
    (Path(found["directory"]) / paths.file_name(9, ".words")).touch()
    assert words(data, "t")["files"] == 0
    assert left_in(found["directory"]) == names_of(0, 1, 2)
    # A mount that stores its own files there, too, removes them without their segments.
    (Path(found["directory"]) / paths.file_name(9, ".words")).touch()
    place.data = data
    place.mount("-o", "ro")
    (place.path / "t/0").read_bytes()
    assert left_in(found["directory"]) == names_of(0, 1, 2)
    assert words("--remove", data, "t")["files"] == 3
    assert left_in(found["directory"]) == []


def test_a_directory_of_kafka_07_gets_no_new_files(place: Place) -> None:
    directory = write_old(place.data, "t", old_file(b"1"), old_file(b"2"))
    before = sorted(os.listdir(directory))
    found = words(place.data, "t")
    assert (found["files"], len(left_in(found["directory"]))) == (1, 1)
    assert sorted(os.listdir(directory)) == before


def test_a_user_who_may_not_write_the_directory_gets_them_in_the_cache(
    place: Place, tmp_path: Path
) -> None:
    fill_topic(place.data)
    directory = place.data / "t-0"
    built = directory / names_of(1)[0]
    built.touch()
    directory.chmod(0o555)

    def run(*given: object) -> subprocess.CompletedProcess[str]:
        command = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
        command += [*KAFKAFS, "words", *map(str, given), str(place.data), "t:0"]
        return subprocess.run(command, capture_output=True, text=True)

    assert run().stdout.startswith("t:0: built 3 files")
    (cache,) = (tmp_path / "cache/kafkafs").iterdir()
    assert (left_in(directory), left_in(cache)) == (names_of(1), names_of(0, 1, 2))
    # The error is that of the file beside the segments.
    ran = run("--remove")
    assert (ran.returncode, "Permission denied" in ran.stderr) == (3, True)
    assert (left_in(directory), left_in(cache)) == (names_of(1), [])
    directory.chmod(0o755)


def test_a_partition_that_cannot_be_opened_is_named_and_no_obstacle(place: Place) -> None:
    fill_topic(place.data)
    fill_topic(place.data, "bad")
    log = place.data / "bad-0" / paths.file_name(0, ".log")
    log.unlink()
    log.mkdir()
    ran = kafkafs("words", "--json", place.data)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (3, 1), ran.stderr
    assert left_in(place.data / "t-0") == names_of(0, 1, 2)
    (problem,) = json.loads(ran.stdout)["problems"]
    assert (problem["path"], problem["code"]) == ("bad-0", "FAULT")
    for name in ("t", "bad:1"):
        assert kafkafs("words", place.data, name).returncode == 0
    ran = kafkafs("words", "--json", place.data, "bad:0")
    assert (ran.returncode, len(json.loads(ran.stdout)["problems"])) == (3, 1)


def test_the_other_segments_get_files_and_are_counted(place: Place) -> None:
    fill_topic(place.data)
    (place.data / "t-0" / names_of(1)[0]).mkdir()
    ran = kafkafs("words", "--json", place.data, "t:0")
    assert ran.returncode == 3
    found = json.loads(ran.stdout)
    assert len(found["problems"]) == 1
    assert found["result"]["partitions"] == [{"topic": "t", "partition": 0, "files": 2}]
    assert left_in(place.data / "t-0") == names_of(0, 1, 2)


def test_kafkas_own_topics_are_left_out_unless_they_are_named(place: Place) -> None:
    write_settings(place.data, offsets_topic_num_partitions=1)
    fill_topic(place.data)
    with LogManager.open(str(place.data)) as manager:
        manager.groups.commit("g", "t", {0: Committed(1)})
    ran = kafkafs("words", place.data)
    assert ran.returncode == 0
    assert "__consumer_offsets" not in ran.stdout
    assert (
        "__consumer_offsets:0: built" in kafkafs("words", place.data, "__consumer_offsets").stdout
    )
