"""A commit log in the on-disk format of Apache Kafka: a library of its own.

Each name is imported at its first use, so `storage.paths` or `storage.errors` alone load no log.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.directory.topics import Topic
    from storage.errors import StorageError
    from storage.log.append import Appended
    from storage.log.listener import LogListener
    from storage.log.log import Log
    from storage.manager import LogManager
    from storage.record.batch import Record, encode

__all__ = [
    "Appended",
    "Log",
    "LogListener",
    "LogManager",
    "Record",
    "StorageError",
    "Topic",
    "encode",
]

_MODULES = {
    "Appended": "storage.log.append",
    "Log": "storage.log.log",
    "LogListener": "storage.log.listener",
    "LogManager": "storage.manager",
    "Record": "storage.record.batch",
    "StorageError": "storage.errors",
    "Topic": "storage.directory.topics",
    "encode": "storage.record.batch",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
