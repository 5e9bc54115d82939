"""`kafkafs wait`, on files that look like those of `.control`, and on real ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, kafkafs
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

IDLE = "state idle\nlast_outcome {}\nlast_command run\nlast_segments 3\n partition why\n 0 old\n"
RUNNING = """\
state running
command run
begun_by command
started 1700000000000
phase cleaning
done_bytes {}
total_bytes 1000
last_outcome done
"""
QUEUED = "state queued\ncommand run\nbegun_by command\nstarted 0\nlast_outcome failed\n"


@pytest.mark.parametrize(
    ("outcome", "status"), [("done", 0), ("none", 0), ("failed", 3), ("cancelled", 3)]
)
def test_the_last_outcome_where_nothing_runs(tmp_path: Path, outcome: str, status: int) -> None:
    file = tmp_path / "compaction"
    file.write_text(IDLE.format(outcome))
    done = kafkafs("wait", file)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout == f"outcome {outcome}\ncommand run\nsegments 3\n"


class Served:
    """A file that shows something else each time that it is opened, as a control file does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shown = 0
        self._pipe = self._next()

    def _next(self) -> Path:
        """A fifo that the path leads to from now on."""
        pipe = self.path.with_name(f"pipe{self._shown}")
        os.mkfifo(pipe)
        link = self.path.with_name("link")
        link.symlink_to(pipe)
        link.rename(self.path)
        self._shown += 1
        return pipe

    def show(self, text: str) -> None:
        """To the next who opens it; returns when it was opened."""
        with open(self._pipe, "w") as file:
            self._pipe = self._next()
            file.write(text)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path / "compaction")


@contextlib.contextmanager
def waiting(
    file: Path, *before: str, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    imports = "from kafkafs import progress; from kafkafs.cli import main"
    program = "\n".join([imports, *before, f"main(['wait', {str(file)!r}])"])
    with subprocess.Popen(
        [KAFKAFS[0], "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_waits_until_what_runs_has_ended(served: Served) -> None:
    with waiting(served.path, "progress.LINE_S = 0") as process:
        served.show(QUEUED)
        served.show(RUNNING.format(0))
        served.show(RUNNING.format(500))
        assert process.poll() is None
        served.show(IDLE.format("done"))
        out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert out == "outcome done\ncommand run\nsegments 3\n"
    assert err.splitlines() == [
        "kafkafs: queued: 0 bytes",
        "kafkafs: cleaning: 0 of 1000 bytes",
        "kafkafs: cleaning: 500 of 1000 bytes",
    ]


def test_the_next_job_is_not_waited_for(served: Served) -> None:
    with waiting(served.path) as process:
        served.show(RUNNING.format(900))
        served.show(RUNNING.format(10).replace("started 17", "started 18"))
        out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err) == (0, "outcome done\n", "")


def test_ctrl_c_ends_the_waiting_only(served: Served) -> None:
    with waiting(served.path) as process:
        served.show(RUNNING.format(400))
        process.send_signal(signal.SIGINT)
        # A signal that comes at the open of a fifo interrupts it.
        out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (130, "")
    assert err == f"kafkafs: {served.path}: the job is still running\n"


def test_a_real_one(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    (place.path / "orders/.config").write_text("cleanup.policy=compact\n")
    with open(place.path / "orders/.kv/0", "a") as file:
        file.write("a\tone\nb\ttwo\na\tthree\n")
    control = place.path / "orders/.control"
    (control / "roll").write_text("run\n")
    (control / "compaction").write_text("run\n")
    done = kafkafs("wait", control / "compaction")
    assert (done.returncode, done.stderr) == (0, "")
    assert "outcome done\n" in done.stdout
    assert "records_dropped 1\n" in done.stdout
    assert (place.path / "orders/0").read_text() == "two\nthree\n"
    place.umount()
