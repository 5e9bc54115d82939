"""Why a dump ends before its last file."""

from __future__ import annotations


class DumpError(Exception):
    """One line: the file, what is wrong, and where. What was printed before it stands."""
