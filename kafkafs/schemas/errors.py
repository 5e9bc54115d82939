"""The error of schemas."""

from __future__ import annotations

from storage.errors import StorageError


class SchemaError(StorageError):
    """A schema that is missing or malformed, or a value that does not match its schema.

    `position` counts the bytes of the value.
    """
