"""The `.lines` file: the line index of a segment in one view, or of the first part of it.

`BASE.lines` (for views other than `values`: `BASE.VIEW.lines`), beside the segment, or in a cache
directory where the data directory is read-only. A mount with a cache directory also reads a file
beside the segment, which another process may replace at any time. Little-endian:

    header   128 bytes: magic, version, granularity, base offset, bytes of log covered, bytes of
             text, records, count of entries, CRC-32C of the entries, CRC-32C of the 4 KiB of log
             before the end of what is covered, view name, CRC of outcomes, zeros, CRC-32C of all
             this
    entries  24 bytes each, as `views._measure` lays them out

The CRC of outcomes covers the producers and markers of the aborted transactions that begin before
the end of what is covered and have their marker after it. A power cut or a truncation may remove a
marker, and the opposite one may take its place. It is 0 if there are none.

Entries are only added, and the header is written after them, so a crash leaves an older index or
one whose CRC is wrong. Nothing is fsynced, since a lost index is measured again.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from kafkafs.views._measure import ENTRY_SIZE
from storage import paths
from storage.files import Files
from storage.record.crc import crc32c

CHECKED = 4096
"""Bytes of log before the end of what is covered: the header has their CRC."""

_MAGIC = b"KFSLINES"
_VERSION = 2
# magic, version, granularity, base, covered, text, records, count, entries' CRC, log's CRC, view,
# CRC of outcomes
_HEADER = struct.Struct("<8sIIqQQQQII24sI")
_HEADER_SIZE = 128


class Saved(NamedTuple):
    """The part of a log that a file covers: bytes of log and of text, records, entries.

    `count` 0: no file has the entries, because the disk refused them or they were lost.
    """

    covered: int = 0
    text_length: int = 0
    records: int = 0
    count: int = 0  # type: ignore[assignment]
    entries_crc: int = 0


def file_suffix(view: str) -> str:
    """The suffix of a view's files, after the base offset."""
    return paths.LINES if view == "values" else f".{view}{paths.LINES}"


def read_header(files: Files, path: str, view: str, base_offset: int) -> tuple[Saved, int, int]:
    """(what a view's file covers, the CRC of the log before that end, the CRC of outcomes).

    ValueError where it is damaged or another segment's; OSError where it cannot be read.
    """
    with files.held_open(path) as fd:
        data = files.pread(fd, _HEADER_SIZE, 0)
        length = files.size(fd)
    if len(data) < _HEADER_SIZE or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("damaged")
    magic, version, _, base, *totals, log_crc, name, outcomes = _HEADER.unpack_from(data)
    saved = Saved(*totals)
    if (
        (magic, version) != (_MAGIC, _VERSION)
        or (name.rstrip(b"\0").decode(), base) != (view, base_offset)
        or length < _HEADER_SIZE + saved.count * ENTRY_SIZE
    ):
        raise ValueError("not the index of this segment")
    return saved, log_crc, outcomes


def write(
    files: Files,
    path: str,
    view: str,
    base_offset: int,
    saved: Saved,
    *,
    entries: bytes,
    before: int,
    log_crc: int,
    outcomes: int,
    granularity: int,
) -> None:
    """Add `entries` after the first `before`, then write the header. OSError."""
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        granularity,
        base_offset,
        *saved,
        log_crc,
        view.encode(),
        outcomes,
    ).ljust(_HEADER_SIZE - 4, b"\0")
    with files.held_open(path, os.O_RDWR | os.O_CREAT) as fd:
        if not before:
            files.ftruncate(fd, 0)
        files.pwrite(fd, entries, _HEADER_SIZE + before * ENTRY_SIZE)
        files.pwrite(fd, header + crc32c(header).to_bytes(4, "little"), 0)


def invalidate(files: Files, path: str, *, creates: bool) -> None:
    """Let no later mount take the file. This one can read its entries. `creates`: if there is no
    file, make an invalid one. OSError.
    """
    with files.held_open(path, os.O_RDWR | (os.O_CREAT if creates else 0)) as fd:
        files.pwrite(fd, bytes(_HEADER_SIZE), 0)


def read_entries(files: Files, path: str, saved: Saved) -> bytes:
    """The entries of a file that covers `saved` or more. ValueError where they are damaged."""
    if not saved.count:
        raise ValueError("never saved")
    with files.held_open(path) as fd:
        entries = files.pread(fd, saved.count * ENTRY_SIZE, _HEADER_SIZE)
    if crc32c(entries) != saved.entries_crc:
        raise ValueError("damaged, or cut short")
    return entries
