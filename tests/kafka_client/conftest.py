"""The tests of the client without a broker belong to the unit lane."""

from tests.programs import pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["pytest_runtest_setup", "pytest_runtest_teardown"]
