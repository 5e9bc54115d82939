"""A broker's directory with a tiered topic (KIP-405), as the broker leaves it, without a broker.

``orders`` has two partitions of four segments with two records each.  The first two segments of
partition 0 are in remote storage only.  Around them lies what commands like to tidy up.  ``plain``
is an ordinary topic.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from storage import LogManager, Record, encode, paths
from storage.directory.checkpoints import CHECKPOINTS
from storage.files import Files
from storage.log.append import append_batches
from storage.state import checkpoint_file
from tests import metadata_log as made
from tests.metadata_log import TOPIC, MetadataLog

NOW_MS = 1_700_000_000_000
ITEMS = {("orders", 0), ("orders", 1)}
EPOCHS = [(0, 0), (3, 3), (5, 6)]
FIRST = 4
"""The first offset of ``orders-0`` that lies here."""
VALUES = b"".join(b"%d\n" % n for n in range(FIRST, 8))
LITTER = {
    "00000000000000000002.log.deleted": b"a segment",
    "00000000000000000006.log.9.cut": b"what a crash has left",
    "00000000000000000006.index.bad": b"rubbish",
    "query-1-2-3.staged": b"batches",
    "00000000000000000004.lines": b"a line index",
    "kafkafs.unsynced": b"",
}


def make(data: Path, *, is_set: bool = True, **settings: str) -> State:
    """Make the directory; return its `state`.

    ``is_set``: the metadata log says that ``orders`` is tiered; else it says nothing.
    ``settings``: more that is set on ``orders`` there, with ``_`` for ``.``.
    """
    data.mkdir(exist_ok=True)
    ids: dict[str, str] = {}
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        for name, count in (("orders", 2), ("plain", 1)):
            topic = manager.create_topic(name, count)
            ids[name] = topic.id
            for log in topic.partitions.values():
                for first in range(0, 8, 2):
                    records = [
                        Record(n, NOW_MS - 1000 + n, 0, b"k", b"%d" % n) for n in (first, first + 1)
                    ]
                    batch = bytearray(encode(records, base_offset=first))
                    append_batches(log, batch, now_ns=NOW_MS * 1_000_000)
                    if first < 6:
                        log.roll(NOW_MS)
    for path in [*data.glob("*/kafkafs.*"), *data.glob("*/*.lines"), *data.glob("kafkafs.*")]:
        path.unlink()
    for path in [*data.glob("orders-0/*0.*"), *data.glob("orders-0/*2.*")]:
        path.unlink()
    files = Files()
    for number, epochs in enumerate((EPOCHS, [(0, 0)])):
        file = str(data / f"orders-{number}" / paths.LEADER_EPOCH_CHECKPOINT)
        checkpoint_file.write_epochs(files, file, epochs)
    starts = {("orders", 0): 0, ("orders", 1): 0}
    checkpoint_file.write_offsets(files, str(data / paths.LOG_STARTS), starts)
    cleaned = {("orders", 0): 6, ("plain", 0): 2}
    checkpoint_file.write_offsets(files, str(data / paths.CLEANER_OFFSETS), cleaned)
    for name, content in LITTER.items():
        (data / "orders-0" / name).write_bytes(content)
        os.utime(data / "orders-0" / name, (1, 1))
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n")
    if is_set:
        metadata = MetadataLog(data)
        given = {"remote.storage.enable": "true"}
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        metadata.append(*(made.topic(name, topic_id) for name, topic_id in ids.items()))
        metadata.append(
            *(made.config(TOPIC, "orders", name, value) for name, value in given.items())
        )
    return state(data)


def crash(data: Path) -> None:
    """The broker was killed in the middle of an append to each partition."""
    (data / paths.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    for path in [*data.glob("*-[01]/*6.log")]:
        with open(path, "ab") as file:
            file.write(bytes(61) + b"torn")


State = dict[str, object]


def state(data: Path) -> State:
    """All that must stay: the files of ``orders``, and its lines in the checkpoints."""
    found: State = {}
    for number in (0, 1):
        directory = data / f"orders-{number}"
        found[directory.name] = _mode(directory)
        for path in sorted(directory.iterdir()):
            found[f"{directory.name}/{path.name}"] = _mode(path), path.read_bytes()
    for name in CHECKPOINTS:
        lines = checkpoint_file.read_offsets(Files(), str(data / name))
        found[name] = {item: offset for item, offset in lines.items() if item in ITEMS}
    return found


def _mode(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
