"""Control files whose commands are jobs: what they show while these wait, run and have ended."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.quantities import human_size
from kafkafs.tree.events import is_logged
from kafkafs.tree.files.control_file import ControlHandle
from kafkafs.tree.jobs import Job
from storage.files import Files
from tests.kafkafs.trees import APPEND, Clock, Tree, a_tree

F = "t/.control/retention"
NOW_MS = Clock().ms()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"one\ntwo\n")
        yield tree


def shown(tree: Tree, path: str = F) -> list[str]:
    node = tree.node(path)
    data = tree.read(node)
    assert tree.attributes(node).size == len(data)
    return data.decode().splitlines()


def write(tree: Tree, line: bytes, path: str = F) -> ControlHandle[str]:
    handle = tree.open(path, APPEND)
    assert isinstance(handle, ControlHandle)
    assert not handle.structural
    assert handle.write(0, line) == len(line)
    return handle


def held(tree: Tree) -> list[Job]:
    """Jobs that begin when the test says so."""
    jobs: list[Job] = []
    tree.fs.mount.jobs.runner = jobs.append
    return jobs


def test_before_anything_has_happened(tree: Tree) -> None:
    assert shown(tree) == ["state idle", "last_outcome none"]


def test_from_waiting_to_its_end(tree: Tree) -> None:
    jobs = held(tree)
    handle = write(tree, b"run 0\n")
    assert list(handle.awaited) == jobs
    assert shown(tree) == [
        *("state queued", "command run", "begun_by command", "started 0"),
        "last_outcome none",
    ]
    (job,) = jobs
    tree.fs.mount.jobs.started(job)
    job.task.begin("deleting", 500)
    job.task.advance(200)
    job.task.counts["segments"] = 7
    assert shown(tree) == [
        *("state running", "command run", "begun_by command", f"started {NOW_MS}"),
        *("phase deleting", "done_bytes 200", "total_bytes 500", "segments 7"),
        "last_outcome none",
    ]
    tree.clock.now_ns += 5_000_000
    job.carry_out()
    tree.fs.mount.jobs.ended(job)
    handle.awaited_over()
    assert shown(tree) == [
        "state idle",
        *("last_outcome done", "last_command run", "last_begun_by command"),
        *(f"last_started {NOW_MS}", f"last_ended {NOW_MS + 5}"),
        *("last_partitions 1", "last_segments 0", "last_bytes 0", "last_records 0"),
        "last_being_cleaned 0",
        f"last_frees 0 all {human_size(tree.log().size)} are in the newest segment; "
        "retention.bytes and retention.ms are not set: nothing is freed",
    ]


class FullTable(Files):
    """Has no descriptor left at the next fsync."""

    full = False

    def fdatasync(self, fd: int) -> None:
        if self.full:
            self.full = False
            raise OSError(errno.EMFILE, "Too many\nopen files", "/some/file")
        super().fdatasync(fd)


def test_what_goes_wrong(tmp_path: Path) -> None:
    disk = FullTable()
    flush = "t/.control/flush"
    with a_tree(tmp_path / "data", files=disk) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"one\n")
        disk.full = True
        handle = write(tree, b"run\n", flush)
        with pytest.raises(OSError, match="open files") as refused:
            handle.awaited_over()
        assert refused.value.errno == errno.EMFILE
        depth = len(refused.traceback)
        with pytest.raises(OSError, match="open files") as again:
            handle.awaited_over()
        assert len(again.traceback) == depth, "which would grow for who asks for ever"
        assert "last_outcome failed" in shown(tree, flush)
        reason = "last_reason Too many open files (/some/file)"
        assert reason in shown(tree, flush), "in one line"
        assert "t/.control/flush: run: failed: Too many" in tree.events()
        write(tree, b"run\n", flush).awaited_over()
        assert "last_outcome done" in shown(tree, flush)


def test_one_that_the_end_has_stopped(tree: Tree) -> None:
    held(tree)
    handle = write(tree, b"run\n")
    tree.fs.mount.jobs.close()
    for job in tree.fs.mount.jobs.running:
        tree.fs.mount.jobs.ended(job)
    with pytest.raises(OSError, match="unmounted") as refused:
        handle.awaited_over()
    assert refused.value.errno == errno.ESHUTDOWN
    assert is_logged(refused.value), "by the end of the job"


def test_while_stopping(tree: Tree) -> None:
    tree.fs.stop()
    with pytest.raises(OSError, match="unmounted") as refused:
        write(tree, b"run\n")
    assert refused.value.errno == errno.ESHUTDOWN


def test_read_only(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
    with a_tree(tmp_path / "data", MountOptions(read_only=True)) as tree:
        assert shown(tree) == ["state idle", "last_outcome none"]
        with pytest.raises(OSError, match="read-only") as refused:
            write(tree, b"run\n")
        assert refused.value.errno == errno.EROFS
