"""The packages, their unit, and installing from source, in fresh roots of Debian 12, 13 and Ubuntu
24.04; an apt repository, wheels, and an image.

Each test has a root in which nothing is installed, with processes and mounts of its own. They take
root, debootstrap, the keys of Ubuntu's archive, systemd-nspawn, dpkg-dev, GnuPG, podman, the
network and an hour. They run in scripts/soak, or by

    .venv/bin/pytest tests/soak/test_package.py -m soak --soak-hours 1
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pasted import FROM_CLONE, FROM_PACKAGE, FROM_REPOSITORY, FROM_WHEELS, scripts_of
from tests.soak.fresh_roots import CACHE, PROJECT, Packages, Root, dpkg_field, later, package

pytestmark = pytest.mark.soak

#: Of each release: its Python, its libfuse, and another release.
RELEASES = {
    "bookworm": ("3.11", "libfuse3-3", "trixie"),
    "trixie": ("3.13", "libfuse3-4", "bookworm"),
    "noble": ("3.12", "libfuse3-3", "bookworm"),
}

#: Whether a daemon runs.
DAEMONS = "grep -qs '/usr/lib/kafkafs/versions/' /proc/[0-9]*/maps"

Figures = Callable[[str, object], None]


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packages") / "clone"
    subprocess.run(["git", "clone", "--quiet", PROJECT, path], check=True)
    return path


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
    for page in ("man1/kafkafs.1", "man1/kafkafs-ls.1", "man8/mount.kafkafs.8"):
        assert "NAME" in root.run(f"zcat /usr/share/man/{page}.gz")
    link = root.run("zcat /usr/share/man/man8/mount.fuse.kafkafs.8.gz")
    assert link == ".so man8/mount.kafkafs.8\n"
    assert root.run("dpkg --verify kafkafs") == ""
    root.run("kafkafs umount mnt")

    # mount(8) and umount(8) find their helpers, and hand on what is for others.
    others = "rw,noatime,noexec,nosuid,nodev,nofail,_netdev,user,x-systemd.automount,comment=a"
    root.run(f"mount -t kafkafs -o {others},create,show_dot,umask=027 /root/log /root/mnt")
    assert root.run("ls mnt").split()[-1] == "orders"
    status, printed = root.attempt("mount -o remount,ro /root/mnt")
    assert (status, "Unmount it, and mount it again" in printed) == (1, True)
    root.run("echo 2 >> mnt/orders/0; umount -i /root/mnt")
    root.run(f"while {DAEMONS}; do sleep 0.1; done")
    status, printed = root.attempt("mount -t kafkafs -o nosuch log mnt")
    assert (status, "unknown mount option 'nosuch'" in printed) == (1, True)
    (root.path / "etc/fstab").write_text("/root/log /root/mnt kafkafs ro 0 0\n")
    root.run("mount -a")
    assert root.run("cat mnt/orders/0") == "one order\n2\n"
    root.run(DAEMONS)
    root.run("umount /root/mnt")
    assert root.attempt(DAEMONS) == (1, "")


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
    python, soname, _ = RELEASES[release]
    assert f"python3 (>= {python})" in depends
    assert soname in depends


def test_a_package_of_another_release_is_refused(
    root: Root, packages: Packages, clone: Path, release: str, tmp_path: Path
) -> None:
    # Which puts the archive of that release's root into the cache.
    *_, name = RELEASES[release]
    package(clone, name)
    other = Root(CACHE / f"{name}.tar", tmp_path / "other")
    try:
        shutil.copy(packages.old, other.path / "root")
        status, printed = other.attempt(f"apt-get install -y ./{packages.old.name}")
        assert status != 0
        assert re.search(r"kafkafs : Depends: python3 \((<|>=) 3\.\d+\)", printed), printed
        assert other.named == []
    finally:
        other.end()


# -- other ways to install it ----------------------------------------------------------------------


def use(root: Root) -> None:
    """Mount by mount(8), append, read, unmount."""
    root.run("mkdir log mnt; mount -t kafkafs log /root/mnt; mkdir mnt/t; echo 1 >> mnt/t/0")
    assert root.run("cat mnt/t/0; umount mnt") == "1\n"


def test_the_blocks_for_an_apt_repository_can_be_pasted(
    root: Root, packages: Packages, clone: Path, tmp_path: Path
) -> None:
    """It is signed, and apt refuses another list of packages."""
    (tmp_path / "keys").mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(tmp_path / "keys")}
    generate = ["gpg", "--batch", "--passphrase", "", "--quick-gen-key", "kafkafs"]
    subprocess.run(generate, env=environment, check=True)
    (tmp_path / "dist").mkdir()
    shutil.copy(packages.old, tmp_path / "dist")
    make = ["scripts/package", "apt", "--key", "kafkafs", "--output", str(tmp_path / "dist")]
    subprocess.run(make, cwd=clone, env=environment, check=True)
    shutil.copytree(tmp_path / "dist/apt", root.path / "srv/apt")
    (install,) = scripts_of(FROM_REPOSITORY[0], "sh root")
    root.run(install)
    use(root)
    (packages_list,) = root.path.glob("srv/apt/*/Packages")
    packages_list.write_text(
        packages_list.read_text().replace("Installed-Size: ", "Installed-Size: 1")
    )
    status, printed = root.attempt("rm -r /var/lib/apt/lists/*; apt-get update")
    assert status != 0
    assert "Hash Sum mismatch" in printed or "unexpected size" in printed


def test_the_blocks_for_wheels_can_be_pasted(
    root: Root, packages: Packages, figures: Figures
) -> None:
    """They need no compiler and no headers."""
    for wheel in packages.old.parent.glob("*.whl"):
        shutil.copy(wheel, root.path / "root")
    (install,) = scripts_of(FROM_WHEELS[0], "sh root")
    began = time.monotonic()
    root.run(install)
    use(root)
    figures(
        "s from nothing to a log that was used, from wheels", round(time.monotonic() - began, 1)
    )
    assert root.attempt("command -v cc")[0] != 0
    assert root.run("apt-get install -y --no-install-recommends man-db; man kafkafs-ls")


def test_a_release_has_all_files(clone: Path, tmp_path: Path) -> None:
    """Of one release of a distribution; an index shows links that lead to the source."""
    tree, dist = tmp_path / "tree", tmp_path / "dist"
    subprocess.run(["git", "clone", "--quiet", clone, tree], check=True)
    with (tree / "pyproject.toml").open("a") as settings:
        settings.write('\n[project.urls]\nSource = "https://example.org/kafkafs"\n')
    changes = tree / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("[Unreleased]", "[0.1.0] - 2024-01-01"))
    subprocess.run(
        """
        set -e
        git -c user.name=test -c user.email=test@localhost commit --quiet --all --message all
        git tag v0.1.0
        scripts/release --output "$DIST" bookworm
        cd "$DIST"
        sha256sum --quiet --check SHA256SUMS
        """,
        shell=True,
        cwd=tree,
        env={**os.environ, "DIST": str(dist)},
        check=True,
    )
    found = sorted(str(path.relative_to(dist)) for path in dist.rglob("*") if path.is_file())
    wanted = (
        r"SHA256SUMS",
        r"apt/debian12/Packages",
        r"apt/debian12/Release",
        r"apt/debian12/kafkafs_0\.1\.0~debian12_amd64\.deb",
        r"kafkafs-0\.1\.0-cp311-cp311-manylinux\S+_x86_64\.whl",
        r"kafkafs-0\.1\.0\.tar\.gz",
        r"kafkafs_0\.1\.0~debian12_amd64\.deb",
        r"pyfuse3-3\.\d+\.\d+-cp311-cp311-manylinux\S+_x86_64\.whl",
    )
    assert len(found) == len(wanted)
    assert all(map(re.fullmatch, wanted, found)), found

    with tarfile.open(dist / "kafkafs-0.1.0.tar.gz") as files:
        info = files.extractfile("kafkafs-0.1.0/PKG-INFO")
        assert info is not None
        text = info.read().decode()
    assert "Project-URL: Source, https://example.org/kafkafs\n" in text
    links = re.findall(r"\]\(([^)]+)\)", text.partition("\n\n")[2])
    assert links
    below = "https://example.org/kafkafs/blob/v0.1.0/"
    assert [link for link in links if not link.startswith(below)] == []
    paths = [link.removeprefix(below).partition("#")[0] for link in links]
    assert [path for path in paths if not (tree / path).exists()] == []


#: podman sets limits and cgroups that a container or a virtual machine may not have.
PODMAN = """
umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
exec podman run --rm --cgroups=disabled --ulimit nofile=1024:4096 --ulimit nproc=1000:2000 \\
    --network none --device /dev/fuse --cap-add SYS_ADMIN "$@" """


def test_an_image_is_built_of_a_root_and_mounts(clone: Path, tmp_path: Path) -> None:
    """Nothing but the program and its packages is left of the build."""
    make = ["scripts/package", "image", "--output", str(tmp_path), "trixie"]
    subprocess.run(make, cwd=clone, stdout=subprocess.DEVNULL, check=True)
    (image,) = tmp_path.iterdir()
    load = ["podman", "load", "--quiet", "--input", str(image)]
    name = subprocess.check_output(load, text=True).strip().rpartition("Loaded image: ")[2]
    script = """
        kafkafs mount /data /mnt
        mkdir /mnt/orders
        echo 'one order' >> /mnt/orders/0
        cat /mnt/orders/0
        kafkafs umount /mnt
        ! ls -d /source /tmp/* /run/pip/*
    """
    inside = ["--entrypoint", "sh", name, "-euc", script]
    printed = subprocess.check_output(
        ["unshare", "--mount", "sh", "-euc", PODMAN, "sh", *inside], text=True
    )
    assert printed == "mounted /data on /mnt, 0 topics, read-write\none order\n"
    subprocess.run(["podman", "rmi", "--force", name], stdout=subprocess.DEVNULL, check=True)


# -- from source -----------------------------------------------------------------------------------


def test_the_blocks_for_a_clone_can_be_pasted(root: Root, clone: Path, figures: Figures) -> None:
    """Install, the README's first screen, and uninstall."""
    install, remove = (scripts_of(place, "sh root") for place in FROM_CLONE)
    (example,) = scripts_of(("README.md", "kafkafs"), "sh")
    before = root.named
    subprocess.run(["git", "clone", "--quiet", clone, root.path / "root/kafkafs"], check=True)
    began = time.monotonic()
    for block in install:
        root.run(f"cd kafkafs\n{block}")
    printed = root.run(example)
    figures(
        "s from nothing to a log that was used, from source", round(time.monotonic() - began, 1)
    )
    assert printed.endswith("\n1000\n19\n19\n")
    root.run("apt-get install -y --no-install-recommends man-db; man kafkafs-ls")
    root.run("mount -t kafkafs data /root/mnt")
    for block in remove:
        root.run(block)
    # man keeps a formatted page.
    assert [path for path in root.named if not path.startswith("/var/cache/man/")] == before


def test_the_demo_sets_up_and_shows_how_far_it_is(root: Root, clone: Path) -> None:
    """It says first what it installs, and its last lines can be pasted."""
    subprocess.run(["git", "clone", "--quiet", clone, root.path / "root/kafkafs"], check=True)
    printed = root.run("kafkafs/scripts/demo")
    assert printed.startswith("setup: apt-get installs ")
    assert "\nsetup: Downloading gcc\n" in printed
    assert "\nsetup: Setting up gcc\n" in printed
    for step in ("Cythonizing", "Compiled"):
        counted = re.findall(rf"^setup: \[ *(\d+)/(\d+)\] {step} ", printed, re.M)
        # Each build counts its own, pyfuse3's one, too; processes side by side in any order.
        totals = {int(total) for _, total in counted}
        assert max(totals) > 1
        for total in totals:
            numbers = sorted(int(number) for number, of in counted if int(of) == total)
            assert numbers == list(range(1, total + 1)), printed
    assert "setup: Building wheel for pyfuse3" in printed
    lines = printed.rpartition("# Try it, in a directory of your own:\n")[2]
    assert lines.count("\n") == 3
    assert root.run(lines).endswith("\none order\n")
    assert root.run("kafkafs/scripts/setup") == ""


# -- with systemd ----------------------------------------------------------------------------------

UNIT = "kafkafs@log"
SERVICES = ("docs/cookbook.md", "Send the logs of services to it")
#: Lines for cron, rsyslog and nginx, and for a unit.
LINES = scripts_of(SERVICES, "ini")[0].split("\n", 3)
#: From nothing to a mounted log whose unit has been restarted.
COMMANDS = (
    "apt-get install -y ./kafkafs_*.deb",
    "mkdir -p /srv/log /mnt/log",
    "printf 'DATA=/srv/log\nMOUNT=/mnt/log\n' > /etc/kafkafs/log.conf",
    f"systemctl enable --now {UNIT}",
    f"systemctl restart {UNIT}",
)


@pytest.fixture
def booted(root: Root, packages: Packages) -> Root:
    """With the package, `systemctl`, and a place for a log."""
    root.boot()
    shutil.copy(packages.old, root.path / "root")
    for command in COMMANDS[:3]:
        root.run(command)
    return root


def journal(root: Root, unit: str = UNIT) -> str:
    root.run("journalctl --sync")
    return root.run(f"journalctl --output=cat --no-pager --unit={unit}")


def test_the_blocks_for_a_package_can_be_pasted(root: Root, packages: Packages) -> None:
    """From the installation to the removal, in the order in which the documents have them."""
    root.boot()
    shutil.copy(packages.old, root.path / "root")
    for place in FROM_PACKAGE:
        if place[1] == "Upgrade":
            (root.path / "root" / packages.old.name).unlink()
            shutil.copy(packages.new, root.path / "root")
        printed = "".join(map(root.run, scripts_of(place, "sh root")))
        if place[1] == "Upgrade":
            assert printed.endswith("\n99.0\n")
    assert not [path for path in root.named if not path.startswith(("/srv/log/", "/srv/tab/"))]
    assert (root.path / "srv/log/nginx-0").is_dir()


def main_pid(root: Root) -> str:
    return root.run(f"systemctl show --property=MainPID --value {UNIT}").strip()


def write(root: Root, path: str, *lines: str) -> None:
    """Make a file of a root, whose units may be others now."""
    file = root.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    root.run("systemctl daemon-reload")


def test_a_killed_daemon_is_started_again(booted: Root) -> None:
    booted.run(f"systemctl start {UNIT}; mkdir /mnt/log/t; echo 1 >> /mnt/log/t/0")
    booted.run(f"systemctl kill --signal=KILL {UNIT}")
    printed = booted.run("until echo 2 >> /mnt/log/t/0; do sleep 0.1; done; cat /mnt/log/t/0")
    # Until then nobody writes into the directory underneath. It is seen for a moment, at the end.
    said = {line.rpartition(": ")[2] for line in printed.splitlines()} - {"1", "2"}
    assert said <= {
        "Software caused connection abort",  # a request that the daemon had when it was killed
        "Transport endpoint is not connected",
        "No such file or directory",
    }, printed
    assert printed.endswith("1\n2\n")
    assert booted.run("umount /mnt/log; ls /mnt/log") == ""
    # umount has stopped the service.
    assert booted.attempt(f"systemctl is-active {UNIT}")[1] == "inactive\n"


def test_a_daemon_that_hangs_is_started_again(booted: Root) -> None:
    drop_in = f"etc/systemd/system/{UNIT}.service.d/watchdog.conf"
    write(booted, drop_in, "[Service]", "WatchdogSec=5", "TimeoutAbortSec=1")
    booted.run(f"systemctl start {UNIT}; mkdir /mnt/log/t; echo 1 >> /mnt/log/t/0")
    pid = main_pid(booted)
    booted.run(f"kill -STOP {pid}; while [ -e /proc/{pid} ]; do sleep 0.1; done")
    booted.run(f"until systemctl is-active --quiet {UNIT}; do sleep 0.1; done")
    assert booted.run("cat /mnt/log/t/0") == "1\n"
    assert "Watchdog timeout" in journal(booted)


def test_the_unit_serves_another_user(booted: Root) -> None:
    booted.run("useradd --system log; chown log /srv/log /mnt/log")
    write(booted, "etc/fuse.conf", "user_allow_other")
    settings = (booted.path / "etc/kafkafs/log.conf").read_text().splitlines()
    write(booted, "etc/kafkafs/log.conf", *settings, "USER=log", "OPTIONS=allow_other,noexec")
    booted.run(f"systemctl start {UNIT}")
    assert booted.run(f"stat -c %U /proc/{main_pid(booted)}") == "log\n"
    booted.run("mkdir /mnt/log/t; chmod 1777 /mnt/log/t; chmod 666 /mnt/log/t/0")
    booted.run("runuser -u nobody -- sh -c 'echo 1 >> /mnt/log/t/0'")
    assert booted.run("cat /mnt/log/t/0; stat -c %U /srv/log/t-0/*.log") == "1\nlog\n"
    # Stopping unmounts, also while somebody uses it.
    using = booted.start("cd /mnt/log; echo in; until [ -e /root/stop ]; do sleep 0.1; done")
    assert using.stdout is not None
    assert using.stdout.readline() == "in\n"
    booted.run(f"systemctl stop {UNIT}; ! grep kafkafs /proc/self/mounts")
    booted.run("touch stop")
    using.communicate()


def test_a_mistake_ends_the_unit_and_is_in_its_status(booted: Root) -> None:
    def status_of(unit: str) -> str:
        assert booted.attempt(f"systemctl start {unit}")[0] != 0
        assert booted.attempt(f"systemctl is-failed {unit}")[1] == "failed\n"
        assert booted.run(f"systemctl show --property=NRestarts --value {unit}") == "0\n"
        status, printed = booted.attempt(f"systemctl status --no-pager --full {unit}")
        assert status == 3, printed
        booted.run(f"systemctl reset-failed {unit}")
        return printed

    place = "DATA=/srv/log\nMOUNT=/mnt/log"
    for settings, said in (
        ("DATA=/srv/no\nMOUNT=/mnt/log", "no such data directory. To create it: mkdir /srv/no"),
        (
            "DATA=/srv/log\nMOUNT=/mnt/no",
            "the mount point does not exist. To create it: mkdir /mnt/no",
        ),
        ("DATA=/srv/log", "MOUNT is empty (is a shell variable unset?)"),
        (f"{place}\nUSER=log", "no such user. To create it: useradd --system log"),
        (f"{place}\nUSER=nobody", "the daemon runs as nobody; as root: chown -R nobody /srv/log"),
        (f"{place}\nOPTIONS=alow_other", "did you mean 'allow_other'?"),
    ):
        booted.run(f"printf '{settings}\n' > /etc/kafkafs/log.conf")
        assert said in status_of(UNIT)
    booted.run("chown nobody /srv/log")
    for options, said in (
        ("", "as root: chown nobody /mnt/log"),
        ("allow_other", "as root: echo user_allow_other >> /etc/fuse.conf"),
    ):
        settings = f"{place}\nUSER=nobody\nOPTIONS={options}"
        booted.run(f"printf '{settings}\n' > /etc/kafkafs/log.conf")
        assert said in status_of(UNIT)
        booted.run("chown nobody /mnt/log")
    assert "there is no /etc/kafkafs/none.conf; an example is in " in status_of("kafkafs@none")


def test_what_may_pass_by_itself_is_tried_again(booted: Root) -> None:
    booted.run("mkdir /mnt/other; kafkafs mount /srv/log /mnt/other; mkdir /mnt/other/t")
    assert booted.attempt(f"systemctl start {UNIT}")[0] != 0
    restarts = f"systemctl show --property=NRestarts --value {UNIT}"
    booted.run(f"until [ $({restarts}) -ge 2 ]; do sleep 0.1; done")
    assert "mounted at /mnt/other. To unmount it: kafkafs umount /mnt/other" in journal(booted)
    booted.run("kafkafs umount /mnt/other")
    booted.run(f"until systemctl is-active --quiet {UNIT}; do sleep 0.1; done")
    assert booted.run("ls /mnt/log") == "t\n"


def test_services_log_as_the_cookbook_has_it(booted: Root) -> None:
    """cron, nginx, whose workers have a user of their own, and a unit."""
    begin = scripts_of(("docs/admin.md", "Mount at boot"), "sh root")
    begin += scripts_of(SERVICES, "sh root")
    cron, _, nginx, unit = LINES
    booted.run("apt-get install -y --no-install-recommends cron curl nginx")
    booted.run("rm -r /etc/kafkafs/log.conf /srv/log /mnt/log /etc/nginx/sites-enabled/default")
    booted.run("".join(begin))

    write(booted, "etc/nginx/conf.d/log.conf", nginx, "server { listen unix:/run/nginx-test; }")
    booted.run(f"printf '%s\\n' '* * * * *{cron.removeprefix('0 * * * *')}' | crontab -")
    command = "ExecStart=sh -c 'echo out; echo err >&2'"
    write(booted, "etc/systemd/system/myservice.service", unit, command)
    notices = "error_log /var/log/nginx/error.log notice;"
    write(booted, "etc/nginx/modules-enabled/99-notices.conf", notices)
    booted.run("systemctl restart nginx; systemctl start myservice")
    wait = "until [ -s {} ]; do sleep 0.1; done; cat {}".replace("{}", "/mnt/log/{0}/0")
    assert sorted(booted.run(wait.format("myservice")).splitlines()) == ["err", "out"]

    def ask(name: str) -> None:
        booted.run(f"curl --silent --unix-socket /run/nginx-test http://localhost/{name}")

    def answered(count: int) -> list[str]:
        logged = "until [ $(wc -l < /mnt/log/nginx/0) = {0} ]; do sleep 0.1; done"
        booted.run(logged.format(count))
        return re.findall(r'"GET /(\w+) HTTP/1.1" 404 ', booted.run("cat /mnt/log/nginx/0"))

    # Do what log rotation does elsewhere: let every process reopen its files.
    reopened = "grep -c '[0-9]: reopening logs' /var/log/nginx/error.log || true"
    workers = booted.run("cd /proc/$(cat /run/nginx.pid); cat task/*/children").split()
    for turn in range(3):
        ask(f"before{turn}")
        assert answered(2 * turn + 1)[-1] == f"before{turn}"
        booted.run("nginx -s reopen")
        booted.run(
            f"until [ $({reopened}) = {(turn + 1) * (1 + len(workers))} ]; do sleep 0.1; done"
        )
        ask(f"after{turn}")
        assert answered(2 * turn + 2)[-1] == f"after{turn}"
    assert "Permission denied" not in booted.run("cat /var/log/nginx/error.log")
    assert booted.run(wait.format("disk")).count("Filesystem") == 1


def test_at_boot_and_at_the_end(booted: Root) -> None:
    """By the unit, and by fstab; services that log into a mount start after it and stop before."""
    after_unit = LINES[3].partition("[Unit]\n")[2].partition("[Service]")[0]
    places = {
        "log": after_unit.splitlines(),
        "tab": ["RequiresMountsFor=/mnt/tab"],
    }
    booted.run("mkdir -p /srv/tab /mnt/tab")
    write(booted, "etc/fstab", "/srv/tab /mnt/tab kafkafs nofail 0 0")
    booted.run(f"systemctl enable --now {UNIT}; mount -a; mkdir /mnt/log/t /mnt/tab/t")
    for place, order in places.items():
        write(
            booted,
            f"etc/systemd/system/writer-{place}.service",
            *("[Unit]", *order, "[Install]", "WantedBy=multi-user.target", "[Service]"),
            """ExecStart=sh -c "trap 'echo end; exit' TERM; echo begin; sleep infinity & wait" """,
            f"StandardOutput=append:/mnt/{place}/t/0",
        )
        booted.run(f"systemctl enable writer-{place}")
    written = ""
    for _ in range(2):
        booted.shut_down()
        for place in places:
            assert (booted.path / "srv" / place / ".kafka_cleanshutdown").exists()
        booted.boot()
        for place in places:
            assert booted.run(f"cat /mnt/{place}/t/0") == f"{written}begin\n"
        written += "begin\nend\n"
    assert booted.run("kafkafs mounts").count("serving") == 2


def test_an_upgrade_and_a_removal_leave_the_unit_running(booted: Root, packages: Packages) -> None:
    booted.run(f"systemctl enable --now {UNIT}; mkdir /mnt/log/t")
    pid = booted.run(f"systemctl show --property=MainPID --value {UNIT}")
    assert "the former version goes on with: /mnt/log" in booted.install(packages.new)
    assert booted.run(f"systemctl show --property=MainPID --value {UNIT}") == pid
    booted.run(f"echo 1 >> /mnt/log/t/0; systemctl restart {UNIT}")
    assert booted.run("cat /mnt/log/t/0 /mnt/log/.kafkafs/version") == "1\n99.0\n"
    assert "still mounted, and not ended by this: /mnt/log" in booted.run(
        "apt-get remove -y kafkafs"
    )
    booted.run(f"echo 2 >> /mnt/log/t/0; systemctl stop {UNIT}; ! grep kafkafs /proc/self/mounts")
    # Installed again it is enabled as before; purged it is not.
    booted.install(packages.new)
    booted.run(f"systemctl start {UNIT}; systemctl is-enabled {UNIT}")
    assert booted.run("cat /mnt/log/t/0") == "1\n2\n"
    booted.run(f"systemctl stop {UNIT}; apt-get purge -y kafkafs")
    # The data is the user's.
    assert [path for path in booted.named if not path.startswith("/srv/log/")] == []
