"""One grammar for logs, by `kafkafs verify`: a data directory, a mount, and paths below a mount."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from kafkafs.cli.common.mounts import mount_that_writes
from storage import LogManager
from tests.kafkafs.cli.conftest import Place, ending, kafkafs
from tests.kafkafs.cli.mounting.test_mount_mistakes import fill
from tests.storage.logs import append


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`orders` with partitions of 1, 2 and 4 records, `payments` with one of 8, `.x` with one of
    16; mounted.
    """
    place = Place(tmp_path_factory.mktemp("addresses"))
    with LogManager.open(str(place.data)) as manager:
        for topic, counts in (("orders", (1, 2, 4)), ("payments", (8,)), (".x", (16,))):
            created = manager.create_topic(topic, len(counts))
            for log, count in zip(created.partitions.values(), counts, strict=True):
                append(log, *[b"value"] * count)
    place.mount()
    yield place
    place.end()


def records(*words: object) -> int:
    """How many records these words name: each set of partitions has a sum of its own."""
    done = CliRunner().invoke(main, ["verify", "--json", *map(str, words)], prog_name="kafkafs")
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)["result"]["records"]
    assert isinstance(found, int)
    return found


def refused(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["verify", *map(str, words)], prog_name="kafkafs")
    assert done.stdout == ""
    return done.exit_code, done.stderr.splitlines()[-1]


@pytest.mark.programs
def test_a_data_directory_and_topics_in_it(mounted: Place) -> None:
    assert records(mounted.data) == 31
    assert records(mounted.data, "orders") == 7
    assert records(mounted.data, "orders:1", "payments") == 10
    assert records(mounted.data, "orders:1", "orders:1", "orders") == 7


@pytest.mark.programs
def test_a_mount_and_topics_in_it(mounted: Place) -> None:
    assert records(mounted.path) == 31
    assert records(mounted.path, "orders:2", "orders:0") == 5
    assert records(f"{mounted.path}/", "payments") == 8


@pytest.mark.programs
def test_paths_below_a_mount(mounted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert records(mounted.path / "orders") == 7
    assert records(f"{mounted.path}/orders/") == 7
    assert records(mounted.path / ".x", mounted.path / "orders" / "0") == 17
    assert records(mounted.path / "orders" / "1", mounted.path / "payments") == 10
    with monkeypatch.context() as inside:
        inside.chdir(mounted.path)
        assert records("orders", "payments/0") == 15
        assert records(".", "payments") == 8
        inside.chdir("orders")
        assert records("0", "2") == 5
        assert records(".") == 7


@pytest.mark.programs
def test_through_a_symbolic_link(mounted: Place, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mounted.path)
    (tmp_path / "topic").symlink_to(mounted.path / "orders")
    (tmp_path / "data").symlink_to(mounted.data)
    assert records(tmp_path / "link", "payments") == 8
    assert records(tmp_path / "link" / "orders" / "1") == 2
    assert records(tmp_path / "topic") == 7
    assert records(tmp_path / "data", "orders:2") == 4


@pytest.mark.programs
def test_what_is_not_there(mounted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        (mounted.data, "order"),
        (mounted.path, "order"),
        (mounted.path / "order",),
        (mounted.path / "order" / "0",),
    ):
        assert refused(*words) == (
            3,
            f"kafkafs: {mounted.data}: there is no topic 'order': did you mean 'orders'?",
        )
    for words in ((mounted.data, "orders:7"), (mounted.path / "orders" / "7",)):
        code, line = refused(*words)
        assert (code, line.endswith("topic 'orders' has no partition 7")) == (3, True)
    monkeypatch.chdir(mounted.data.parent)
    assert refused("data", "order")[1].startswith("kafkafs: data: there is no topic 'order'")
    code, line = refused(mounted.data, "orders/1")
    assert (code, line.endswith("did you mean 'orders:1'?")) == (3, True)


@pytest.mark.programs
def test_a_path_where_a_topic_is_wanted(mounted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words to type are found in the error: they name the same."""
    monkeypatch.chdir(mounted.data.parent)
    wrong = "kafkafs: {}: not TOPIC[:PARTITION]. Try: kafkafs verify {}"
    for words, instead in (
        (("mnt", "mnt/orders"), "mnt/orders"),
        (("data", "mnt/orders/1"), "mnt/orders/1"),
        (("data", "data/orders"), "data orders"),
        (("data", "data/orders/1"), "data orders:1"),
    ):
        assert refused(*words) == (3, wrong.format(words[1], instead))
        assert records(*instead.split()) == (2 if "1" in instead else 7)


@pytest.mark.programs
def test_a_path_of_a_topic_in_a_data_directory(
    mounted: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mounted.data.parent)
    missing = "kafkafs: {}: no such data directory"
    for path, instead in (
        ("data/orders", "data orders"),
        ("data/orders/", "data orders"),
        ("data/orders/2", "data orders:2"),
    ):
        assert refused(path) == (3, f"{missing.format(path)}: kafkafs verify {instead}")
        assert records(*instead.split()) == (4 if "2" in instead else 7)
    assert refused("data/order") == (3, missing.format("data/order"))
    monkeypatch.chdir(mounted.data)
    assert refused("orders") == (3, missing.format("orders") + ": kafkafs verify . orders")


@pytest.mark.programs
def test_what_is_neither_topic_nor_partition(mounted: Place) -> None:
    for path, instead in (
        ("orders/.kv/0", "/orders"),
        ("orders/.control/verify", "/orders"),
        ("orders/0@start", "/orders"),
        (".kv/orders", ""),
        (".groups/g/orders", ""),
        (".kafkafs/log", ""),
        (".kafkafs", ""),
    ):
        assert refused(mounted.path / path) == (
            3,
            f"kafkafs: {mounted.path}/{path}: not a topic or partition. Try: "
            f"kafkafs verify {mounted.path}{instead}",
        )


@pytest.mark.programs
def test_paths_of_several_directories(mounted: Place, tmp_path: Path) -> None:
    for other in (mounted.data, tmp_path, "payments"):
        code, line = refused(mounted.path / "orders", other)
        assert (code, f"is not in {mounted.path}" in line) == (2, True), line


@pytest.mark.programs
def test_a_path_that_does_not_exist(mounted: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """… is printed as it was typed."""
    monkeypatch.chdir(mounted.path.parent)
    for words in (["mnt/nope"], ["mnt", "nope"], ["mnt/orders", "mnt/nope"]):
        done = CliRunner().invoke(main, ["consume", *words])
        assert (done.exit_code, done.stdout) == (3, "")
        assert done.stderr == "kafkafs: mnt/nope: No such file or directory\n"


@pytest.mark.programs
def test_a_mount_of_a_directory_whose_path_is_not_ascii(tmp_path: Path) -> None:
    """… is read through the mount: the mount table does not have the directory."""
    place = Place(tmp_path)
    data = tmp_path / "dätä"
    data.mkdir()
    fill(data)
    assert kafkafs("mount", data, place.path).returncode == 0
    try:
        shown = kafkafs("cat", data, "orders").stdout
        for command in ("consume", "tail"):
            for words in ((place.path,), (place.path, "orders"), (place.path / "orders",)):
                done = kafkafs(command, *words)
                assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
        assert "give its data directory instead" in kafkafs("verify", place.path).stderr
    finally:
        kafkafs("umount", place.path)


@pytest.mark.programs
@pytest.mark.parametrize("options", [(), ("-o", "ro")], ids=["rw", "ro"])
def test_a_mount_whose_data_directory_was_moved(tmp_path: Path, options: tuple[str, ...]) -> None:
    """… is not taken for the directory that now has its path."""
    place, moved, other = Place(tmp_path), tmp_path / "moved", tmp_path / "other"
    other.mkdir()
    for directory in (place.data, other):
        assert kafkafs("create", directory, "orders").returncode == 0
    place.mount(*options)
    try:
        place.data.rename(moved)
        lines = [refused(place.path)]
        other.rename(place.data)
        lines += [refused(place.path), refused(place.path / "orders")]
        repaired = kafkafs("repair", "--apply", place.path)
        lines.append((repaired.returncode, repaired.stderr.splitlines()[-1]))
        reason = f"its data directory was moved from {place.data}, or deleted. "
        for status, line in lines:
            assert (status, line.startswith(f"kafkafs: {place.path}: {reason}")) == (3, True), line
        assert records(moved) == 0
        found = kafkafs("doctor", place.path)
        assert f"{place.path}: its data directory was moved" in found.stdout
        place.data.rename(other)
        moved.rename(place.data)
        assert records(place.path) == 0
    finally:
        place.end()


def test_no_logs_at_all() -> None:
    code, line = refused()
    assert (code, "missing argument 'DATA|MOUNT" in line) == (2, True), line


@pytest.mark.programs
def test_the_mount_of_a_data_directory(mounted: Place, tmp_path: Path) -> None:
    """… is the one that may write, as long as it lives."""
    assert mount_that_writes(str(mounted.data)) == str(mounted.path)
    place = Place(tmp_path)
    try:
        assert mount_that_writes(str(place.data)) is None
        place.mount()
        reader = tmp_path / "reader"
        reader.mkdir()
        done = kafkafs("mount", place.data, reader, "-o", "ro")
        assert done.returncode == 0
        assert mount_that_writes(str(place.data)) == str(place.path)
        pid = place.pid
        with ending(pid):
            os.kill(pid, signal.SIGKILL)
        assert mount_that_writes(str(place.data)) is None, "what is left of it is dead"
    finally:
        kafkafs("umount", tmp_path / "reader")
        place.end()
