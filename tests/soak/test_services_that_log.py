"""Services that log into a mount whose daemon is killed and started again, under traffic.

The tests run the package's examples: the commands of `reopen-logs.conf` when the mount is ready,
and `rsyslog.conf`. No line that was sent a second after the mount was ready is missing. Of rsyslog
no line at all is missing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.mount.mounting import Mount, check_data, needs_root
from tests.mount.programs import program
from tests.soak.fresh_roots import PROJECT

pytestmark = [pytest.mark.soak, needs_root]

EXAMPLES = PROJECT / "kafkafs" / "linux"
#: From then on, after the mount is ready, nothing may be missing.
SETTLED_S = 1.0
PAUSE_S = 0.005
SYSLOG_NG = "syslog-ng-core"

Figures = Callable[[str, object], None]
Send = Callable[[int], None]


class Service(NamedTuple):
    """`command` runs it in the foreground; `send` sends a line. `unit`: its name in the example."""

    command: list[str]
    send: Send
    unit: str
    environment: Mapping[str, str] = MappingProxyType({})


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def by_http(port: int) -> Send:
    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", f"/?n={number}")
            connection.getresponse().read()

    return send


def by_syslog(path: Path) -> Send:
    def send(number: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(path))
            sender.send(f"<13>Nov 28 10:00:00 host test: n={number}".encode())

    return send


def nginx(log: Path, base: Path) -> Service:
    port, configuration = free_port(), base / "nginx.conf"
    configuration.write_text(
        f"""daemon off; pid {base}/nginx.pid; error_log {base}/nginx.err;
        events {{}}
        http {{
            log_format n '$request_uri'; access_log {log} n;
            server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}
        }}"""
    )
    return Service([program("nginx"), "-c", str(configuration)], by_http(port), "nginx.service")


def apache(log: Path, base: Path) -> Service:
    port, configuration = free_port(), base / "apache.conf"
    configuration.write_text(
        f"""ServerRoot /usr/lib/apache2
        ServerName localhost
        Listen 127.0.0.1:{port}
        PidFile {base}/apache.pid
        DefaultRuntimeDir {base}
        User www-data
        Group www-data
        LoadModule mpm_event_module modules/mod_mpm_event.so
        LoadModule authz_core_module modules/mod_authz_core.so
        ErrorLog {base}/apache.err
        LogFormat "%U%q" n
        CustomLog {log} n
        DocumentRoot {base}
        """
    )
    command = [program("apache2"), "-f", str(configuration), "-D", "FOREGROUND"]
    return Service(command, by_http(port), "apache2.service")


def missing_libraries(package: str) -> list[str]:
    """Return the libraries that a package of Debian depends on and that are not installed."""
    depends = subprocess.run(["apt-cache", "depends", package], capture_output=True, check=True)
    libraries = re.findall(r"Depends: (lib\S+)", depends.stdout.decode())
    status = ["dpkg-query", "--show", "--showformat=${db:Status-Status}"]
    return [
        library
        for library in libraries
        if subprocess.run([*status, library], capture_output=True).stdout != b"installed"
    ]


def syslog_ng(log: Path, base: Path) -> Service:
    """Debian's package, unpacked: installed it would replace rsyslog."""
    packages = [SYSLOG_NG, *missing_libraries(SYSLOG_NG)]
    subprocess.run(["apt-get", "download", "-qq", *packages], cwd=base, check=True)
    for package in base.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(base / "root")], check=True)
    configuration, device = base / "syslog-ng.conf", base / "device"
    configuration.write_text(
        f"""@version: 3.38
        options {{ time-reopen(3600); }};
        source s {{ unix-dgram("{device}"); }};
        destination d {{ file("{log}" template("$MSG\\n")); }};
        log {{ source(s); destination(d); }};
        """
    )
    root = base / "root"
    libraries = sorted({str(path.parent) for path in root.rglob("*.so*")})
    modules = next(str(path.parent) for path in root.rglob("libaffile.so"))
    files = [f"--{name}={base / name}" for name in ("persist-file", "pidfile", "control")]
    command = [
        *(str(root / "usr/sbin/syslog-ng"), "-F", "--no-caps", "-f", str(configuration), *files),
        f"--module-path={modules}",
    ]
    environment = {"LD_LIBRARY_PATH": ":".join(libraries)}
    return Service(command, by_syslog(device), "syslog-ng.service", environment)


def rsyslog(log: Path, base: Path) -> Service:
    configuration, device = base / "rsyslog.conf", base / "device"
    example = (EXAMPLES / "rsyslog.conf").read_text().replace("/mnt/log/syslog/0", str(log))
    example = example.replace("/usr/lib/kafkafs/append-lines", str(EXAMPLES / "append-lines"))
    configuration.write_text(
        f"""global(workDirectory="{base}")
        module(load="imuxsock" sysSock.use="off")
        input(type="imuxsock" socket="{device}" ratelimit.interval="0")
        {example}"""
    )
    command = [
        program("rsyslogd"),
        "-n",
        "-f",
        str(configuration),
        "-i",
        str(base / "rsyslogd.pid"),
    ]
    return Service(command, by_syslog(device), "rsyslog.service")


#: The signal that `systemctl reload` sends, according to the services' own units.
RELOAD = {"apache2.service": signal.SIGUSR1, "syslog-ng.service": signal.SIGHUP}


def after_the_start(unit: str, pid: int) -> None:
    """Do to a service what the example's commands do once the mount is ready."""
    commands = re.findall(
        r"^ExecStartPost=-/bin/systemctl (.*)$", (EXAMPLES / "reopen-logs.conf").read_text(), re.M
    )
    for command in (command for command in commands if command.endswith(f" {unit}")):
        killed = re.search(r"^kill --kill-who=main --signal=(\w+) ", command)
        if killed is not None:
            os.kill(pid, signal.Signals[f"SIG{killed[1]}"])
        else:
            assert command == f"--no-block reload {unit}"
            os.kill(pid, RELOAD[unit])


class Traffic:
    """Sends numbers all the time, each on its own line, and remembers when."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.sent: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            at = time.monotonic()
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._send(len(self.sent))
                self.sent.append(at)

    def reach(self, count: int) -> None:
        """Wait until `count` numbers were sent."""
        until = time.monotonic() + 60
        while len(self.sent) < count:
            assert time.monotonic() < until, "the service takes nothing"
            time.sleep(0.01)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def numbers(log: Path) -> list[int]:
    return [int(found) for found in re.findall(r"n=(\d+)", log.read_text())]


@pytest.fixture
def base() -> Iterator[Path]:
    """Where the services' users get to, other than to what pytest makes."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def mount(base: Path) -> Iterator[Mount]:
    mount = Mount(base, ["allow_other"])
    try:
        mount.start()
        mount.topic("log")
        yield mount
        mount.stop()
    finally:
        mount.end()
    check_data(mount.data)


@contextlib.contextmanager
def running(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(service.command, env={**os.environ, **service.environment})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("make", [nginx, apache, syslog_ng, rsyslog])
def test_the_daemon_is_killed_under_a_service(
    make: Callable[[Path, Path], Service], mount: Mount, base: Path, figures: Figures
) -> None:
    log, own = mount / "log/0", base / "service"
    own.mkdir()
    service = make(log, own)
    with running(service) as process:
        traffic, wanted = Traffic(service.send), set[int]()
        try:
            for _ in range(3):
                # The mount is up. The last lines before the kill may not be written yet.
                first = len(traffic.sent)
                traffic.reach(first + 120)
                wanted |= set(range(first, first + 100))
                mount.kill()
                mount.start()
                settled = time.monotonic() + SETTLED_S
                after_the_start(service.unit, process.pid)
                while not traffic.sent or traffic.sent[-1] < settled:
                    time.sleep(0.01)
        finally:
            traffic.end()
        if make is rsyslog:
            wanted = set(range(len(traffic.sent)))
        until = time.monotonic() + 30
        while not wanted <= set(found := numbers(log)):
            missing = sorted(wanted - set(found))
            assert time.monotonic() < until, f"{len(missing)} of {len(wanted)}: {missing[:20]}"
            time.sleep(0.1)
    lost = len(traffic.sent) - len(set(found))
    figures(f"lines of {service.unit} sent", len(traffic.sent))
    figures(f"lines of {service.unit} lost in three kills", lost)
    figures(f"lines of {service.unit} doubled", len(found) - len(set(found)))
