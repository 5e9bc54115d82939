"""Builds, packages, containers, releases; the build and `kafkafs setup` name what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
import tty
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kafkafs.cli import main
from kafkafs.mount_options import parse_mount_options
from tests.mount.mounting import let_others_in, needs_root

ROOT = Path(__file__).parents[1]
NOBODY = 65534
#: Files that builds, tests and editors leave in a working tree, besides hidden ones.
MADE = ("__pycache__", "build", "dist", "*.egg-info", "*.so", "*.c", "target")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The project's files, without what was built of them."""
    path = tmp_path / "clone"
    ours = {"docs", "kafka_client", "kafkafs", "storage", "tests", "scripts"}

    def left_out(directory: str, names: list[str]) -> set[str]:
        if Path(directory) == ROOT:
            return {
                name
                for name in names
                if name not in (".dockerignore", ".gitignore")
                and (name[0] == "." or ((ROOT / name).is_dir() and name not in ours))
            }
        if Path(directory) == ROOT / "scripts/bench":
            return set(shutil.ignore_patterns("__pycache__")(directory, names))
        return set(shutil.ignore_patterns(*MADE)(directory, names))

    shutil.copytree(ROOT, path, ignore=left_out)
    for name in (".ci/run", ".github/workflows/ci.yml"):
        (path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, path / name)
    return path


def tools(directory: Path, *names: str) -> str:
    """A PATH with these programs alone."""
    directory.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        (directory / name).symlink_to(found)
    return str(directory)


def pip_install(clone: Path, path: str) -> subprocess.CompletedProcess[str]:
    """`pip install .` without an index, up to where it needs one."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", clone / "installed"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *map(str, options), "."],
        cwd=clone,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def told(output: str) -> list[str]:
    """Return the lines that the build has printed; pip shows them between two lines of its own."""
    lines = re.search(r"lines of output\]\n(.*?)\n *\[end of output\]", output, re.S)
    assert lines is not None, output
    return [line.strip() for line in lines[1].splitlines() if line.strip() != "running dist_info"]


# -- building --------------------------------------------------------------------------------------


def test_pip_says_in_one_line_that_pkg_config_is_missing(clone: Path, tmp_path: Path) -> None:
    done = pip_install(clone, tools(tmp_path / "bin", "gcc", "cc"))
    assert done.returncode != 0
    assert told(done.stderr) == [
        "kafkafs: missing to build it: pkg-config, and libfuse 3; "
        "on Debian and Ubuntu: apt-get install pkg-config libfuse3-dev"
    ]


def test_pip_says_in_one_line_that_libfuse_and_a_compiler_are_missing(
    clone: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    (path / "pkg-config").write_text("#!/bin/sh\nexit 1\n")
    (path / "pkg-config").chmod(0o755)
    done = pip_install(clone, str(path))
    assert done.returncode != 0
    (line,) = told(done.stderr)
    assert re.fullmatch(
        r"kafkafs: missing to build it: a C compiler \(\S+\), the headers of libfuse 3; "
        r"on Debian and Ubuntu: apt-get install gcc libc6-dev libfuse3-dev",
        line,
    )


@needs_root
def test_root_installs_manual_pages_and_leaves_nothing_in_a_clone_of_another_user(
    clone: Path, tmp_path: Path
) -> None:
    """Run the steps of `sudo pip install .`, without compiling.

    The manual pages can be made without the compiled modules. They are installed where `man` looks:
    in `share/man`, beside the program's `bin`.
    """
    for path in (clone, *clone.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    before = sorted(clone.rglob("*"))
    made = tmp_path / "made"
    commands = ("egg_info", "build_py", "install_data", "-d", made, "dist_info", "-o", made)
    subprocess.run(
        [sys.executable, "-B", "setup.py", "-q", *commands],
        cwd=clone,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    pages = {path.name for path in made.glob("share/man/man?/*")}
    assert pages >= {"kafkafs.1", "kafkafs-ls.1", "kafkafs.5", "mount.kafkafs.8"}
    assert "mount.fuse.kafkafs.8" in pages
    assert sorted(clone.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} == {"clone", "made"}


def test_a_source_distribution_has_what_a_clone_has(clone: Path, tmp_path: Path) -> None:
    expected = {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path / "dist"],
        cwd=clone,
        check=True,
        capture_output=True,
    )
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as files:
        members = {each.name.partition("/")[2] for each in files if each.isfile()}
    assert expected - members == set()
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in members - expected - made if ".egg-info/" not in name} == set()


def test_the_extra_for_a_cluster_leaves_its_pyspark_alone(clone: Path, tmp_path: Path) -> None:
    """An older release than we need, too: the cluster's Spark is of the same one."""
    info = tmp_path / "site/pyspark-4.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 4.0.1\n")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--report", tmp_path / "report"]
    options = ["--quiet", "--no-index", "--no-build-isolation", ".[spark]"]
    subprocess.run(
        [*map(str, command), *options],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(info.parent)},
        check=True,
    )
    report = json.loads((tmp_path / "report").read_text())
    assert [each["metadata"]["name"] for each in report["install"]] == ["kafkafs"]


def test_nothing_advises_to_install_what_no_index_has() -> None:
    advice = re.compile(r"pip3? install (-\S+ )*['\"]?kafkafs\b")
    files = [
        path
        for name in ("docs", "kafka_client", "kafkafs", "storage", "scripts")
        for path in (ROOT / name).rglob("*")
        if path.suffix in (".py", ".md", "") and path.is_file()
    ]
    assert [
        str(path) for path in [ROOT / "README.md", *files] if advice.search(path.read_text())
    ] == []


# -- where it is built -----------------------------------------------------------------------------


def packages(text: str) -> set[str]:
    """The words of a command line that are no options."""
    return {word for word in text.replace("\\\n", " ").split() if word[0] != "-"}


def test_all_ways_to_build_it_install_the_same_packages() -> None:
    """README, `scripts/setup`, and the package, which the container is made by, too."""
    text = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^apt-get .*apt-get install (.*python3-venv.*)$", text, re.M)
    text = (ROOT / "scripts/setup").read_text()
    always = text.partition('if [ "$purpose" = test ]')[0]
    needed = packages(" ".join(re.findall(r"^ *need \S+ (.+)$", always, re.M)))
    needed |= packages(" ".join(re.findall(r"missing\+=\((lib[^)]+)\)", always)))
    needed |= packages(" ".join(re.findall(r"missing\+=\((python3 [^)]+)\)", text)))
    assert packages(line) == needed - {"python3"}, "which comes with the others"
    text = (ROOT / "scripts/deb/build").read_text()
    (built,) = re.findall(r"^apt-get -q -y install ((?:.*\\\n)*.*)$", text, re.M)
    assert packages(built) == needed - {"fuse3"} | {"dpkg-dev"}
    (depends,) = re.findall(r"^Depends: (.*)$", text, re.M)
    assert "fuse3" in depends.split(", ")


def instructions(name: str) -> list[str]:
    """Return the lines of a container file without its comments."""
    text = (ROOT / name).read_text()
    return re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", "").splitlines()


def test_the_container_is_made_of_what_is_there() -> None:
    made = dict(line.split(" ", 1) for line in instructions("Containerfile") if line)
    assert made["COPY"] == ". /source"
    (program,) = re.findall(
        r"^RUN /source/(\S+) /tmp$", "\n".join(instructions("Containerfile")), re.M
    )
    assert os.access(ROOT / program, os.X_OK)
    (release,) = re.findall(r"BASE=debian:(\w+)-slim", (ROOT / "Containerfile").read_text())
    (released,) = re.findall(r"releases=\((\w.*)\)", (ROOT / "scripts/package").read_text())
    assert release in released.split()

    # The container runs a kafkafs command with the volume as the data directory.
    name, *arguments = json.loads(made["CMD"])
    assert json.loads(made["ENTRYPOINT"]) == ["kafkafs"]
    # click keeps the names of the help option of the first context.
    context = click.Context(main, **main.context_settings)
    command = main.get_command(context, name)
    assert command is not None
    given = command.make_context(name, arguments, parent=context).params
    assert (given["data_dir"], given["foreground"]) == (made["VOLUME"], True)
    for options in given["options"]:
        parse_mount_options([options])

    # All documents name the same options for starting the container.
    rights = "--device /dev/fuse --cap-add SYS_ADMIN"
    for document in ("Containerfile", "README.md", "docs/admin.md"):
        assert rights in " ".join((ROOT / document).read_text().split()), document


def test_a_container_is_built_without_what_git_ignores() -> None:
    def in_any_directory(pattern: str) -> str:
        plain = pattern.strip("/")
        return plain if pattern[0] == "/" else f"**/{plain}"

    ignored = [in_any_directory(each) for each in instructions(".gitignore") if each]
    assert instructions(".dockerignore") == [".git", *ignored]


# -- setting up ------------------------------------------------------------------------------------


class Machine:
    """`scripts/setup` in a directory of its own, where /dev is what a test makes of it."""

    def __init__(self, base: Path) -> None:
        self._project = base / "project"
        (self._project / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/setup", self._project / "scripts/setup")
        let_others_in(self._project / "scripts")

    def set_up(
        self, device: str, *run_by: str, purpose: str = "run"
    ) -> subprocess.CompletedProcess[str]:
        """Make the device by a command, in an empty /dev, and run the script."""
        script = (
            f'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && {device} && exec "$@"'
        )
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", *run_by, "scripts/setup", purpose],
            cwd=self._project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self._project.iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Nothing is built on it."""
    found = Machine(tmp_path)
    yield found
    assert found.left == ["scripts"]


@needs_root
def test_setup_says_first_that_there_is_no_device(machine: Machine) -> None:
    done = machine.set_up("true")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: there is no /dev/fuse: modprobe fuse "
        "(in a container: run it with --device /dev/fuse --cap-add SYS_ADMIN)\n",
    )


@needs_root
def test_setup_says_first_that_the_device_may_not_be_opened(machine: Machine) -> None:
    user = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
    done = machine.set_up("mknod -m 600 /dev/fuse c 10 229", *user)
    assert (done.returncode, done.stderr) == (
        1,
        "setup: nobody may not open /dev/fuse, crw-------: chmod 666 /dev/fuse, as root "
        "(in a container: run it with --device /dev/fuse)\n",
    )


@needs_root
def test_setup_says_first_that_nothing_can_be_mounted(machine: Machine) -> None:
    bound = ["setpriv", "--bounding-set=-sys_admin"]
    done = machine.set_up("mknod -m 600 /dev/fuse c 10 229", *bound)
    assert (done.returncode, done.stderr) == (
        1,
        "setup: nothing can be mounted without CAP_SYS_ADMIN "
        "(in a container: run it with --cap-add SYS_ADMIN)\n",
    )


@needs_root
def test_setup_unit_needs_no_device_and_no_root(machine: Machine, tmp_path: Path) -> None:
    """It names the packages that are missing, and calls no sudo."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "id", "apt-get"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (programs / "sudo").symlink_to("/bin/true")
    let_others_in(programs)
    user = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
    variables = ["env", f"PATH={programs}", "PYTHON=python3"]
    done = machine.set_up("true", *user, *variables, purpose="unit")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: please run as root: apt-get install gcc libc6-dev pkg-config libfuse3-dev\n",
    )


class Terminal:
    """`scripts/setup test` at a terminal, where apt-get has everything and installs nothing."""

    def __init__(self, base: Path) -> None:
        self._project = base / "project"
        (self._project / "scripts").mkdir(parents=True)
        for name in ("setup", "progress"):
            shutil.copy(ROOT / "scripts" / name, self._project / "scripts")
        self._installed = base / "installed"
        self._programs = base / "bin"
        names = (
            "bash",
            "dirname",
            "id",
            "sed",
            "mkdir",
            "env",
            "tee",
            "stty",
            "cat",
            "tail",
            "gcc",
        )
        tools(self._programs, *names)
        (self._programs / "apt-get").write_text(f'#!/bin/bash\necho "$@" > {self._installed}\n')
        (self._programs / "apt-get").chmod(0o755)

    def set_up(self, answer: bytes | None) -> tuple[str, str]:
        """Return what setup printed, and what apt-get was called with, on a terminal or without."""
        ours, theirs = pty.openpty()
        tty.setraw(theirs)  # which shows no answers
        with open(ours, "r+b", buffering=0) as terminal:
            with open(theirs, "r+b", buffering=0) as shown:
                done = subprocess.Popen(
                    ["scripts/setup", "test"],
                    cwd=self._project,
                    env={"PATH": str(self._programs), "PYTHON": "/nothing"},
                    stdin=subprocess.DEVNULL if answer is None else shown,
                    stderr=shown,
                )
            if answer is not None:
                terminal.write(answer)
            printed = b""
            with contextlib.suppress(OSError):  # the other side has ended
                while read := terminal.read(4096):
                    printed += read
        assert done.wait() == 1
        installed = self._installed.read_text() if self._installed.exists() else ""
        return printed.decode(), installed


@needs_root
def test_setup_asks_at_a_terminal_before_it_installs_a_service(tmp_path: Path) -> None:
    """It says first which packages it installs, and how long it takes at most."""
    terminal = Terminal(tmp_path)
    printed, installed = terminal.set_up(b"y\nn\n")
    first, second, third, *_ = printed.splitlines()
    assert re.fullmatch(r"setup: apt-get installs (\S+ )+openssh-server( \S+)+", first)
    assert (
        second == "setup: pip installs packages into .venv, and compiles kafkafs if it has changed"
    )
    assert re.fullmatch(
        r"setup: this takes about \d+ minutes on two cores; its log is build/setup.log", third
    )
    for package in ("nginx-light", "openssh-server"):
        assert f"setup: {package} starts a service on this machine. Install it? [y/N] " in printed
    assert printed.endswith(
        "setup: nothing is installed; `scripts/test unit` does not need openssh-server\n"
    )
    assert installed == ""

    # Yes to all of them; and without a terminal to ask at.
    for answer in (b"y\ny\ny\n", None):
        printed, installed = terminal.set_up(answer)
        assert {"nginx-light", "openssh-server", "rsyslog"} <= set(installed.split())
        assert printed.count("Install it?") == (3 if answer else 0)


def test_the_times_that_are_printed_are_those_of_the_documents() -> None:
    lanes = re.findall(
        r"^\| \w+ \| `scripts/test.*\| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    printed = re.findall(r"\btime='(.+)'", (ROOT / "scripts/test").read_text())
    assert len(lanes) == 3
    assert sorted(printed) == sorted(lanes)


# -- packages and releases -------------------------------------------------------------------------


class Releaser:
    """A repository with what `scripts/release` looks at before it makes anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/release", path / "scripts")
        (path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
        (path / "CHANGELOG.md").write_text("## [Unreleased]\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *who, *arguments], cwd=self.path, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--message", "all")

    def refused(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            ["scripts/release", *arguments],
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr


def test_a_release_is_of_a_commit_that_is_tagged_and_in_the_changelog(tmp_path: Path) -> None:
    releaser = Releaser(tmp_path / "repository")
    assert releaser.refused("--nosuch")[0] == 2
    assert releaser.refused() == (1, "release: this commit is not tagged: git tag v1.2\n")
    releaser.git("tag", "v1.2")
    assert releaser.refused() == (1, "release: CHANGELOG.md has no heading [1.2]\n")
    (releaser.path / "CHANGELOG.md").write_text("## [1.2] - 2024-01-01\n")
    assert releaser.refused() == (1, "release: there are changes that are not committed\n")
    releaser.commit()
    assert releaser.refused() == (1, "release: this commit is not tagged: git tag v1.2\n")
    releaser.git("tag", "--force", "v1.2")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/old").touch()
    refused = releaser.refused("--output", str(tmp_path / "dist"))
    assert refused == (1, f"release: {tmp_path}/dist is not empty\n")
    refused = releaser.refused("--output", str(tmp_path / "new"))
    assert refused == (1, "release: pyproject.toml has no [project.urls] with Source\n")
