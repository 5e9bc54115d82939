"""The error that ends a dump before its last file."""

from __future__ import annotations


class DumpError(Exception):
    """One line: the file, what is wrong, and where. Earlier output stays."""
