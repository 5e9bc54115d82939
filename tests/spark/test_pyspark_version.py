"""A PySpark that is too old is refused with one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafkafs.spark.pyspark_version import LEAST

IMPORTS = ["kafkafs.spark.data_source", "kafkafs.spark.load"]
# PySpark itself is the installed one; kafkafs sees another version.
PROGRAM = """
import sys, pyspark
pyspark.__version__ = sys.argv[1]
try:
    __import__(sys.argv[2])
    print("imported")
except ImportError as error:
    print(error)
"""


JOB = """
import sys, pyspark
pyspark.__version__ = sys.argv[1]
from kafkafs.spark.jobs.session import CannotStartError, job_session
try:
    with job_session("job", None, {}, False):
        pass
except CannotStartError as error:
    print(error)
"""


def printed(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def imported(version: str, module: str) -> str:
    return printed(PROGRAM, version, module)


@pytest.mark.parametrize("module", IMPORTS)
def test_an_old_pyspark_is_refused(module: str) -> None:
    message = f"kafkafs needs PySpark {LEAST} or later; this is 4.0.1"
    assert imported("4.0.1", module) == message
    assert imported("4.1.0.dev2", module).endswith("this is 4.1.0.dev2")
    assert printed(JOB, "4.0.1") == message


@pytest.mark.parametrize("version", [f"{LEAST}.0", f"{LEAST}.0.dev1", "4.10.0", "5.0.0"])
def test_a_newer_one_is_not(version: str) -> None:
    assert imported(version, IMPORTS[0]) == "imported"
