"""Builds what pyproject.toml cannot describe: the hot loops (Cython) and the manual pages.

Bounds checks stay on: the loops work on plain pointers, which Cython never checks, and test every
length themselves. No -march, so that what is built on one machine runs on another.
"""

import atexit
import itertools
import os
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

# What `sudo pip install .` left in another user's tree would be in the way of that user's builds.
BUILD, EGG_INFO = "build", "."
if os.geteuid() != os.stat(".").st_uid:
    BUILD = EGG_INFO = tempfile.mkdtemp(prefix="kafkafs-build-")
    atexit.register(shutil.rmtree, BUILD, ignore_errors=True)


def check_tools() -> None:
    """End with one line if kafkafs or pyfuse3, which has no wheel, cannot be compiled."""
    missing = []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        missing.append((f"a C compiler ({compiler})", "gcc libc6-dev"))
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        missing.append((header, "python3-dev"))
    if shutil.which("pkg-config") is None:
        missing.append(("pkg-config, and libfuse 3", "pkg-config libfuse3-dev"))
    elif subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode != 0:
        missing.append(("the headers of libfuse 3", "libfuse3-dev"))
    if missing:
        things, packages = zip(*missing, strict=True)
        raise SystemExit(
            f"kafkafs: missing to build it: {', '.join(things)}; "
            f"on Debian and Ubuntu: apt-get install {' '.join(packages)}"
        )


class CheckedTools(dist_info):
    """The first that pip asks for, before it downloads what kafkafs depends on."""

    def run(self) -> None:
        check_tools()
        super().run()


class ParallelBuild(build_ext):
    """Compiles on all processors, and prints how far it is."""

    def run(self) -> None:
        check_tools()
        from Cython.Build import cythonize

        self.parallel = self.parallel or len(os.sched_getaffinity(0))
        translated = cythonize(
            self.extensions,
            nthreads=self.parallel,
            build_dir=f"{BUILD}/cython",
            include_path=["."],
            compiler_directives={"language_level": 3},
            quiet=not self.verbose,
        )
        for extension, c in zip(self.extensions, translated, strict=True):
            extension.sources, extension.depends = c.sources, c.depends
        self._compiled = itertools.count(1)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        if self.verbose:
            count = f"[{next(self._compiled):2}/{len(self.extensions)}]"
            # In one write, as others write too.
            print(f"{count} Compiled {ext.name}\n", end="", flush=True)


class ManualPages(build_py):
    """Makes the manual pages, too, which `man` finds beside the program."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # scripts/setup makes them where they are read
            return
        pages = Path(BUILD, "man")
        shutil.rmtree(pages, ignore_errors=True)
        make = [sys.executable, "-B", "-m", "kafkafs.cli.man", pages]
        subprocess.run([*make, self.distribution.get_version()], check=True)
        self.distribution.data_files = [
            (f"share/man/{section.name}", sorted(map(str, section.iterdir())))
            for section in sorted(pages.iterdir())
        ]


LOOPS = [path for name in ("kafkafs", "storage") for path in sorted(Path(name).rglob("*.pyx"))]
PACKAGES = set(find_namespace_packages(include=["kafka_client*", "kafkafs*", "storage*"]))
# Debugging information would take a third of the compiler's time.
CFLAGS = ["-O3", "-g0"]
SPARK = "kafkafs.spark.pyspark_kafkafs"  # Spark looks for top-level packages `pyspark_…`
setup(
    packages=sorted(PACKAGES - {SPARK} | {"pyspark_kafkafs"}),
    package_dir={"pyspark_kafkafs": SPARK.replace(".", "/")},
    ext_modules=[
        Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=CFLAGS)
        for path in LOOPS
    ],
    include_dirs=["."],
    # mount(8) and umount(8) look for these in /sbin.  pip gives its own scripts no -I.
    scripts=sorted(map(str, Path("kafkafs/linux").glob("*mount.*"))),
    cmdclass={"build_ext": ParallelBuild, "build_py": ManualPages, "dist_info": CheckedTools},
    options={"build": {"build_base": BUILD}, "egg_info": {"egg_base": EGG_INFO}},
)
