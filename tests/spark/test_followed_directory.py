"""A data directory on a disk is opened to be planned from, whoever writes it and may read it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import location_of
from storage import LogManager
from storage.files import Files
from tests.broker_files import BrokerDirectory
from tests.storage.logs import NOW_MS, append, opened, values


def test_a_path_is_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = str(tmp_path / "some data")
    for option in (data, "some data", f"{data}/", f"file:{data}", f"file://{data}"):
        found = location_of(option.replace(" ", "%20") if option.startswith("file:") else option)
        assert (found.path, found.is_local, str(found)) == (data, True, data)
    assert location_of("a:b").path == str(tmp_path / "a:b")
    assert type(pickle.loads(pickle.dumps(location_of(data))).files()) is Files


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such data directory: '.*/nowhere'"):
        FollowedDirectory(location_of(str(tmp_path / "nowhere")))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"a file, not a data directory: '.*/file'"):
        FollowedDirectory(location_of(str(tmp_path / "file")))


# Opens the directory without root's right to read everything.
OPENING = """
import sys
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import location_of

try:
    FollowedDirectory(location_of(sys.argv[1]))
except PermissionError as error:
    print(error)
"""


@pytest.mark.parametrize("hidden", ["base", "base/data", "base/data/t-0"])
def test_a_directory_without_permission(tmp_path: Path, hidden: str) -> None:
    data = tmp_path / "base/data"
    data.mkdir(parents=True)
    with opened(data) as manager:
        manager.create_topic("t", 1)
    command = [sys.executable, "-c", OPENING, str(data)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    (tmp_path / hidden).chmod(0)
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    (tmp_path / hidden).chmod(0o755)
    assert found.stdout.startswith("[Errno 13] Permission denied: "), found.stderr


def test_a_brokers_directory_is_followed(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path / "data")
    first = broker.partition("t")
    first.append(b"one")
    broker.partition("other").append(b"not wanted")
    with FollowedDirectory(location_of(str(broker.data)), lambda topic: topic != "other") as opened:
        log = opened.manager.log("t", 0)
        assert values(log) == [b"one"]
        first.append(b"two")
        first.roll()
        first.append(b"three")
        broker.partition("new").append(b"four")
        broker.partition("other", 1).append(b"not wanted")
        opened.refresh()
        assert values(log) == [b"one", b"two", b"three"]
        assert values(opened.manager.log("new", 0)) == [b"four"]
        assert sorted(opened.manager.topics) == ["new", "t"]


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Without root's rights, if we have them."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


def test_who_may_only_read() -> None:
    """Neither a file is made nor a lock taken."""
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        data = Path(top, "data")
        data.mkdir()
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as writer:
            append(writer.create_topic("t", 1).partitions[0], b"one")
        before = sorted(path.relative_to(data) for path in data.rglob("*"))
        Path(top).chmod(0o755)
        for path in (data, *data.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with nobody():
            with pytest.raises(PermissionError):
                (data / "new").touch()
            with FollowedDirectory(location_of(str(data))) as opened:
                opened.refresh()
                assert values(opened.manager.log("t", 0)) == [b"one"]
        assert sorted(path.relative_to(data) for path in data.rglob("*")) == before
        for path in (data, *data.rglob("*")):
            path.chmod(0o755)
