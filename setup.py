"""Names the packages, builds the hot loops (Cython), and writes what an index shows of the project.

All else is in pyproject.toml. Bounds checks stay on: the loops work on plain pointers, which Cython
never checks, and test every length themselves. No -march, so that what is built on one machine runs
on another.

KAFKAFS_URL is where the source can be read: `scripts/release` sets it. It becomes the project's
URLs, and the README's links lead there.
"""

import atexit
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info

HOT_LOOPS = (
    "storage/waiting.pyx",
    "storage/record/_crc.pyx",
    "storage/record/_batch.pyx",
    "storage/record/_codec.pyx",
    "storage/record/_plain.pyx",
    "storage/record/_seek.pyx",
    "storage/record/columns/_predicate.pyx",
    "storage/record/columns/_columns.pyx",
    "storage/record/_stamp.pyx",
    "storage/record/_route.pyx",
    "storage/record/_census.pyx",
    "storage/record/columns/_rows.pyx",
    "storage/kafka07/_entries.pyx",
    "storage/index/_search.pyx",
    "storage/segment/first_read.pyx",
    "storage/compaction/_offset_map.pyx",
    "storage/compaction/_superseded.pyx",
    "storage/compaction/_keep.pyx",
    "kafkafs/views/_measure.pyx",
    "kafkafs/views/_render.pyx",
    "kafkafs/views/_whole.pyx",
    "kafkafs/views/_parse.pyx",
    "kafkafs/views/_json_lines.pyx",
    "kafkafs/views/_json_records.pyx",
    "kafkafs/views/_key_value.pyx",
    "kafkafs/dump/_dump.pyx",
    "kafkafs/schemas/_avro.pyx",
)


ROOT = Path(__file__).parent


def build_directory() -> Path:
    """Where all is built: `build`; in another user's tree a directory that goes at the end.

    What `sudo pip install .` left there would be root's, and in the way of what the user builds.
    """
    if os.geteuid() == ROOT.stat().st_uid:
        return Path("build")
    directory = tempfile.mkdtemp(prefix="kafkafs-build-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


BUILD = build_directory()
# Beside the sources the description of the package is the user's, too.
ELSEWHERE = {"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}}


def check_tools() -> None:
    """End with one line if something is missing that this, or pyfuse3, is compiled with.

    pyfuse3 comes as source only, and says the same with a traceback.
    """
    missing = []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        missing.append((f"a C compiler ({compiler})", "gcc libc6-dev"))
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        missing.append((f"{include}/Python.h", "python3-dev"))
    if shutil.which("pkg-config") is None:
        missing.append(("pkg-config, and libfuse 3", "pkg-config libfuse3-dev"))
    elif subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode != 0:
        missing.append(("the headers of libfuse 3", "libfuse3-dev"))
    if missing:
        things = ", ".join(thing for thing, _ in missing)
        packages = " ".join(package for _, package in missing)
        raise SystemExit(
            f"kafkafs: missing to build it: {things}; "
            f"on Debian and Ubuntu: apt-get install {packages}"
        )


class CheckedMetadata(dist_info):
    """The first that pip asks for: before it looks at what kafkafs depends on."""

    def run(self) -> None:
        check_tools()
        super().run()


class ParallelBuild(build_ext):
    """Compiles on all processors, and prints how far it is."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or len(os.sched_getaffinity(0))

    def run(self) -> None:
        check_tools()
        from Cython.Build import cythonize

        translated = cythonize(
            self.extensions,
            nthreads=self.parallel,
            build_dir=str(BUILD / "cython"),
            include_path=["."],
            compiler_directives={"language_level": 3},
            quiet=not self.verbose,
        )
        for extension, c in zip(self.extensions, translated, strict=True):
            assert extension.name == c.name
            extension.sources, extension.depends = c.sources, c.depends
        self._compiled = itertools.count(1)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        if self.verbose:
            count = f"[{next(self._compiled):2}/{len(self.extensions)}]"
            # In one write, as others write too.
            sys.stdout.write(f"{count} Compiled {ext.name}\n")
            sys.stdout.flush()


class BuildWithManualPages(build_py):
    """Makes the manual pages, too, which `man` finds beside the program."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # scripts/setup makes them where they are read
            return
        pages = BUILD / "man"
        shutil.rmtree(pages, ignore_errors=True)
        version = self.distribution.get_version()
        make = [sys.executable, "-B", "-m", "kafkafs.cli.man", str(pages), version]
        subprocess.run(make, cwd=ROOT, check=True)
        self.distribution.data_files = [
            (f"share/man/{section.name}", sorted(map(str, section.iterdir())))
            for section in sorted(pages.iterdir())
        ]


def extension(source: str) -> Extension:
    name = source.removesuffix(".pyx").replace("/", ".")
    return Extension(name, [source], include_dirs=["."], extra_compile_args=["-O3"])


def readme(url: str) -> str:
    """The README as an index shows it, which has none of the files that it links to."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({url}/blob/v{version[1]}/", text) if url else text


def project_urls(url: str) -> dict[str, str]:
    if not url:
        return {}
    return {
        "Source": url,
        "Documentation": f"{url}#readme",
        "Changelog": f"{url}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }


# Spark looks for top-level packages whose names begin with "pyspark_".
SPARK_PACKAGE = "pyspark_kafkafs"
SPARK_PACKAGE_PATH = "kafkafs/spark/pyspark_kafkafs"
URL = os.environ.get("KAFKAFS_URL", "").rstrip("/")

setup(
    packages=[
        *find_namespace_packages(
            include=["kafka_client", "kafkafs", "kafkafs.*", "storage", "storage.*"],
            exclude=[SPARK_PACKAGE_PATH.replace("/", ".")],
        ),
        SPARK_PACKAGE,
    ],
    package_dir={SPARK_PACKAGE: SPARK_PACKAGE_PATH},
    ext_modules=[extension(source) for source in HOT_LOOPS],
    # mount(8) and umount(8) look for these in /sbin.  pip gives its own scripts no -I.
    scripts=[
        "kafkafs/linux/mount.kafkafs",
        "kafkafs/linux/mount.fuse.kafkafs",
        "kafkafs/linux/umount.fuse.kafkafs",
    ],
    cmdclass={
        "build_ext": ParallelBuild,
        "build_py": BuildWithManualPages,
        "dist_info": CheckedMetadata,
    },
    options=ELSEWHERE if BUILD.is_absolute() else {},
    long_description=readme(URL),
    long_description_content_type="text/markdown",
    project_urls=project_urls(URL),
)
