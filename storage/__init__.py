"""A commit log in the on-disk format of Apache Kafka: a library of its own."""

from storage.directory.manager import LogManager, Topic
from storage.errors import StorageError
from storage.log.listener import LogListener
from storage.log.log import Appended, Log
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
