"""The tests of what shows the storage have their files in memory, and belong to the unit lane."""

from tests.in_memory import tmp_path
from tests.programs import pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["pytest_runtest_setup", "pytest_runtest_teardown", "tmp_path"]
