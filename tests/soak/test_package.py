"""The Debian packages, and installing from source, in fresh roots of Debian 12 and 13.

Each test has a root in which nothing is installed, with processes and mounts of its own. They take
root, debootstrap, the network and a quarter of an hour, so they run in scripts/soak only, or by

    .venv/bin/pytest tests/soak/test_package.py -m soak --soak-hours 1
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.soak

PROJECT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kafkafs"
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
CERTIFICATES = Path(PIP.pop("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
OTHER = {"bookworm": "trixie", "trixie": "bookworm"}

Figures = Callable[[str, object], None]


class Packages(NamedTuple):
    """The package of this commit, and that of one with a later version."""

    old: Path
    new: Path


class Root:
    """A root directory with processes and mounts of its own, all of which end with it."""

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
        # Nothing else is mounted there: it would not end while it is unmounted outside.
        script = """
            mount --bind "$0" "$0"; cd "$0"; mount -t proc proc proc
            pivot_root . mnt; umount -l mnt; echo ready; sleep infinity & wait"""
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", script, path],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        of_holder = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._init = of_holder.read_text().strip()
        self.run("mknod -m 666 /dev/fuse c 10 229; apt-get -qq update")

    def end(self) -> None:
        self._holder.kill()
        self._holder.communicate()
        shutil.rmtree(self.path)

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
        """What there is of kafkafs, besides apt's and dpkg's own notes of it."""
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


@pytest.fixture(scope="module", params=sorted(OTHER))
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packages") / "clone"
    subprocess.run(["git", "clone", "--quiet", PROJECT, path], check=True)
    return path


def package(clone: Path, release: str) -> Path:
    """The package of a clone's last commit."""
    done = subprocess.run(
        ["scripts/package", "deb", "--output", clone.parent / release, release],
        cwd=clone,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


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


@pytest.fixture(scope="module")
def packages(clone: Path, release: str) -> Packages:
    old = package(clone, release)
    return Packages(old, later(old, "99.0"))


@pytest.fixture
def root(release: str, packages: Packages, tmp_path: Path) -> Iterator[Root]:
    """`packages` has put the archive of the fresh root into the cache."""
    found = Root(CACHE / f"{release}.tar", tmp_path / "root")
    yield found
    found.end()


def test_from_nothing_to_a_mounted_log(root: Root, packages: Packages, figures: Figures) -> None:
    began = time.monotonic()
    root.install(packages.old)
    figures("s to install the package", round(time.monotonic() - began, 1))
    root.run("mkdir log mnt; kafkafs mount log mnt; mkdir mnt/orders")
    root.run("echo 'one order' >> mnt/orders/0")
    assert root.run("cat mnt/orders/0") == "one order\n"
    figures("s from nothing to a mounted log", round(time.monotonic() - began, 1))
    for shell in ("bash-completion/completions/kafkafs", "fish/vendor_completions.d/kafkafs.fish"):
        assert "_KAFKAFS_COMPLETE" in root.run(f"cat /usr/share/{shell}")
    assert root.run("dpkg --verify kafkafs") == ""
    root.run("kafkafs umount mnt")

    # mount(8) and umount(8) find their helpers.
    daemon = "grep -ls '/usr/lib/kafkafs/versions/' /proc/[0-9]*/maps"
    root.run("mount -t kafkafs -o ro /root/log /root/mnt")
    assert root.run("cat mnt/orders/0") == "one order\n"
    assert root.run(daemon) != ""
    root.run("umount /root/mnt")
    assert root.attempt(daemon) == (1, "")


def test_an_upgrade_leaves_a_daemon_its_files(root: Root, packages: Packages) -> None:
    root.install(packages.old)
    root.run("mkdir log mnt; kafkafs mount log mnt; mkdir mnt/t")
    before = root.run("kafkafs version")
    maps = root.daemon("/root/mnt") / "maps"
    (directory,) = root.run("ls -d /usr/lib/kafkafs/versions/*").split()
    files = root.run(f"cd {directory}; find . -type f | sort | xargs sha256sum")

    # All the while somebody appends, and somebody starts the program.
    appending = root.start("i=0; until [ -e stop ]; do echo $((i += 1)) >> mnt/t/0; done; echo $i")
    starting = root.start("until [ -e stop ]; do kafkafs version; done")
    printed = root.install(packages.new)
    root.run("touch stop")
    appended, _ = appending.communicate()
    versions, _ = starting.communicate()
    assert (appending.returncode, starting.returncode) == (0, 0), versions
    assert set(versions.splitlines(keepends=True)) <= {before, "kafkafs 99.0\n"}
    assert "the former version goes on with: /root/mnt" in printed

    assert root.run("kafkafs version") == "kafkafs 99.0\n"
    assert root.run(f"cd {directory}; find . -type f | sort | xargs sha256sum") == files
    used = [line for line in root.run(f"cat {maps}").splitlines() if "/kafkafs/" in line]
    assert used
    assert [line for line in used if directory not in line or "(deleted)" in line] == []
    # The daemon imports what it has not needed before.
    assert root.run("cat mnt/t/.jsonl/0 mnt/t/.kv/0 mnt/.kafkafs/metrics | wc -l") != "0\n"
    assert root.run("tail -n 1 mnt/t/0") == appended

    # Once it has ended, its files go with the next change.
    root.run("kafkafs umount mnt; kafkafs mount log mnt")
    assert root.run("tail -n 1 mnt/t/0") == appended
    root.run(f"apt-get install -y --reinstall ./{packages.new.name}")
    assert len(root.run("ls -d /usr/lib/kafkafs/versions/*").split()) == 1
    root.run("kafkafs umount mnt")


def test_removed_and_purged_it_leaves_nothing(root: Root, packages: Packages) -> None:
    root.install(packages.old)
    root.run("mkdir log mnt; kafkafs mount log mnt; mkdir mnt/t; echo 1 >> mnt/t/0")
    root.run("kafkafs umount mnt; touch /etc/kafkafs/log.conf")
    assert "warning" not in root.run("apt-get remove -y kafkafs").lower()
    assert root.named == ["/etc/kafkafs"]
    root.run("apt-get purge -y kafkafs")
    assert root.named == []
    root.install(packages.old)
    root.run("kafkafs mount log mnt")
    assert root.run("cat mnt/t/0") == "1\n"
    root.run("kafkafs umount mnt; apt-get purge -y kafkafs")
    assert root.named == []


def test_a_removal_ends_no_mount(root: Root, packages: Packages) -> None:
    root.install(packages.old)
    root.run("mkdir log mnt; kafkafs mount log mnt; mkdir mnt/t")
    daemon = root.daemon("/root/mnt")
    printed = root.run("apt-get remove -y kafkafs")
    assert "kafkafs: still mounted, and not ended by this: /root/mnt" in printed
    root.run("echo 1 >> mnt/t/0")
    assert root.run("cat mnt/t/0 mnt/t/.jsonl/0 | wc -l") == "2\n"
    root.run("umount mnt")
    root.run(f"while [ -e {daemon} ]; do sleep 0.1; done")
    root.run("apt-get purge -y kafkafs")
    assert root.named == []
    root.install(packages.old)
    root.run("kafkafs mount log mnt")
    assert root.run("cat mnt/t/0") == "1\n"


def test_what_a_package_lacks_is_named(root: Root, packages: Packages, release: str) -> None:
    shutil.copy(packages.old, root.path / "root")
    status, printed = root.attempt(f"dpkg -i {packages.old.name}")
    assert status != 0
    for needed in ("python3 (>= 3.", "python3 (<< 3.", "fuse3", "libfuse3-"):
        assert f"kafkafs depends on {needed}" in printed
    root.run("apt-get install -y --no-install-recommends --fix-broken; kafkafs version")
    # Another release's Python and libfuse are others.
    depends = dpkg_field(packages.old, "Depends")
    python, soname = ("3.11", "libfuse3-3") if release == "bookworm" else ("3.13", "libfuse3-4")
    assert f"python3 (>= {python})" in depends
    assert soname in depends


def test_a_package_of_another_release_is_refused(
    root: Root, packages: Packages, release: str, tmp_path: Path
) -> None:
    other = Root(CACHE / f"{OTHER[release]}.tar", tmp_path / "other")
    try:
        shutil.copy(packages.old, other.path / "root")
        status, printed = other.attempt(f"apt-get install -y ./{packages.old.name}")
        assert status != 0
        assert re.search(r"kafkafs : Depends: python3 \((<|>=) 3\.\d+\)", printed), printed
        assert other.named == []
    finally:
        other.end()


# -- from source -----------------------------------------------------------------------------------


def test_the_readmes_install_can_be_pasted(root: Root, clone: Path, figures: Figures) -> None:
    """Its first block, and then its first example."""
    install = (PROJECT / "README.md").read_text().partition("\n## Install\n")[2]
    block = re.search(r"^```sh\n(.*?)^```$", install, re.M | re.S)
    assert block is not None
    subprocess.run(["git", "clone", "--quiet", clone, root.path / "root/kafkafs"], check=True)
    began = time.monotonic()
    # Root of a fresh system has no sudo, and needs none.
    root.run("cd kafkafs\n" + block[1].replace("sudo ", ""))
    root.run("mkdir data mnt; kafkafs mount data mnt; mkdir mnt/orders; echo 1 >> mnt/orders/0")
    figures("s from nothing to a mounted log, from source", round(time.monotonic() - began, 1))
    assert root.run("cat mnt/orders/0") == "1\n"
    root.run("kafkafs umount mnt")


def test_setup_shows_how_far_it_is(root: Root, clone: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", clone, root.path / "root/kafkafs"], check=True)
    printed = root.run("kafkafs/scripts/setup")
    for step in ("Cythonizing", "Compiled"):
        counted = re.findall(rf"^setup: \[ *(\d+)/(\d+)\] {step} ", printed, re.M)
        assert [int(number) for number, _ in counted] == list(range(1, len(counted) + 1))
        assert len(counted) == int(counted[0][1])
    assert "setup: Building wheel for pyfuse3" in printed
    root.run("mkdir data mnt; kafkafs/.venv/bin/kafkafs mount data mnt")
    root.run("kafkafs/.venv/bin/kafkafs umount mnt")
    assert root.run("kafkafs/scripts/setup") == ""
