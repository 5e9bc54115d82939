"""A mirror of three brokers is killed again and again, brokers are killed, and leaders move.

Producers with every codec, an idempotent one and transactional ones write to a topic that is kept,
to one with a short retention whose records are deleted on request, too, and to one that the brokers
compact. Meanwhile three threads disturb, until each of COUNTS is reached:

- `kafkafs mirror` runs as a process, and is killed by SIGKILL at any moment. It may stay away while
  the brokers compact, so the copy of the compacted topic has holes;
- brokers are killed by SIGKILL, one at a time, and started again;
- leaders are moved to other brokers.

At the end, the producers stop, one transaction stays open, and `kafkafs mirror --once` copies the
rest. The copy has to be equal to the directory of the leader, and has to have all records of a
consumer that has read all the time. No record may be missing without a name.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import NewTopic

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import ClientError
from kafka_client.properties import ClientSettings
from kafka_client.requests import LATEST, Offset, list_offsets
from storage import Record, paths
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.index.txn_index import decode as txn_entries
from storage.log.log import Log
from storage.manager import LogManager
from storage.record.batch import decode
from storage.record.header import BatchHeader, parse_header
from storage.state import checkpoint_file, mirror_file
from storage.verify.verify import verify
from tests.fork_server import KAFKAFS
from tests.interop import clients
from tests.interop.brokers import Member
from tests.interop.clients import Sender, as_record
from tests.interop.kafka_tools import POM_4_3
from tests.interop.workload import CODECS, OPEN_MS
from tests.soak.test_live_broker import Judge, answer
from tests.waits import HANG_S, until

COUNTS = {"kills of the mirror": 50, "kills of a broker": 50, "leaders that have moved": 20}
#: The percentage of offsets without a record in the copy of the compacted topic.
LEAST_HOLES = 30
PREFERRED = 0
KEPT, SHORT, COMPACTED = "kept", "short", "compacted"
SETTINGS: dict[str, object] = {
    "min.insync.replicas": 2,
    "internal.segment.bytes": 50_000,
    "segment.index.bytes": 4096,
    "index.interval.bytes": 500,
    "file.delete.delay.ms": 1000,
}
TOPICS: dict[str, dict[str, object]] = {
    KEPT: SETTINGS,
    SHORT: {**SETTINGS, "retention.ms": 10_000, "segment.ms": 2000},
    COMPACTED: {
        **SETTINGS,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.01,
        "delete.retention.ms": 60_000,
    },
}
#: The gaps that may be named. Of all other records, a copy is complete.
NAMED: Mapping[str, tuple[str, ...]] = {
    KEPT: (),
    SHORT: ("deleted", "aborted"),
    COMPACTED: ("tombstones", "aborted"),
}
KINDS = (*CODECS, "idempotent", "one", "two", "long")
TRANSACTIONAL = ("one", "two", "long")
ABORTED = b"aborted"
KEYS = 60


class Writer:
    """A producer, until the judge is over. After an error, another one of its kind begins."""

    def __init__(self, judge: Judge, members: list[Member], kind: str) -> None:
        self._judge = judge
        self._members = members
        self._kind = kind
        self._random = random.Random(f"{judge.seed} {kind}")
        self._number = 0

    def run(self) -> None:
        while not self._judge.over.is_set():
            try:
                self._write(self._sender())
            except (KafkaException, AssertionError, SystemError):
                # SystemError: after a fatal error, this client still calls `Sender.delivered`.
                self._judge.counts["producers that began again"] += 1
        if self._kind in TRANSACTIONAL:
            # It aborts a transaction that was left open.
            answer(self._sender)
        self._judge.counts["records written"] += self._number

    def _sender(self) -> Sender:
        config: dict[str, object] = {"enable_idempotence": self._kind == "idempotent"}
        if self._kind in TRANSACTIONAL:
            config = {"transactional_id": self._kind}
        codec = self._kind if self._kind in CODECS else self._random.choice(CODECS)
        return sender(self._members, compression_type=codec, **config)

    def _write(self, producer: Sender) -> None:
        while not self._judge.over.wait(self._random.uniform(0, 0.3)):
            if self._kind not in TRANSACTIONAL:
                producer.send(self._topic(), self._records(b"plain"))
                continue
            commit = self._random.random() < 0.6
            with producer.transaction(commit=commit):
                for _ in range(self._random.randrange(1, 5)):
                    producer.send(self._topic(), self._records(b"committed" if commit else ABORTED))
                if self._kind == "long":
                    self._judge.over.wait(self._random.uniform(2, 12))
            self._judge.counts["transactions " + ("committed" if commit else "aborted")] += 1

    def _topic(self) -> str:
        return self._random.choice(list(TOPICS))

    def _records(self, word: bytes) -> list[Record]:
        records = []
        for _ in range(self._random.randrange(1, 30)):
            self._number += 1
            value = b"%s %s %d " % (word, self._kind.encode(), self._number)
            value += b"." * self._random.randrange(200)
            is_tombstone = word != ABORTED and self._random.random() < 0.05
            key = b"key %d" % self._random.randrange(KEYS)
            now_ms = time.time_ns() // 1_000_000
            records.append(Record(0, now_ms, 0, key, None if is_tombstone else value))
        return records


def sender(members: list[Member], **config: object) -> Sender:
    """One that any broker leads to the others."""
    brokers = addresses_of(members)
    return Sender(members[0], bootstrap_servers=brokers, reconnect_backoff_max_ms=1000, **config)


class Witness:
    """The records that a consumer has got that has read all the time, by offset."""

    def __init__(self, judge: Judge, brokers: str) -> None:
        self.got: dict[str, dict[int, Record]] = {topic: {} for topic in TOPICS}
        self.enough = threading.Event()
        self._judge = judge
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "witness",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 2,
            }
        )
        self._consumer.assign([Place(topic, 0, OFFSET_BEGINNING) for topic in TOPICS])

    def run(self) -> None:
        while not self.enough.is_set():
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                topic, record = str(message.topic()), as_record(message)
                if self.got[topic].setdefault(record.offset, record) != record:
                    self._judge.say(f"{topic}: a consumer got two records at {record.offset}")
        self._consumer.close()


class Mirroring:
    """Runs `kafkafs mirror`, and kills it."""

    def __init__(self, judge: Judge, brokers: str, data: Path) -> None:
        self._judge = judge
        self._random = random.Random(f"{judge.seed} mirror")
        self.data = data
        self._command = ["mirror", f"kafka://{brokers}", str(data), *TOPICS]
        self.said = data.with_suffix(".said")

    def run(self) -> None:
        before = 0
        while not self._judge.over.is_set():
            with self.said.open("ab") as said:
                process = subprocess.Popen([*KAFKAFS, *self._command], stdout=said, stderr=said)
            self._judge.over.wait(self._random.choice([0.5, 2, 8, 25]) * self._random.random())
            if process.poll() is not None:
                self._judge.say(f"the mirror ended: {process.returncode}: {self.tail()}")
            process.kill()
            process.wait(HANG_S)
            self._judge.counts["kills of the mirror"] += 1
            size = sum(path.stat().st_size for path in self.data.glob("*/*.log"))
            self._judge.counts["kills of a mirror that had copied"] += size > before
            before = size
            self._judge.over.wait(self._random.choice([0, 2, 60]) * self._random.random())

    def copy_rest(self) -> int:
        """Run `kafkafs mirror --once`; return its exit status."""
        with self.said.open("ab") as said:
            command = [*KAFKAFS, *self._command, "--once"]
            return subprocess.run(
                command, stdout=said, stderr=said, check=False, timeout=HANG_S
            ).returncode

    def tail(self) -> str:
        return "; ".join(self.said.read_text().splitlines()[-10:])


class Moving:
    """Changes the order of the replicas, and elects the preferred leaders.

    No replica is removed. Kafka 4.3 leaves a removed one among the eligible leaders (KIP-966). If
    it is added again, it may be elected with an empty log: the cluster then loses all records.
    """

    def __init__(self, judge: Judge, members: list[Member]) -> None:
        self._judge = judge
        self._members = members
        self._random = random.Random(f"{judge.seed} moves")

    def run(self) -> None:
        with cluster_of(self._members) as cluster:
            while not self._judge.over.wait(self._random.uniform(0, 4)):
                self._move(cluster)
            until(lambda: is_whole(cluster))

    def _move(self, cluster: Cluster) -> None:
        """Try once, as a broker may be down."""
        command = [
            sys.executable,
            "-m",
            "tests.soak.test_mirror_storm",
            addresses_of(self._members),
        ]
        with contextlib.suppress(ClientError, KeyError):
            before = leaders(cluster)
            for topic in TOPICS:
                others = [each.node for each in self._members if each.node != before[topic]]
                self._random.shuffle(others)
                nodes = [*others, before[topic]] if before[topic] > 0 else others
                command.append(f"{topic}={','.join(map(str, nodes))}")
            done = subprocess.run(command, capture_output=True, check=False, timeout=HANG_S)
            self._judge.counts["reassignments"] += done.returncode == 0
            after = leaders(cluster)
            moved = sum(before[topic] != after[topic] for topic in TOPICS)
            self._judge.counts["leaders that have moved"] += moved


def main(brokers: str, *wanted: str) -> None:
    """Give topics replicas, TOPIC=NODE,..., and make the first one the leader.

    A process of its own: this client leaves sockets open if a broker is down.
    """
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as Reassigned

    replicas = {
        topic: nodes.split(",") for topic, _, nodes in (each.partition("=") for each in wanted)
    }
    admin = KafkaAdminClient(bootstrap_servers=brokers.split(","), request_timeout_ms=10_000)
    refused = admin.alter_partition_reassignments(
        {Reassigned(topic, 0): [*map(int, nodes)] for topic, nodes in replicas.items()}
    )
    assert not any(refused.values()), refused
    admin.elect_leaders(PREFERRED, {topic: [0] for topic in replicas}, raise_errors=False)


def cluster_of(members: list[Member]) -> Cluster:
    return Cluster(parse_brokers(addresses_of(members)), ClientSettings())


def addresses_of(members: list[Member]) -> str:
    return ",".join(member.address for member in members)


def leaders(cluster: Cluster) -> dict[str, int]:
    """The nodes of the leaders; -1 for none."""
    found = cluster.refresh(TOPICS).topics
    return {topic: found[topic].partitions[0].leader for topic in TOPICS}


def is_whole(cluster: Cluster) -> bool:
    """Whether each partition has a leader and three replicas, all in sync."""
    try:
        found = [each.partitions[0] for each in cluster.refresh(TOPICS).topics.values()]
    except (ClientError, KeyError):
        return False
    return all(len(each.replicas) == len(each.isr) == 3 and each.leader > 0 for each in found)


class OldMember(Member):
    pom = POM_4_3


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    settings = {
        "transaction_state_log_replication_factor": 3,
        "transaction_state_log_min_isr": 2,
        "offsets_topic_replication_factor": 3,
        "unclean_leader_election_enable": "false",
    }
    first = OldMember(tmp_path / "1", 1, None, **settings)
    members: list[Member] = [first]
    members += (OldMember(tmp_path / f"{n}", n, first, **settings) for n in (2, 3))
    try:
        for member in members:
            member.start()
        new = [
            NewTopic(topic, 1, 3, config={name: str(value) for name, value in each.items()})
            for topic, each in TOPICS.items()
        ]
        admin = clients.admin(first)
        for done in admin.create_topics(new).values():
            done.result(HANG_S)
        yield members
    finally:
        for member in members:
            member.kill()


@pytest.mark.soak
def test_no_record_is_missing_without_a_name(
    members: list[Member],
    tmp_path: Path,
    figures: Callable[[str, object], None],
) -> None:
    judge = Judge()
    brokers = addresses_of(members)
    mirroring = Mirroring(judge, brokers, tmp_path / "copy")
    witness = Witness(judge, brokers)
    watching = judge.thread(witness.run, "witness")
    threads = [
        judge.thread(mirroring.run, "mirror"),
        judge.thread(Moving(judge, members).run, "moves"),
        *(judge.thread(Writer(judge, members, kind).run, kind) for kind in KINDS),
    ]
    try:
        _disturb(judge, members)
    finally:
        judge.over.set()
        for thread in threads:
            thread.join()
        try:
            if not judge.faults:
                _ended(judge, members, mirroring, witness)
        finally:
            witness.enough.set()
            watching.join()
        figures("seed", judge.seed)
        for name, count in sorted(judge.counts.items()):
            figures(name, count)
        figures("records consumed", sum(map(len, witness.got.values())))
    assert not judge.faults, "\n".join([*judge.faults[:40], mirroring.tail()])


def _disturb(judge: Judge, members: list[Member]) -> None:
    """Kill brokers and delete records, until all has been done as often as it has to be.

    On the thread of the test: a broker ends with the thread that has started it.
    """
    draw = random.Random(judge.seed)
    while not judge.faults and any(judge.counts[name] < count for name, count in COUNTS.items()):
        judge.over.wait(draw.uniform(0, 3))
        with contextlib.suppress(KafkaException):
            start, stable = clients.offsets(members[0], SHORT, committed=True)
            part = draw.choice([0.3, 1])
            clients.delete_records(members[0], SHORT, start + int((stable - start) * part))
            judge.counts["delete-records"] += 1
        member = draw.choice(members)
        judge.counts["deletions by retention"] += sum(
            "due to log retention time" in line for line in member.server.lines
        )
        member.kill()
        judge.counts["kills of a broker"] += 1
        judge.over.wait(draw.uniform(0, 4))
        member.start()


def _ended(judge: Judge, members: list[Member], mirroring: Mirroring, witness: Witness) -> None:
    """Copy the rest, and compare."""
    broker = members[0]
    for topic in TOPICS:
        until(lambda: answer(lambda: _is_decided(broker, topic)))  # noqa: B023
    state = answer(lambda: clients.consume(broker, COMPACTED, committed=True))
    decided = state[-1].offset
    last = sender(members, transactional_id="last", transaction_timeout_ms=OPEN_MS)
    last.producer.begin_transaction()
    for topic in TOPICS:
        for producer, text in ((last, b"open"), (sender(members), b"after")):
            producer.send(topic, [Record(0, time.time_ns() // 1_000_000, 0, text, text)])
        _, end = answer(lambda: clients.offsets(broker, topic))  # noqa: B023
        until(lambda: end - 1 in witness.got[topic])  # noqa: B023
    status = mirroring.copy_rest()
    if status not in (0, 1):
        judge.say(f"mirror --once: exit status {status}: {mirroring.tail()}")
    partitions = [TopicPartition(topic, 0) for topic in TOPICS]
    with cluster_of(members) as cluster:
        is_leader = leaders(cluster)
        ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        stable = list_offsets(cluster, dict.fromkeys(partitions, LATEST), committed=True)
    # A cleaner that is killed may leave old and new segments.
    clients.set_topic(broker, COMPACTED, cleanup_policy="delete")
    directories = {topic: members[is_leader[topic] - 1].partition(topic) for topic in TOPICS}
    until(lambda: not [*directories[COMPACTED].glob("*.log.*")])
    for member in members:
        member.kill()
    cleaned: dict[tuple[str, int], int] = {}
    for member in members:
        path = member.data / paths.CLEANER_OFFSETS
        for each, at in checkpoint_file.read_offsets(Files(str(member.data)), str(path)).items():
            cleaned[each] = max(at, cleaned.get(each, 0))
    judge.counts["offsets cleaned"] = cleaned.get((COMPACTED, 0), 0)
    copy = mirroring.data
    _check_copy(judge, copy)
    with LogManager.open(str(copy), read_only=True) as manager:
        for partition in partitions:
            topic = partition.topic
            log = manager.log(topic, 0)
            found = Compared(judge, log, directories[topic], cleaned.get((topic, 0), 0))
            found.bounds(offset(ends[partition]), offset(stable[partition]))
            found.names()
            found.batches()
            found.aborted()
            found.consumed(witness.got[topic])
            judge.counts[f"gaps of {topic}"] += len(log.gaps)
            judge.counts[f"batches of {topic}"] += len(found.ours)
            judge.counts[f"equal batches of {topic}"] += found.equal
            judge.counts[f"% of holes in {topic}"] = int(100 * found.holes)
        _same_state(judge, manager.log(COMPACTED, 0), state, decided)
    if judge.counts[f"% of holes in {COMPACTED}"] < LEAST_HOLES:
        judge.say("too few holes: the cleaners did not run while the mirror was away")
    if not judge.counts["deletions by retention"]:
        judge.say("retention has deleted nothing")


def _check_copy(judge: Judge, copy: Path) -> None:
    """Check the copy by itself."""
    for fault in verify(str(copy)).faults:
        judge.say(f"verify: {fault}")
    status_file = mirror_file.read(Files(str(copy)), str(copy))
    assert status_file is not None
    for place, copied in status_file.partitions.items():
        if copied.state != "ok":
            judge.say(f"{place}: {copied.state} {copied.reason}")


def offset(found: Offset | ClientError) -> int:
    assert isinstance(found, Offset), found
    return found.offset


def _is_decided(broker: Member, topic: str) -> bool:
    """Whether no transaction is open."""
    return clients.offsets(broker, topic, committed=True) == clients.offsets(broker, topic)


class Compared:
    """A copy and the directory of its leader."""

    def __init__(self, judge: Judge, log: Log, theirs: Path, cleaned: int) -> None:
        """`cleaned`: a cleaner of some broker may have removed records below this offset."""
        self._judge = judge
        self._log = log
        self._theirs_at = theirs
        self._cleaned = cleaned
        self.ours = stored_batches(Path(log.directory))
        self._theirs = stored_batches(theirs)
        self._records = records_of(self.ours)
        # Those that the mirror has written.
        self._markers = {gap.first for gap in log.gaps if gap.kind == "aborted"}
        # Retention deletes whole segments of the leader.
        self._first = min(self._theirs, default=log.log_end_offset)
        self._named = {
            at
            for gap in log.gaps
            if gap.kind in ("deleted", "missing", "damaged")
            for at in range(gap.first, gap.last + 1)
        }
        self.equal = 0

    def _say(self, fault: str) -> None:
        self._judge.say(f"{self._log.topic}: {fault}")

    def bounds(self, end: int, stable: int) -> None:
        ours = self._log.log_end_offset, self._log.last_stable_offset
        if ours != (end, stable):
            self._say(f"log end and last stable offset are {ours}, not {(end, stable)}")

    def names(self) -> None:
        """Only some kinds of gaps may be named."""
        for gap in self._log.gaps:
            if gap.kind not in NAMED[self._log.topic]:
                self._say(f"gap {gap}")

    def batches(self) -> None:
        """Those of both sides are equal, and none is missing."""
        for base, (header, batch) in self._theirs.items():
            if base in self.ours:
                is_equal = self.ours[base][1] == batch
                self.equal += is_equal
                if not is_equal and base >= self._cleaned:
                    self._say(f"the batches at {base} differ: {self.ours[base][0]} {header}")
            elif base >= self._cleaned and not self._is_named(base, header.last_offset):
                self._say(f"the batch {base} to {header.last_offset} is missing")
        expected = self._log.log_start_offset
        for base, (header, _) in self.ours.items():
            is_known = base in self._theirs or base in self._markers
            if header.last_offset >= max(self._first, self._cleaned) and not is_known:
                self._say(f"the leader has no batch {base} to {header.last_offset}")
            expected = max(expected, self._cleaned)
            if not self._is_named(expected, base - 1):
                self._say(f"the offsets {expected} to {base - 1} are missing")
            expected = header.last_offset + 1
        self._held(records_of(self._theirs))

    def aborted(self) -> None:
        """A leader forgets those of segments that it has deleted or compacted."""
        theirs = {
            (entry.producer_id, entry.last_offset): entry
            for path in sorted(self._theirs_at.glob("*.txnindex"))
            for entry in txn_entries(path.read_bytes())
        }
        ours = {
            (entry.producer_id, entry.last_offset): entry
            for entry in self._log.transactions.aborted()
        }
        for key in ours.keys() | theirs.keys():
            # A copy has the start of a transaction that a cleaner has left.
            found = [entries[key] for entries in (ours, theirs) if key in entries]
            are_equal = len({entry[:3] for entry in found}) == 1 and len(found) == 2
            if not are_equal and all(map(self._is_whole, found)):
                self._say(f"aborted transaction {ours.get(key)}, not {theirs.get(key)}")
        self._judge.counts[f"aborted transactions of {self._log.topic}"] += len(theirs)
        self._stable_offsets(ours, theirs)

    def _stable_offsets(
        self,
        ours: Mapping[tuple[int, int], TxnEntry],
        theirs: Mapping[tuple[int, int], TxnEntry],
    ) -> None:
        """The last stable offset of a copied entry is that of the leader which wrote the marker.

        That is the start of the oldest transaction that was open then, or else the offset after the
        marker. A follower may have another one, also when it is the leader later: it appends all
        batches of a Fetch answer at once. `UnifiedLog.append` adds the transactions that begin in
        any of them (`ProducerStateManager.update`) before it computes the offset of the first
        marker (`lastStableOffset`). So a follower may have the start of a transaction that begins
        after the marker.
        """
        expected: dict[int, int] = {}
        starts: dict[int, int] = {}
        known: set[int] = set()
        for base, (header, _) in self.ours.items():
            if not header.is_transactional:
                continue
            if not header.is_control:
                known.add(starts.setdefault(header.producer_id, base))
            elif header.records_count:
                starts.pop(header.producer_id, None)
                expected[base] = min(starts.values(), default=base + 1)
        for key, entry in ours.items():
            if entry.last_stable_offset != expected[entry.last_offset]:
                self._say(f"{entry} instead of {expected[entry.last_offset]}")
            other = theirs.get(key, entry).last_stable_offset
            if self._log.topic != KEPT or other == entry.last_stable_offset:
                continue
            self._judge.counts["last stable offsets of a follower"] += 1
            if other <= entry.last_offset or other not in known:
                self._say(f"{entry}: the leader has the last stable offset {other}")

    @property
    def holes(self) -> float:
        """The share of offsets without a record."""
        count = self._log.log_end_offset - self._log.log_start_offset
        return 1 - len(self._records) / count

    def _is_whole(self, entry: TxnEntry) -> bool:
        """Whether both sides have had all records of a transaction, and its marker."""
        return (
            entry.first_offset >= self._cleaned
            and entry.last_offset >= self._first
            and entry.last_offset not in self._markers
            and self._named.isdisjoint(range(entry.first_offset, entry.last_offset + 1))
        )

    def consumed(self, got: Mapping[int, Record]) -> None:
        """A copy has all records that a consumer has got; of a topic that is kept, no others."""
        if self._log.topic == KEPT and (more := self._records.keys() - got.keys()):
            self._say(f"a consumer has not got {sorted(more)[:10]}")
        self._held({at: each for at, each in got.items() if at >= self._log.log_start_offset})

    def _held(self, wanted: Mapping[int, Record]) -> None:
        """Records are there, or named, or a cleaner has removed them."""
        last: dict[bytes | None, int] = {}
        for at, record in self._records.items():
            last[record.key] = at
        for at, record in wanted.items():
            if at in self._records:
                if self._records[at] != record:
                    self._say(f"{self._records[at]} instead of {record}")
            elif at >= self._cleaned:
                if not self._is_named(at, at):
                    self._say(f"{record} is missing")
            elif (
                record.value is not None
                and not record.value.startswith(ABORTED)
                and last.get(record.key, -1) < at
            ):
                self._say(f"{record} is missing, and its key has no later record")

    def _is_named(self, first: int, last: int) -> bool:
        return self._named.issuperset(range(first, last + 1))


def _same_state(judge: Judge, log: Log, theirs: list[Record], decided: int) -> None:
    """The last value of each key is the cluster's."""
    ours = {each.key: each for each in log.records() if each.offset <= decided}
    expected = {each.key: each for each in theirs}
    doubtful = max((gap.last for gap in log.gaps if gap.kind == "tombstones"), default=-1)
    for key in {*ours, *expected}:
        mine, wanted = ours.get(key), expected.get(key)
        value, other = (each.value if each else None for each in (mine, wanted))
        is_named = wanted is None and mine is not None and mine.offset <= doubtful
        if value != other and not is_named:
            judge.say(f"{COMPACTED}: key {key!r} has {mine}, not {wanted}")


def stored_batches(directory: Path) -> dict[int, tuple[BatchHeader, bytes]]:
    """The batches of a partition, by base offset."""
    found: dict[int, tuple[BatchHeader, bytes]] = {}
    for path in sorted(directory.glob("*.log")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            header = parse_header(data, at)
            assert header.base_offset not in found, (path, header)
            found[header.base_offset] = header, data[at : at + header.size]
            at += header.size
    return found


def records_of(batches: Mapping[int, tuple[BatchHeader, bytes]]) -> dict[int, Record]:
    """The records, also the aborted ones, by offset."""
    return {
        record.offset: record
        for header, batch in batches.values()
        if not header.is_control
        for record in decode(batch)
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
