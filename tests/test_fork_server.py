"""A program from the fork server has what a fresh one has, and is a child like any other."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server, shell_kafkafs
from tests.fork_server import KAFKAFS, ROOT
from tests.waits import HANG_S

FACTS = [sys.executable, "-m", "tests.start_facts"]
Settings = AbstractContextManager[dict[str, Any]]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", subprocess.Popen)
    monkeypatch.delenv("KAFKAFS_TESTS_START", raising=False)
    fork_server.install()


@contextmanager
def given(**settings: Any) -> Iterator[dict[str, Any]]:
    yield settings


@contextmanager
def environment() -> Iterator[dict[str, Any]]:
    yield {"env": {**os.environ, "OF_THE_TEST": "1", "TZ": "Asia/Kolkata"}}


@contextmanager
def umask() -> Iterator[dict[str, Any]]:
    before = os.umask(0o027)
    yield {}
    os.umask(before)


@contextmanager
def limit() -> Iterator[dict[str, Any]]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (4096, before[1]))
    yield {}
    resource.setrlimit(resource.RLIMIT_CORE, before)


@contextmanager
def terminal() -> Iterator[dict[str, Any]]:
    ours, its = os.openpty()
    yield {"stdin": its, "stdout": its, "stderr": its}
    os.close(ours)
    os.close(its)


@contextmanager
def no_input() -> Iterator[dict[str, Any]]:
    kept = os.dup(0)
    os.close(0)
    yield {"stdin": None}
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.parametrize(
    "settings",
    [
        given,
        partial(given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT),
        environment,
        partial(given, umask=0o077),
        partial(given, start_new_session=True),
        partial(given, process_group=0),
        *(umask, limit, terminal, no_input),
    ],
    ids=[
        *("as_it_is", "pipes", "environment", "given_umask", "session", "process_group"),
        *("umask", "limit", "terminal", "no_input"),
    ],
)
def test_it_has_what_a_fresh_program_has(settings: Callable[[], Settings], tmp_path: Path) -> None:
    def seen(*before: str) -> dict[str, Any]:
        path = tmp_path / "facts"
        usual = {"stdin": subprocess.DEVNULL, "cwd": ROOT, "env": dict(os.environ)}
        done = subprocess.run([*before, *FACTS, str(path)], **{**usual, **chosen})
        assert done.returncode == 3
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    with settings() as chosen:
        fresh, forked, again = seen("env"), seen(), seen()
    assert fresh.pop("command line")[:3] == FACTS
    assert "tests.fork_server" in forked.pop("command line")
    numbers = {number for facts in (fresh, forked, again) for number in facts.pop("random")}
    assert len(numbers) == 6
    assert forked == fresh


def test_it_is_a_child(tmp_path: Path) -> None:
    subprocess.run([*KAFKAFS, "create", tmp_path, "orders"], check=True, stdout=subprocess.DEVNULL)
    append = [*KAFKAFS, "append", ".", "orders"]
    with subprocess.Popen(append, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"\nPPid:\t{os.getpid()}\n" in status
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.kill()
        assert process.wait(HANG_S) == -signal.SIGKILL
    with pytest.raises(FileNotFoundError, match="nowhere"):
        subprocess.Popen(KAFKAFS, cwd=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arguments", "output", "status"),
    [
        (["version"], os.devnull, (0, "")),
        (["version"], "/dev/full", (3, "kafkafs: standard output: No space left on device\n")),
        (
            ["cat", "/nowhere"],
            os.devnull,
            (3, "kafkafs: /nowhere: no such data directory\n"),
        ),
    ],
)
def test_its_end(arguments: list[str], output: str, status: tuple[int, str]) -> None:
    with open(output, "w") as file:
        done = subprocess.run(
            [*KAFKAFS, *arguments], stdout=file, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == status


def test_many_threads_start_programs() -> None:
    def error(number: int) -> str:
        return subprocess.run(
            [*KAFKAFS, "cat", f"/{number}/"], capture_output=True, text=True
        ).stderr

    with ThreadPoolExecutor(8) as threads:
        for number, said in enumerate(threads.map(error, range(24))):
            assert f"/{number}/" in said


def test_it_ends_with_the_test_process() -> None:
    program = (
        "import os, subprocess\n"
        "from tests import fork_server\n"
        "fork_server.install()\n"
        "subprocess.run([*fork_server.KAFKAFS, 'version'], stdout=subprocess.DEVNULL)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    assert select.select([server], [], [], HANG_S)[0]
    os.close(server)


@pytest.mark.soak
def test_a_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = subprocess.Popen.__base__
    monkeypatch.setattr(subprocess, "Popen", fresh)
    monkeypatch.setenv("KAFKAFS_TESTS_START", "fresh")
    fork_server.install()
    assert subprocess.Popen is fresh


def test_a_shell_starts_it(tmp_path: Path) -> None:
    """Its streams, working directory and umask are the shell's, and its end is the command's."""
    script = """
        umask 027
        mkdir data
        kafkafs create data orders
        echo one | (cd data && kafkafs append . orders)
        kafkafs cat data orders
        kafkafs cat data nowhere 2> said || echo "status $?"
        stat --format=%a data/orders-0
    """
    path = f"{shell_kafkafs.directory()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-3:] == ["one", "status 3", "750"], done
    assert "nowhere" in (tmp_path / "said").read_text()
