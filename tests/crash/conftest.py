"""Crash tests make thousands of small directories, in memory: what is durable the simulated disk
knows by itself, so the real one does not matter.
"""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
