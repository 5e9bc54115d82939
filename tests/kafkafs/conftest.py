"""The tests of what shows the storage have their files in memory."""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
