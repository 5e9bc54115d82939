"""Fresh roots of releases of Debian and Ubuntu, and the packages that are installed in them.

A root has processes and mounts of its own. First it has just a shell in the place of init;
`Root.boot` starts systemd there, as on a machine, in a container of systemd-nspawn.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import select
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.mount.programs import program

PROJECT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kafkafs"
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
CERTIFICATES = Path(PIP.pop("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
# Nothing else is mounted in a root: it would not end while it is unmounted outside.
SHELL = """
mount --bind "$0" "$0"; cd "$0"; mount -t proc proc proc
pivot_root . mnt; umount -l mnt; echo ready; sleep infinity & wait"""
CONTAINER = """
awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -iln || true
exec systemd-nspawn "$@" """


class Packages(NamedTuple):
    """The package of this commit, and that of one with a later version."""

    old: Path
    new: Path


class Root:
    """A root directory with its own processes and mounts, which end with it."""

    def __init__(self, archive: Path, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["tar", "-C", path, "-xf", archive], check=True)
        shutil.copy("/etc/resolv.conf", path / "etc")
        self._environment = {
            **PIP,
            "HOME": "/root",
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        if CERTIFICATES.is_file():
            shutil.copy(CERTIFICATES, path / "certificates")
            self._environment["PIP_CERT"] = "/certificates"
        # The shell takes the part of init: it waits for processes that nobody else waits for.
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", SHELL, path],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        of_holder = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._init = of_holder.read_text().strip()
        self.run("mknod -m 666 /dev/fuse c 10 229; apt-get -qq update")

    def boot(self) -> None:
        """End what runs, start systemd, and wait until it has started everything."""
        if not (self.path / "usr/sbin/init").exists():
            self.run("apt-get install -y --no-install-recommends systemd systemd-sysv dbus")
        self._end_processes()
        # Not the root's own: systemd-nspawn hides that.
        device = self.path.with_name("fuse")
        if not device.exists():
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 229))
            device.chmod(0o666)
        name = f"\0kafkafs-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(name)
            self._holder = subprocess.Popen(
                [
                    *("unshare", "--mount", "sh", "-euc", CONTAINER, program("systemd-nspawn")),
                    *("--quiet", "--boot", "--register=no", "--notify-ready=yes"),
                    *(() if Path("/run/systemd/system").exists() else ("--keep-unit",)),
                    *("--link-journal=no", "--console=pipe", f"--directory={self.path}"),
                    f"--bind={device}:/dev/fuse",
                ],
                env={
                    **os.environ,
                    "NOTIFY_SOCKET": name.replace("\0", "@"),
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            lines: set[str] = set()
            while "READY=1" not in lines:
                lines.update(told.recv(4096).decode().splitlines())
                assert "STOPPING=1" not in lines
        (self._init,) = (
            line.partition("=")[2] for line in lines if line.startswith("X_NSPAWN_LEADER_PID=")
        )
        self.run("systemctl is-system-running --wait")

    def shut_down(self) -> None:
        """As on a machine: systemd stops everything, and ends."""
        self.attempt("systemctl poweroff")
        assert self._holder.wait() == 0

    def end(self) -> None:
        self._end_processes()
        shutil.rmtree(self.path)

    def _end_processes(self) -> None:
        """With init all others end. It outlives systemd-nspawn."""
        with contextlib.suppress(ProcessLookupError):
            init = os.pidfd_open(int(self._init))
            signal.pidfd_send_signal(init, signal.SIGKILL)
            select.select([init], [], [])
            os.close(init)
        self._holder.kill()
        self._holder.communicate()

    def start(self, line: str) -> subprocess.Popen[str]:
        """Run a command line; what it prints comes on one stream."""
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        inside = ["nsenter", "--target", self._init, "--mount", "--pid"]
        return subprocess.Popen(
            [*inside, "env", "-i", *variables, "bash", "-euc", f"cd /root; {line}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def attempt(self, line: str) -> tuple[int, str]:
        process = self.start(line)
        printed, _ = process.communicate()
        return process.returncode, printed

    def run(self, line: str) -> str:
        status, printed = self.attempt(line)
        assert status == 0, f"{line}: {status}\n{printed}"
        return printed

    def install(self, package: Path) -> str:
        shutil.copy(package, self.path / "root")
        return self.run(f"apt-get install -y --no-install-recommends ./{package.name}")

    @property
    def named(self) -> list[str]:
        """Files with kafkafs in their names, except the package, logs, and files of dpkg."""
        found = self.run(
            "find / -xdev -path /proc -prune -o -path /root -prune -o -path /var/lib/dpkg -prune"
            " -o -path /var/log -prune -o -name '*kafkafs*' -print"
        )
        return found.splitlines()

    def daemon(self, mount_point: str) -> Path:
        """Where /proc shows the process that serves a mount, seen from inside."""
        pids = self.run("grep -ls '/usr/lib/kafkafs/versions/' /proc/[0-9]*/maps").split()
        (maps,) = pids
        assert mount_point in self.run("cat /proc/self/mounts")
        return Path(maps).parent


@functools.cache
def package(clone: Path, release: str) -> Path:
    """The package of a clone's last commit, made once. The wheels are in the same directory."""
    output = clone.parent / release
    subprocess.run(
        ["scripts/package", "deb", "--wheels", "--output", output, release],
        cwd=clone,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (package,) = output.glob("*.deb")
    return package


def later(package: Path, version: str) -> Path:
    """The same package as one of a later version, with a directory of its own."""
    tree = package.parent / version
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    before = dpkg_field(package, "Version")
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            changed = content.replace(before.encode(), version.encode())
            if path.name == "METADATA" and path.parent.name.startswith("kafkafs-"):
                changed = re.sub(rb"(?m)^Version: .*$", b"Version: " + version.encode(), content)
            if changed != content and path.suffix != ".pyc":
                path.write_bytes(changed)
    made = package.parent / f"kafkafs_{version}.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made], check=True)
    shutil.rmtree(tree)
    return made


def dpkg_field(package: Path, name: str) -> str:
    done = subprocess.run(
        ["dpkg-deb", "--field", package, name], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()
