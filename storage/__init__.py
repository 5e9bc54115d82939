"""A commit log in the on-disk format of Apache Kafka: a library of its own."""

from storage.errors import StorageError
from storage.listener import LogListener
from storage.log import Appended, Log
from storage.manager import LogManager, Topic
from storage.read import EARLIEST, LATEST, MAX_TIMESTAMP
from storage.record.batch import Record, encode

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Appended",
    "Log",
    "LogListener",
    "LogManager",
    "Record",
    "StorageError",
    "Topic",
    "encode",
]
