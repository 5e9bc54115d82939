"""Real Kafka brokers on this machine, run from jars: started, stopped, killed.

Every broker has its own directory and its own free loopback ports, and keeps them over restarts.
The tests wait for lines in a broker's log, and never sleep for a fixed time.

This module does not use Kafka's protocol; `clients` does.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.interop.kafka_tools import (
    CURRENT_POM,
    POM_2_4,
    SILENT,
    V0_POM,
    V1_POM,
    java_command,
    prepared,
    preparing,
    require,
)
from tests.waits import HANG_S

# Kafka 4 logs through slf4j. Its simplest logger is ready half a second earlier than log4j.
_SIMPLE_LOGGER = (
    "-Dorg.slf4j.simpleLogger.log.kafka=info",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka=info",
)

CLUSTER = "kafkafs-interop-test-1"

_LOG4J1 = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %c{1}: %m%n
"""


def free_port() -> int:
    """Return a loopback port on which no process listens.

    Outgoing connections do not use it: their ports are higher (net.ipv4.ip_local_port_range).
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def stored(directory: Path) -> bytes:
    """Return the bytes of a partition's logs: of one moment, even beside a cleaner."""
    while True:
        logs = sorted(directory.glob("*.log"))
        with contextlib.suppress(FileNotFoundError):
            data = b"".join(path.read_bytes() for path in logs)
            if sorted(directory.glob("*.log")) == logs and not any(directory.glob("*.swap")):
                return data


def write_properties(path: Path, settings: Mapping[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


class JavaServer:
    """A Java process that runs until `end`, and the lines that it has logged.

    `times`: when each line came (time.monotonic). The process ends with the thread that started it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.times: list[float] = []
        self._said = threading.Condition()
        self._over = False
        setpriv = require("setpriv", "util-linux")
        self.process = subprocess.Popen(
            [setpriv, "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                with self._said:
                    self.times.append(time.monotonic())
                    self.lines.append(line.rstrip("\n"))
                    self._said.notify_all()
        with self._said:
            self._over = True
            self._said.notify_all()

    def wait_for(self, pattern: str, after: int = 0, seconds: float = HANG_S) -> int:
        """Wait for a line that matches the pattern, from line number `after` on.

        Return the number of the line after it.
        """
        wanted = re.compile(pattern)
        deadline = time.monotonic() + seconds
        with self._said:
            while True:
                while after < len(self.lines):
                    after += 1
                    if wanted.search(self.lines[after - 1]):
                        return after
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    end = "ended" if self._over else f"was silent for {seconds:g} s"
                    tail = "\n".join(self.lines[-40:])
                    raise AssertionError(f"{end} without saying {pattern!r}:\n{tail}")
                self._said.wait(left)

    def end(self, number: signal.Signals) -> int:
        """Send the signal and wait for the end; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        return status


class Broker:
    """Apache Kafka, by default a current one: one node that is broker and controller (KRaft)."""

    java_options: Sequence[str] = ("-Xmx512m",)
    pom = CURRENT_POM

    def __init__(self, base: Path, **settings: object) -> None:
        """`settings` are the broker's, with `_` for `.`; nothing is started yet."""
        self.base = base
        self.data = base / "data"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._controller = free_port()
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._server: JavaServer | None = None

    def _properties(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.retention.ms": -1,
            "log.cleaner.backoff.ms": 200,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "log.retention.check.interval.ms": 500,
            "log.initial.task.delay.ms": 200,
            "log.flush.start.offset.checkpoint.interval.ms": 200,
            # A broker that was killed is let in again when its last session is over.
            "broker.session.timeout.ms": 1000,
            "broker.heartbeat.interval.ms": 200,
            **self._settings,
        }

    def format(self) -> None:
        """Make the metadata of a cluster, the same for all brokers, and the broker's settings."""
        if not prepared(self.pom).exists():
            prepare(self.pom)
        self.base.mkdir(parents=True, exist_ok=True)
        write_properties(self.base / "server.properties", self._properties())
        shutil.copytree(prepared(self.pom) / "formatted", self.data)

    def start(self) -> Broker:
        if not self.data.exists():
            self.format()
        self._server = run_kafka(self.base, self.pom, self.java_options)
        try:
            self._server.wait_for("Kafka Server started", seconds=HANG_S)
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def server(self) -> JavaServer:
        assert self._server is not None, "the broker is not running"
        return self._server

    @property
    def running(self) -> bool:
        return self._server is not None

    def partition(self, topic: str, number: int = 0) -> Path:
        """The partition's directory."""
        return self.data / f"{topic}-{number}"

    def stop(self) -> None:
        """SIGTERM; the broker must close its logs and end by itself."""
        server, self._server = self.server, None
        status = server.end(signal.SIGTERM)
        # The JVM dies of the signal after its shutdown hooks: 128 + SIGTERM.
        assert status == 143, (status, server.lines[-20:])
        assert (self.data / ".kafka_cleanshutdown").exists(), server.lines[-20:]

    def kill(self) -> None:
        """SIGKILL: nothing is closed."""
        if self._server is not None:
            self._server.end(signal.SIGKILL)
            self._server = None


def run_kafka(base: Path, pom: Path, options: Sequence[str]) -> JavaServer:
    command = ["kafka.Kafka", str(base / "server.properties")]
    return JavaServer(java_command(*command, pom=pom, options=(*options, *_SIMPLE_LOGGER)))


def prepare(pom: Path) -> None:
    """Let Kafka's tool format a data directory, and let a broker archive its classes."""
    with preparing(pom) as made:
        if made is None:
            return
        broker = Broker(made)
        write_properties(made / "server.properties", broker._properties())
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]
        command = java_command(*tool, str(made / "server.properties"), pom=pom)
        subprocess.run(command, check=True, capture_output=True)
        shutil.copytree(broker.data, made / "formatted")
        archive = f"-XX:ArchiveClassesAtExit={made / 'classes.jsa'}"
        server = run_kafka(made, pom, (archive, *SILENT))
        try:
            server.wait_for("Kafka Server started")
        finally:
            server.end(signal.SIGTERM)
        shutil.rmtree(broker.data)


class Member(Broker):
    """A broker of a cluster whose controller is the first node."""

    def __init__(self, base: Path, node: int, first: Broker | None, **settings: object) -> None:
        super().__init__(base, **settings)
        self.node = node
        self._first = first

    def format(self) -> None:
        """As the first node, with a node id of its own."""
        super().format()
        path = self.data / "meta.properties"
        lines = [line for line in path.read_text().splitlines() if "directory.id" not in line]
        path.write_text("\n".join(lines).replace("node.id=1", f"node.id={self.node}") + "\n")

    def _properties(self) -> dict[str, object]:
        given = super()._properties()
        replicated = {
            "node.id": self.node,
            "broker.session.timeout.ms": 5000,  # for a busy machine; the client waits for 10 s
            "replica.lag.time.max.ms": 1000,
            "replica.fetch.wait.max.ms": 100,
            "controlled.shutdown.enable": "false",
        }
        if self._first is None:
            return given | replicated
        voters = self._first._properties()["controller.quorum.voters"]
        return (
            given
            | replicated
            | {
                "process.roles": "broker",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{self.address}",
            }
        )


class OldBroker:
    """A broker without topic ids, and its ZooKeeper. Up to 0.10, it writes formats v0 and v1."""

    def __init__(self, base: Path, pom: Path, **settings: object) -> None:
        self.base = base
        self.data = base / "data"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.magic = {V0_POM: 0, V1_POM: 1, POM_2_4: 2}[pom]
        self.zookeeper = f"127.0.0.1:{free_port()}"
        self._pom = pom
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._servers: list[JavaServer] = []

    def java(self, main: str, *arguments: str) -> list[str]:
        """The command that runs one of this release's classes."""
        logging = f"-Dlog4j.configuration=file:{self.base / 'log4j.properties'}"
        return java_command(main, *arguments, pom=self._pom, options=("-Xmx512m", logging))

    def start(self) -> OldBroker:
        self.base.mkdir(parents=True, exist_ok=True)
        (self.base / "log4j.properties").write_text(_LOG4J1)
        write_properties(
            self.base / "zookeeper.properties",
            {
                "dataDir": self.base / "zookeeper",
                "clientPort": self.zookeeper.rpartition(":")[2],
                "clientPortAddress": "127.0.0.1",
                "maxClientCnxns": 0,
            },
        )
        write_properties(
            self.base / "server.properties",
            {
                "broker.id": 1,
                "port": self.port,
                "host.name": "127.0.0.1",
                "advertised.host.name": "127.0.0.1",
                "log.dirs": self.data,
                "zookeeper.connect": self.zookeeper,
                "log.cleaner.enable": "true",
                "offsets.topic.num.partitions": 1,
                "log.cleaner.backoff.ms": 200,
                "log.cleaner.dedupe.buffer.size": 4 << 20,
                **self._settings,
            },
        )
        try:
            self._run("org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper", "binding")
            self._run("kafka.Kafka", "server", r"Kafka ?Server .*1\],? started")
        except BaseException:
            self.kill()
            raise
        return self

    def _run(self, main: str, name: str, ready: str) -> None:
        server = JavaServer(self.java(main, str(self.base / f"{name}.properties")))
        self._servers.append(server)
        server.wait_for(ready, seconds=HANG_S)

    @property
    def server(self) -> JavaServer:
        return self._servers[-1]

    def partition(self, topic: str, number: int = 0) -> Path:
        """The partition's directory."""
        return self.data / f"{topic}-{number}"

    def stop(self) -> None:
        """SIGTERM to the broker, which must close its logs, and then to ZooKeeper."""
        while self._servers:
            self._servers.pop().end(signal.SIGTERM)
        assert (self.data / ".kafka_cleanshutdown").exists()

    def kill(self) -> None:
        while self._servers:
            self._servers.pop().end(signal.SIGKILL)
