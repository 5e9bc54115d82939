"""For minutes, mounts of a running broker's directory show the records that its consumers get.

Producers of every kind write to topics that the broker compacts and deletes from. Meanwhile the
test restarts the broker, by a clean stop or by SIGKILL. Threads read the mounts: they open files
by name, whole or from some record on, and keep other files open from the beginning.

These rules hold all the time:

- each name can be opened and read without an error. There is one exception: if the broker rewrites
  a file while it is open, a read may fail with ESTALE. Then the name leads to another file;
- a file that stays open shows each record once and in order. It shows no aborted records, unless
  the mount is read_uncommitted;
- the record of an offset never changes, and a file never shrinks.

When the producers have ended, the mounts show what consumers get. A file that stayed open has the
records of a consumer that read all the time. A newly opened file has the records that a consumer
reads from the beginning.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from storage import Record
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, as_record, consume, create_topics, delete_records, offsets
from tests.mount.mounting import Mount
from tests.view_text import TEXTS
from tests.waits import until

T = TypeVar("T")

# In less time, neither the cleaner nor the delayed deletion of files may have run.
LEAST_S = 45.0
# The cleaner's lag and the delay of file deletions, in topics whose open files must show all
# records. The threads read these files far more often.
PATIENCE_MS = 15_000
QUICK = "quick"
KINDS = ("plain", "idempotent", "one", "two")
SETTINGS: dict[str, object] = {
    "internal.segment.bytes": 30_000,
    "segment.index.bytes": 4096,
    "index.interval.bytes": 500,
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": PATIENCE_MS,
    "file.delete.delay.ms": PATIENCE_MS,
    "delete.retention.ms": 100,
}
TOPICS: dict[str, dict[str, object]] = {
    "kept": {**SETTINGS, "cleanup.policy": "delete"},
    "deleted": {**SETTINGS, "cleanup.policy": "delete", "retention.bytes": 200_000},
    "compacted": {**SETTINGS, "cleanup.policy": "compact"},
    "both": {**SETTINGS, "cleanup.policy": "compact,delete", "retention.bytes": 400_000},
    QUICK: {
        **SETTINGS,
        "cleanup.policy": "compact,delete",
        "retention.bytes": 200_000,
        "min.compaction.lag.ms": 0,
        "file.delete.delay.ms": PATIENCE_MS // 2,
        "internal.segment.bytes": 10_000,
    },
}
# In this topic the cleaner waits for nothing, and removes only aborted records: all keys differ.
UNIQUE = "unique"
TOPICS[UNIQUE] = {**TOPICS["compacted"], "min.compaction.lag.ms": 0}
ABORTED = b"aborted"
MOUNTS = {
    "committed": [],
    "uncommitted": ["isolation=read_uncommitted"],
    "watermark": ["until=high-watermark"],
    "remounted": ["until=high-watermark"],
}
# How often it is read from one start to the next.
READ_ONCE_MOUNTED = 30


class Judge:
    """Collects the faults and the counts of all threads."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        # How long a file that stays open was not read.
        self.longest_round_s = 0.0
        self.seed = random.SystemRandom().randrange(1 << 32)
        # Nobody writes any more; nobody follows any more either.
        self.over = threading.Event()
        self.quiet = threading.Event()

    def say(self, fault: str) -> None:
        self.faults.append(f"{time.strftime('%H:%M:%S')} {fault}")

    def thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Runs `work` until it ends; an exception is a fault."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.say(f"{name}: {error!r}")
                raise

        thread = threading.Thread(target=run, name=name)
        thread.start()
        return thread


class Writer:
    """One producer of one topic, until the judge is over, whatever becomes of the broker."""

    def __init__(self, judge: Judge, broker: Broker, topic: str, kind: str) -> None:
        self._judge = judge
        self._broker = broker
        self._topic = topic
        self._kind = kind
        self._random = random.Random(f"{judge.seed} {topic} {kind}")
        self._number = 0

    def run(self) -> None:
        while not self._judge.over.is_set():
            try:
                self._write(self._sender())
            except (KafkaException, AssertionError):
                # The broker was away for too long, or another one took over: create a new producer.
                self._judge.counts["producers that began anew"] += 1

    @property
    def _is_transactional(self) -> bool:
        return self._kind in ("one", "two")

    def _sender(self) -> Sender:
        config: dict[str, object] = {"enable_idempotence": self._kind != "plain"}
        if self._is_transactional:
            config["transactional_id"] = f"{self._topic} {self._kind}"
        return Sender(self._broker, **config)

    def _write(self, sender: Sender) -> None:
        while not self._judge.over.wait(0.05):
            if not self._is_transactional:
                sender.send(self._topic, self._records(b"plain"))
                continue
            commit = self._random.random() < 0.6
            with sender.transaction(commit=commit):
                for _ in range(self._random.randrange(1, 4)):
                    sender.send(self._topic, self._records(b"committed" if commit else ABORTED))
                    self._judge.over.wait(self._random.choice([0, 0.02, 0.3]))
        self._judge.counts["records written"] += self._number

    def _records(self, what: bytes) -> list[Record]:
        records = []
        for _ in range(self._random.randrange(1, 25)):
            self._number += 1
            value = b"%s %s %d " % (what, self._kind.encode(), self._number)
            value += b"." * self._random.randrange(100)
            number = self._number if self._topic == UNIQUE else self._random.randrange(40)
            key = b"key %s %d" % (self._kind.encode() if self._topic == UNIQUE else b"", number)
            records.append(Record(0, int(time.time() * 1000), 0, key, value))
        return records


class Consuming:
    """A consumer that reads all topics all the time, and its records by topic and offset."""

    def __init__(self, judge: Judge, broker: Broker, *, committed: bool) -> None:
        self.got: dict[str, dict[int, Record]] = {topic: {} for topic in TOPICS}
        self._judge = judge
        self.enough = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "soak",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 50,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in TOPICS])

    def run(self) -> None:
        while not self.enough.is_set():
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                record = as_record(message)
                self.got[str(message.topic())][record.offset] = record
        self._consumer.close()


def answer(ask: Callable[[], T]) -> T:
    """Return the broker's answer; try again until there is one.

    The broker refuses requests while it starts, and if it is too slow for its own controller. A
    request also fails if records are deleted while they are read.
    """
    answers: list[T] = []

    def is_answered() -> bool:
        with contextlib.suppress(KafkaException):
            answers.append(ask())
        return bool(answers)

    until(is_answered)
    return answers[0]


def last_events(mount: Mount) -> str:
    """Return the last two events of a mount."""
    return "; ".join(mount.events().splitlines()[-2:])


class Open:
    """A file that stays open, and what it has shown."""

    def __init__(self, judge: Judge, mount: Mount, path: str, name: str) -> None:
        self._judge = judge
        self._mount = mount
        self._name = name
        self.shown = bytearray()
        self.is_lost = False
        self._fd = os.open(mount / path, os.O_RDONLY)

    def read_on(self) -> None:
        """Read the bytes that are new since the last call, as `tail -f` does."""
        while not self.is_lost:
            try:
                size = os.fstat(self._fd).st_size
                if size < len(self.shown):
                    self._judge.say(f"{self._name}: {size} bytes, {len(self.shown)} were shown")
                    self.is_lost = True
                more = os.pread(self._fd, 1 << 18, len(self.shown))
            except OSError as error:
                said = last_events(self._mount)
                self._judge.say(f"{self._name}: {error!r} at {len(self.shown)} ({said})")
                self.is_lost = True
                return
            if not more:
                return
            self.shown += more

    def close(self) -> None:
        os.close(self._fd)


class Reading:
    """A mount and what is read of it: open files, and names."""

    def __init__(self, judge: Judge, mount: Mount, what: str) -> None:
        self._judge = judge
        self._mount = mount
        self._what = what
        self._committed = what != "uncommitted"
        self._random = random.Random(f"{judge.seed} {what}")
        self._lines: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self._sizes: dict[tuple[str, int], int] = {}
        # Shown records that their producer aborts. A killed broker may still commit them.
        self._doubtful: set[tuple[str, int]] = set()
        self.open = {
            (topic, view): Open(judge, mount, f"{topic}/{view}/0", f"open {what} {topic}/{view}")
            for topic in TOPICS
            for view in TEXTS
            if self._shows_all(topic)
        }

    def _shows_all(self, topic: str) -> bool:
        """Whether a file that stays open shows all that a consumer gets."""
        if self._what == "remounted" or topic == QUICK:
            return False
        # The cleaner removes its aborted records at once, perhaps before they are read.
        return self._committed or topic != UNIQUE

    def follow(self) -> None:
        """Until all has been seen: a cleaner removes what nobody has read for long."""
        began = time.monotonic()
        while not self._judge.quiet.wait(0.1):
            for file in self.open.values():
                file.read_on()
            began, before = time.monotonic(), began
            self._judge.longest_round_s = max(self._judge.longest_round_s, began - before)

    def look(self) -> None:
        while not self._judge.over.is_set():
            for _ in range(READ_ONCE_MOUNTED):
                self._look()
            if self._what == "remounted":
                self._mount.restart()
                self._judge.counts["remounts"] += 1

    def _look(self) -> None:
        topic = self._random.choice(list(TOPICS))
        try:
            self._random.choice([self._stat, self._stat, self._cat, self._range])(topic)
        except OSError as error:
            number = errno.errorcode[error.errno or 0]
            said = last_events(self._mount)
            self._judge.say(f"{self._what} {topic}: {number} {error.filename} ({said})")

    def _stat(self, topic: str) -> None:
        self._judge.counts["stats"] += 1
        for view in ("", ".kv", ".jsonl", ".batches", ".follow"):
            path = self._mount / topic / view / "0"
            found = path.stat()
            key = str(path), found.st_ino
            if found.st_size < self._sizes.get(key, 0):
                self._judge.say(f"{path}: {found.st_size} bytes after {self._sizes[key]}")
            self._sizes[key] = found.st_size

    def _cat(self, topic: str) -> None:
        """All of it; or the end of it where that is much."""
        self._judge.counts["reads of all"] += 1
        start = "" if topic not in ("kept", UNIQUE) else "@-500"
        self._check(topic, self._read(self._mount / topic / ".jsonl" / f"0{start}"))

    def _range(self, topic: str) -> None:
        self._judge.counts["reads of a part"] += 1
        known = list(self._lines[topic])
        first = self._random.choice(known) if known else 0
        name = self._random.choice(["0@-20", f"0@{first}..{first + 50}", "0@-5s"])
        self._check(topic, self._read(self._mount / topic / ".jsonl" / name))

    def _read(self, path: Path) -> bytes:
        """Return all bytes of a file.

        The broker removes segments that its cleaner has replaced at the next cleaning, and when it
        starts. If the mount has not looked in time, a file that was opened before fails with
        ESTALE. Then its name must lead to another file.
        """
        gone = None
        while True:
            with open(path, "rb", buffering=0) as file:
                inode = os.fstat(file.fileno()).st_ino
                try:
                    return file.readall() or b""
                except OSError as error:
                    if error.errno != errno.ESTALE or inode == gone:
                        raise
            gone = inode
            self._judge.counts["files that were rewritten while they were read"] += 1

    def _check(self, topic: str, text: bytes) -> None:
        known, last = self._lines[topic], -1
        for line in text.splitlines():
            record = json.loads(line)
            offset = record["offset"]
            if offset <= last:
                self._judge.say(f"{self._what} {topic}: offset {offset} after {last}")
            last = offset
            if known.setdefault(offset, line) != line:
                self._judge.say(f"{self._what} {topic}: {line!r} instead of {known[offset]!r}")
            if self._committed and record["value"].startswith(ABORTED.decode()):
                self._doubtful.add((topic, offset))

    # -- when nobody writes any more -----------------------------------------------------------

    def ended(self, got: dict[str, dict[int, Record]], broker: Broker) -> None:
        """All is what a consumer gets."""
        for topic, offset in sorted(self._doubtful):
            if offset not in got[topic]:
                self._judge.say(f"{self._what} {topic}: offset {offset} shown though aborted")
        for topic in TOPICS:
            different: list[Path] = []

            def same() -> bool:
                records = answer(lambda: consume(broker, topic, committed=self._committed))  # noqa: B023
                paths = {self._mount / topic / view / "0": view for view in TEXTS}  # noqa: B023
                different[:] = [  # noqa: B023
                    path for path, view in paths.items() if self._read(path) != TEXTS[view](records)
                ]
                return not different  # noqa: B023

            # The broker may be cleaning still.
            if not self._wait(same):
                names = ", ".join(map(str, different))
                self._judge.say(f"{names} of {self._what}: not what a consumer gets")

    def followed(self, got: dict[str, dict[int, Record]]) -> None:
        """Compare each open file with the records of a consumer that read all the time."""
        for (topic, view), file in self.open.items():
            expected = TEXTS[view](got[topic].values())
            self._wait(lambda: len(file.shown) >= len(expected) or file.is_lost)  # noqa: B023
            if file.shown != expected:
                self._judge.say(f"open {self._what} {topic}/{view}: {_difference(file, expected)}")

    def close(self) -> None:
        for file in self.open.values():
            file.close()

    @staticmethod
    def _wait(true: Callable[[], bool]) -> bool:
        try:
            until(true)
        except AssertionError:
            return False
        return True


def _difference(file: Open, expected: bytes) -> str:
    shown = bytes(file.shown).splitlines()
    wanted = expected.splitlines()
    missing = Counter(wanted) - Counter(shown)
    more = Counter(shown) - Counter(wanted)
    where = [number for number, line in enumerate(wanted) if line in missing]
    return (
        f"{len(shown)} lines, not {len(wanted)}: {missing.total()} are missing "
        f"{list(missing)[:3]} at {where[:1]} to {where[-1:]}, "
        f"{more.total()} too many {list(more)[:3]}"
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(
        tmp_path / "broker",
        log_flush_offset_checkpoint_interval_ms=500,
        replica_high_watermark_checkpoint_interval_ms=1000,
    )
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture
def mounts(broker: Broker, tmp_path: Path) -> Iterator[dict[str, Mount]]:
    """Beside the broker, which has its topics."""
    create_topics(broker, TOPICS)
    mounts = {}
    try:
        for what, options in MOUNTS.items():
            base = tmp_path / what
            base.mkdir()
            (base / "data").symlink_to(broker.data)
            mounts[what] = Mount(base, ["ro", *options])
            mounts[what].start()
            for topic in TOPICS:
                until((mounts[what] / topic / "0").exists)
        yield mounts
    finally:
        for mount in mounts.values():
            mount.end()


@pytest.mark.soak
def test_what_a_live_broker_does_is_shown(
    broker: Broker,
    mounts: dict[str, Mount],
    soak_s: float,
    figures: Callable[[str, object], None],
) -> None:
    judge = Judge()
    readings = {what: Reading(judge, mount, what) for what, mount in mounts.items()}
    consuming = {
        committed: Consuming(judge, broker, committed=committed) for committed in (True, False)
    }
    consumers = [judge.thread(each.run, "consumer") for each in consuming.values()]
    threads = [
        judge.thread(Writer(judge, broker, topic, kind).run, f"writer {topic} {kind}")
        for topic in TOPICS
        for kind in KINDS
    ]
    followers = [judge.thread(reading.follow, what) for what, reading in readings.items()]
    threads += [judge.thread(reading.look, what) for what, reading in readings.items()]
    try:
        # Deleted are only records of topics that the consumers have begun to read.
        until(lambda: all(each.got[topic] for each in consuming.values() for topic in TOPICS))
        _disturb(judge, broker, max(soak_s, LEAST_S))
    finally:
        judge.over.set()
        for thread in threads:
            thread.join()
        try:
            if not judge.faults:
                _ended(judge, broker, readings, consuming)
        finally:
            judge.quiet.set()
            for each in consuming.values():
                each.enough.set()
            for thread in [*followers, *consumers]:
                thread.join()
            for reading in readings.values():
                reading.close()
        figures("seed", judge.seed)
        for name, count in sorted(judge.counts.items()):
            figures(name, count)
        figures("seconds between two reads of an open file", round(judge.longest_round_s, 1))
        figures("records consumed", sum(len(got) for got in consuming[True].got.values()))
    assert not judge.faults, "\n".join(judge.faults[:40])


def _disturb(judge: Judge, broker: Broker, seconds: float) -> None:
    """Restart the broker, orderly or not, and delete records, until the time is over."""
    chance = random.Random(judge.seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not judge.faults:
        judge.over.wait(chance.uniform(0, 10))
        for topic in ("deleted", QUICK):
            start, stable = answer(lambda: offsets(broker, topic, committed=True))  # noqa: B023
            answer(lambda: delete_records(broker, topic, start + (stable - start) // 3))  # noqa: B023
            judge.counts["delete-records"] += 1
        judge.over.wait(chance.uniform(0, 10))
        if chance.random() < 0.7:
            kill = chance.random() < 0.6
            judge.counts["kills of the broker" if kill else "restarts of the broker"] += 1
            (broker.kill if kill else broker.stop)()
            broker.start()


def _is_decided(broker: Broker, topic: str) -> bool:
    """Whether no transaction is open."""
    return offsets(broker, topic, committed=True) == offsets(broker, topic)


def _ended(
    judge: Judge,
    broker: Broker,
    readings: dict[str, Reading],
    consuming: dict[bool, Consuming],
) -> None:
    """Wait until all transactions are over and consumers have got everything, and compare."""
    for topic in TOPICS:
        until(lambda: answer(lambda: _is_decided(broker, topic)))  # noqa: B023
        for committed, each in consuming.items():
            last = answer(lambda: consume(broker, topic, committed=committed))[-1:]  # noqa: B023
            until(lambda: all(record.offset in each.got[topic] for record in last))  # noqa: B023
    for what, reading in readings.items():
        reading.followed(consuming[what != "uncommitted"].got)
    for what, reading in readings.items():
        reading.ended(consuming[what != "uncommitted"].got, broker)
