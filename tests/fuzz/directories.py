"""Whole data directories of any content: opened, shown, recovered and written to.

A target makes the files of a directory from its bytes. Opening it either raises a StorageError or
succeeds. Then the records before the first damage can be read. If it is opened for writing, a
record can be appended. After a clean stop, the directory has the same records.

Layout of the bytes: one byte whose lowest bit says whether logs and snapshots get right checksums;
then for each file its kind (index into `NAMES`), its length (u16) and its content. The content of
the last file may be shorter than its length.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafkafs.mount_options import MountOptions
from storage import Log, LogManager
from storage.errors import StorageError
from storage.log.read import plain_batches
from storage.record.batch import decode_plain
from storage.record.crc import crc32c
from tests.fuzz.targets import Target, with_right_crcs, with_right_crcs_07
from tests.kafkafs.trees import Tree
from tests.log_check import check, check_log
from tests.storage.logs import append, values

SECOND = 5
"""Base offset of the second segment."""
NAMES = (
    f"t-0/{0:020}.log",
    f"t-0/{0:020}.index",
    f"t-0/{0:020}.timeindex",
    f"t-0/{0:020}.txnindex",
    f"t-0/{0:020}.snapshot",
    f"t-0/{SECOND:020}.log",
    f"t-0/{SECOND:020}.index",
    f"t-0/{SECOND:020}.timeindex",
    f"t-0/{SECOND:020}.txnindex",
    f"t-0/{SECOND:020}.snapshot",
    f"t-0/{SECOND:020}.log.swap",
    f"t-0/{0:020}.log.cleaned",
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    "t-0/kafkafs.history",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
    "kafkafs.properties",
    "t-0/kafkafs-topic.properties",
    f"t-0/{0:020}.kafka",
    f"t-0/{SECOND:020}.kafka",
)

DIRECTORIES: dict[str, Target] = {}


def pack(files: Mapping[str, bytes], *, right: bool = False) -> bytes:
    """The bytes of a directory with these files."""
    return bytes([right]) + b"".join(
        bytes([NAMES.index(name)]) + len(data).to_bytes(2, "big") + data
        for name, data in files.items()
    )


def unpack(data: bytes) -> dict[str, bytes]:
    """The files, as they are to be written."""
    files: dict[str, bytes] = {}
    at = 1
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
        files[NAMES[data[at] % len(NAMES)]] = data[at + 3 : end]
        at = end
    if data and data[0] & 1:
        files = {name: _with_right_checksums(name, content) for name, content in files.items()}
    return files


def _with_right_checksums(name: str, content: bytes) -> bytes:
    if ".log" in name:
        return with_right_crcs(content)
    if name.endswith(".kafka"):
        return with_right_crcs_07(content)
    if name.endswith(".snapshot") and len(content) > 6:
        return content[:2] + struct.pack(">I", crc32c(content[6:])) + content[6:]
    return content


@contextlib.contextmanager
def directory_of(data: bytes) -> Iterator[Path]:
    """In memory, where the system has room for files there."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    path = Path(tempfile.mkdtemp(prefix="kafkafs-fuzz-", dir=place))
    try:
        (path / "data" / "t-0").mkdir(parents=True)
        for name, content in unpack(data).items():
            (path / "data" / name).write_bytes(content)
        yield path
    finally:
        shutil.rmtree(path)


def directory(target: Target) -> Target:
    DIRECTORIES[target.__name__] = target
    return target


def _look(log: Log) -> None:
    """All that can be asked of a log."""
    for isolation in ("read_committed", "read_uncommitted"):
        with contextlib.suppress(StorageError):
            for record in log.records(isolation=isolation):
                assert log.log_start_offset <= record.offset < log.log_end_offset
    for offset in (log.log_start_offset, SECOND, log.log_end_offset):
        with contextlib.suppress(StorageError):
            log.read(offset, 100)
    for time in (-1, 0, 10**12):
        with contextlib.suppress(StorageError):
            log.reader.offset_for_timestamp(time)
    with contextlib.suppress(StorageError):
        assert log.history.nonce >= 0
    check_log(log)


@directory
def opened_for_reading(data: bytes) -> None:
    with directory_of(data) as path:
        before = sorted(path.rglob("*"))
        with (
            contextlib.suppress(StorageError),
            LogManager.open(str(path / "data"), read_only=True) as manager,
        ):
            for log in manager.logs():
                _look(log)
        assert sorted(path.rglob("*")) == before


@directory
def opened_for_writing(data: bytes) -> None:
    with directory_of(data) as path:
        data_dir = path / "data"
        # Settings may ask for anything; a small segment and no waiting is enough here.
        (data_dir / "t-0" / "kafkafs-topic.properties").unlink(missing_ok=True)
        (data_dir / "kafkafs.properties").write_bytes(b"")
        unclean = not (data_dir / ".kafka_cleanshutdown").exists()
        recovered = not (data_dir / "recovery-point-offset-checkpoint").exists()
        try:
            manager = LogManager.open(str(data_dir))
        except StorageError:
            return
        with manager:
            log = manager.log("t", 0)
            _look(log)
            if unclean and recovered and not manager.faults:
                assert check(manager) == []
            try:
                shown = values(log)
            except StorageError:
                shown = None
            before = log.log_end_offset
            try:
                assert append(log, b"another") == before
            except StorageError:
                return
            except OSError:
                # Flushed records are lost: their offsets are not used again.
                assert log.lost_end
                return
            assert log.log_end_offset == before + 1
        with LogManager.open(str(data_dir)) as manager:
            log = manager.log("t", 0)
            assert log.log_end_offset == before + 1
            if shown is not None and log.last_stable_offset == log.log_end_offset:
                assert values(log)[-1:] == [b"another"]


@directory
def shown(data: bytes) -> None:
    """As the mount shows it, without a kernel: sizes are what reading gives."""
    with directory_of(data) as path:
        os.environ["XDG_CACHE_HOME"] = str(path / "cache")
        try:
            tree = Tree(path / "data", MountOptions(read_only=True))
        except StorageError:
            return
        try:
            _look_at(tree)
        finally:
            tree.manager.abandon()


def _text(log: Log) -> bytes | None:
    """Return the text of a log in the values view; None if the log is damaged."""
    if any(".log:" in fault for fault in check_log(log)):
        return None
    text = b""
    try:
        for segment in log.segments:
            for made, header in plain_batches(segment, 0, segment.stable_size):
                if header.is_control or (
                    header.is_transactional
                    and log.transactions.is_aborted(header.producer_id, header.base_offset)
                ):
                    continue
                for record in decode_plain(made):
                    text += (record.value or b"") + b"\n"
    except StorageError:
        return None
    return text


def _look_at(tree: Tree) -> None:
    log = tree.log()
    whole = log.log_start_offset == log.segments[0].base_offset
    expected = _text(log) if whole else None
    for name in ("t/0", "t/.meta/0/offsets", "t/.meta/0/segments", "t/.meta/0/index"):
        try:
            node = tree.node(name)
            size = tree.attributes(node).size
            text = b""
            # Reads return the bytes before a damage; the read at the damage fails.
            while part := tree.read(node, len(text), 1 << 22):
                text += part
        except (StorageError, FileNotFoundError):
            continue
        assert len(text) == size
        if name == "t/0" and expected is not None:
            assert text == expected
