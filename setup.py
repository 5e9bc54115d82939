"""Names the packages and builds the hot loops (Cython); all else is in pyproject.toml.

Bounds checks stay on: the loops work on plain pointers, which Cython never checks, and test
every length themselves. No -march, so that what is built on one machine runs on another.
"""

from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup

HOT_LOOPS = (
    "storage/waiting.pyx",
    "storage/record/_crc.pyx",
    "storage/record/_batch.pyx",
    "storage/record/_codec.pyx",
    "storage/record/_plain.pyx",
    "storage/record/_seek.pyx",
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
)


def extension(source: str) -> Extension:
    name = source.removesuffix(".pyx").replace("/", ".")
    return Extension(name, [source], include_dirs=["."], extra_compile_args=["-O3"])


# Spark looks for top-level packages whose names begin with "pyspark_".
SPARK_PACKAGE = "pyspark_kafkafs"
SPARK_PACKAGE_PATH = "kafkafs/spark/pyspark_kafkafs"

setup(
    packages=[
        *find_namespace_packages(
            include=["kafkafs", "kafkafs.*", "storage", "storage.*"],
            exclude=[SPARK_PACKAGE_PATH.replace("/", ".")],
        ),
        SPARK_PACKAGE,
    ],
    package_dir={SPARK_PACKAGE: SPARK_PACKAGE_PATH},
    ext_modules=cythonize(
        [extension(source) for source in HOT_LOOPS],
        build_dir="build/cython",
        include_path=["."],
        compiler_directives={"language_level": 3},
    ),
)
