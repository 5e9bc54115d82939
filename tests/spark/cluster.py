"""A standalone cluster of Spark on this machine: a master and two workers from the pip package.

Each is a process of its own, and so is every executor that a worker starts for an application.
Ports are free ones, nothing listens but on loopback, and what the processes say of themselves is
waited for in their logs. Executors find the tests' modules as well as the project's.

Not here: drivers (``drivers``).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Self

import pyspark

from tests.interop.brokers import JavaServer
from tests.spark.installation import java_options, spark_home
from tests.spark.processes import command_of, kill, tree_of

ROOT = Path(__file__).parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


def environment(scratch: Path) -> dict[str, str]:
    """Environment variables of a Spark process. Its temporary files go to `scratch`."""
    return {
        **{name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ},
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_DIRS": str(scratch),
        # For the JVMs of executors, too, which workers start in their own environment.
        "JDK_JAVA_OPTIONS": java_options(),
        "TZ": "UTC",
    }


class Cluster:
    """A running cluster; a context manager. `base` is its directory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.master = ""
        self.workers: list[JavaServer] = []
        self._master: JavaServer | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            descendants = tree_of(worker.process.pid)
            worker.end(signal.SIGTERM)
            kill(descendants)
        if self._master is not None:
            self._master.end(signal.SIGTERM)

    def _start(self) -> None:
        arguments = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        self._master = self._launch(MASTER, *arguments)
        line = self._master.wait_for(r"Starting Spark master at spark://") - 1
        self._master.wait_for("I have been elected leader", line)
        self.master = self._master.lines[line].rpartition(" at ")[2]
        for number, host in enumerate(HOSTS):
            work = self.base / f"worker-{number}"
            worker = self._launch(
                WORKER,
                *("--host", host, "--port", "0", "--webui-port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(work)),
                self.master,
            )
            self.workers.append(worker)
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def _launch(self, main: str, *arguments: str) -> JavaServer:
        variables = {
            **environment(self.base / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        words = [f"{name}={value}" for name, value in variables.items()]
        return JavaServer(["env", "-i", *words, str(program), main, *arguments])

    def settings(self) -> dict[str, str]:
        """Settings of a driver that runs on this cluster."""
        return {
            "spark.master": self.master,
            "spark.executor.memory": "512m",
            "spark.python.unix.domain.socket.enabled": "true",
        }

    def executors(self) -> list[int]:
        """The processes that run tasks, of all applications."""
        return [
            pid
            for worker in self.workers
            for pid in tree_of(worker.process.pid)
            if EXECUTOR in command_of(pid)
        ]

    def executor_of(self, pid: int) -> int:
        """The executor that has started a process of Python."""
        [executor] = [each for each in self.executors() if pid in tree_of(each)]
        return executor
