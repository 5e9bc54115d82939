"""The commands that work on a cluster, and a broker that goes away, stalls or refuses."""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kafka_client.cluster import Cluster
from kafka_client.properties import ClientSettings
from kafkafs.cli import main
from kafkafs.cli.clusters.produce import TopicWriter
from storage import Record
from storage import encode as encode_batch
from storage.record.batch import decode_plain
from storage.record.compression import ZSTD
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT, pack, parse_header
from storage.record.plain import recompress
from storage.settings.messages import Struct
from tests import oracle
from tests.kafka_client.fake_broker import HANG_S, Answer, FakeBroker, Half, answer_frame
from tests.kafkafs.cli.test_json import checked
from tests.storage.logs import NOW_MS
from tests.storage.old_logs import messages, wrapper

NOT_ALLOWED, NO_TOPIC, TOO_LARGE, TIMED_OUT, NO_KEY, NO_LEADER = 29, 3, 10, 7, 87, 6
COUNT = 40
#: The commands, and what each of them asks a broker.
COMMANDS: dict[str, list[str]] = {
    "ls": ["Metadata", "ListOffsets", "DescribeConfigs"],
    "describe": ["Metadata", "ListOffsets", "DescribeConfigs"],
    "groups": ["Metadata", "ListGroups", "FindCoordinator", "OffsetFetch", "ListOffsets"],
    "cat": ["Metadata", "ListOffsets", "Fetch"],
    "cat -f": ["Metadata", "ListOffsets", "Fetch"],
    "grep v": ["Metadata", "ListOffsets", "Fetch"],
    "append": ["DescribeConfigs", "Metadata", "Produce"],
}
SIZE_WITHOUT_NUMBER = {"name": "max.message.bytes", "value": "large"}
STEPS = [(command, api) for command, apis in COMMANDS.items() for api in apis]


class OneBroker(FakeBroker):
    """A cluster of one broker: the topic `t` with records, and the topic `secret`."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = {
            base: encode_batch(
                [Record(base + number, 1, 0, b"k", b"v%d" % (base + number)) for number in range(5)]
            )
            for base in range(0, COUNT, 5)
        }
        # The aborted transactions: producer, first and last offset.
        self.aborted: list[tuple[int, int, int]] = []
        self.log_start = self.local_start = 0
        self.partitions = 1
        self.produced: list[bytes] = []
        self.answers |= {
            "Metadata": self._metadata,
            "ListOffsets": self._list_offsets,
            "Fetch": self.fetch,
            "DescribeConfigs": self._describe_configs,
            "ListGroups": self._list_groups,
            "FindCoordinator": self._find_coordinator,
            "OffsetFetch": self._offset_fetch,
            "Produce": self.produce,
        }

    def __enter__(self) -> OneBroker:
        super().__enter__()
        return self

    def asked(self) -> list[str]:
        return [name for name, _, _ in self.requests]

    def _metadata(self, _version: int, data: Struct) -> Struct:
        host, port = self.address
        part: dict[str, Any] = {"partitionIndex": 0, "leaderId": 1, "leaderEpoch": 0}
        part |= {"replicaNodes": [1], "isrNodes": [1]}
        asked = data["topics"]
        parts = [part | {"partitionIndex": number} for number in range(self.partitions)]
        names = [b"t", b"secret"] if asked is None else [each["name"] for each in asked]
        topics = [
            {
                "name": name,
                "topicId": name.ljust(16),
                "errorCode": 0 if name in (b"t", b"secret") else NO_TOPIC,
                "partitions": parts if name in (b"t", b"secret") else [],
            }
            for name in names
        ]
        brokers = [{"nodeId": 1, "host": host, "port": port}]
        return {"brokers": brokers, "topics": topics, "controllerId": 1}

    def _list_offsets(self, _version: int, data: Struct) -> Struct:
        def offset(part: Struct) -> Struct:
            starts = {-2: self.log_start, -4: self.local_start}
            found = starts.get(part["timestamp"], COUNT)
            return {"partitionIndex": part["partitionIndex"], "offset": found, "leaderEpoch": 0}

        return {
            "topics": [
                {"name": topic["name"], "partitions": list(map(offset, topic["partitions"]))}
                for topic in data["topics"]
            ]
        }

    def fetch(self, version: int, data: Struct) -> Struct:
        topics = []
        for topic in data["topics"]:
            (part,) = topic["partitions"]
            found: dict[str, Any] = {"partitionIndex": 0, "highWatermark": COUNT}
            found |= {"lastStableOffset": COUNT, "logStartOffset": self.log_start}
            if bytes(topic["topicId"]).startswith(b"secret"):
                found["errorCode"] = NOT_ALLOWED
            elif part["fetchOffset"] < self.log_start:
                found["errorCode"] = 1
            else:
                ends = dict(pairwise([*self.batches, COUNT]))
                wanted = [each for each in self.batches if ends[each] > part["fetchOffset"]][:2]
                found["records"] = b"".join(self.batches[each] for each in wanted)
                if data["isolationLevel"]:
                    found["abortedTransactions"] = [
                        {"producerId": producer, "firstOffset": first}
                        for producer, first, last in self.aborted
                        if first < ends[wanted[-1]] and last >= part["fetchOffset"]
                    ]
            topics.append({"topicId": bytes(topic["topicId"]), "partitions": [found]})
        return {"responses": topics, "sessionId": 0}

    def _describe_configs(self, _version: int, data: Struct) -> Struct:
        setting = {"name": "max.message.bytes", "value": "1000", "configSource": 1}
        return {
            "results": [
                {"resourceName": each["resourceName"], "configs": [setting]}
                for each in data["resources"]
            ]
        }

    def _list_groups(self, _version: int, _data: Struct) -> Struct:
        return {"groups": [{"groupId": "g", "groupState": "Empty"}]}

    def _find_coordinator(self, _version: int, _data: Struct) -> Struct:
        return {"coordinators": [{"key": "g", "nodeId": 1}]}

    def _offset_fetch(self, _version: int, _data: Struct) -> Struct:
        part = {"partitionIndex": 0, "committedOffset": 30, "committedLeaderEpoch": 0}
        return {"groups": [{"groupId": "g", "topics": [{"name": "t", "partitions": [part]}]}]}

    def produce(self, _version: int, data: Struct) -> Struct:
        (topic,) = data["topicData"]
        (part,) = topic["partitionData"]
        self.produced.append(bytes(part["records"]))
        done = {"index": part["index"], "baseOffset": COUNT}
        return {"responses": [{"name": topic["name"], "partitionResponses": [done]}]}


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneBroker]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with OneBroker() as broker:
        yield broker


def call(broker: OneBroker, command: str, *more: str) -> Result:
    place = f"kafka://{broker.address}" + ("" if command in ("ls", "groups") else "/t")
    return CliRunner().invoke(main, [*command.split(), place, *more])


def append(broker: OneBroker, text: str = "line\n") -> tuple[int, str]:
    """The exit status, and what standard error has. The command reads a file descriptor."""
    said = io.StringIO()
    with (
        tempfile.TemporaryFile("w+") as given,
        contextlib.redirect_stderr(said),
        pytest.MonkeyPatch.context() as patch,
    ):
        given.write(text)
        given.seek(0)
        patch.setattr("sys.stdin", given)
        with pytest.raises(SystemExit) as ended:
            main(["append", f"kafka://{broker.address}/t"])
    return int(ended.value.code or 0), said.getvalue()


def lines(first: int = 0, end: int = COUNT) -> str:
    return "".join(f"v{number}\n" for number in range(first, end))


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cluster", "connection", "consume", "requests"):
        monkeypatch.setattr(f"kafka_client.{module}.TIMEOUT_S", 1.0)
    monkeypatch.setattr("kafkafs.cli.clusters.pieces.TIMEOUT_S", 1.0)


# -- what they print -------------------------------------------------------------------------------


def test_what_the_commands_print(broker: OneBroker) -> None:
    assert call(broker, "cat").stdout == lines()
    assert call(broker, "cat", "--where", "offset in (3, 17)").stdout == "v3\nv17\n"
    assert call(broker, "grep -w v3").stdout == "v3\n"
    assert call(broker, "grep -c v3").stdout == "11\n"
    assert call(broker, "grep nothing").exit_code == 1
    table = "topic   partitions  records  cleanup_policy  retention\n"
    table += "secret           1       40               -  all\nt                1       40"
    assert call(broker, "ls").stdout.startswith(table)
    assert "t max.message.bytes=1000\n" in call(broker, "describe").stdout
    assert call(broker, "groups").stdout.splitlines()[1].split() == ["g", "Empty", "1", "10"]
    assert call(broker, "groups", "g").stdout.splitlines()[1].split() == [
        *("g", "t", "0", "30", "40", "10")
    ]


def test_json(broker: OneBroker) -> None:
    """… has the fields of the schema, and what could not be read."""
    for command in ("ls", "ls t", "describe", "groups", "groups g"):
        name, *more = command.split()
        done = call(broker, name, *more, "--json")
        assert done.exit_code == 0
        checked(command, done.stdout, 0)

    def refused(_version: int, data: Struct) -> Struct:
        names = [each["resourceName"] for each in data["resources"]]
        return {"results": [{"resourceName": name, "errorCode": NOT_ALLOWED} for name in names]}

    broker.answers["DescribeConfigs"] = refused
    for command in ("ls", "describe"):
        done = call(broker, command, "--json")
        assert done.exit_code == 3
        problems = checked(command, done.stdout, 3)["problems"]
        assert {each["code"] for each in problems} == {"BROKER_ERROR"}


@pytest.mark.parametrize(
    ("span", "first", "end"),
    [
        ("3..7", 3, 7), ("..2", 0, 2), ("38", 38, 40), ("-3", 37, 40), ("-3..-1", 37, 39),
        ("-99", 0, 40), ("end", 0, 0), ("90..95", 0, 0), ("7..3", 0, 0), ("group=g", 30, 40),
    ],
)  # fmt: skip
def test_ranges(broker: OneBroker, span: str, first: int, end: int) -> None:
    done = CliRunner().invoke(main, ["cat", f"kafka://{broker.address}/t:0@{span}"])
    assert (done.exit_code, done.output) == (0, lines(first, end))


def test_the_last_records_are_fetched_once(broker: OneBroker) -> None:
    """… and as few bytes."""
    done = CliRunner().invoke(main, ["cat", f"kafka://{broker.address}/t@-2"])
    assert (done.stdout, broker.asked().count("Fetch")) == (lines(38), 1)
    sizes = [data["maxBytes"] for name, _, data in broker.requests if name == "Fetch"]
    assert max(sizes) < 1 << 20


def old_entries(magic: int, codec: int, first: int) -> dict[int, bytes]:
    """Five messages of v0 or v1: each is an entry, or all of them are a wrapper."""
    some = messages(first, 5, magic)
    if codec:
        return {first: wrapper(some, magic, codec)}
    return {each.offset: oracle.put_message(each, magic) for each in some}


def new_batch(first: int, count: int, codec: int = 0, producer: int = -1) -> dict[int, bytes]:
    records = [Record(first + n, NOW_MS + n, 0, b"k", b"%d" % (first + n)) for n in range(count)]
    attributes = 0 if producer < 0 else TRANSACTIONAL_BIT
    batch = encode_batch(records, attributes=attributes, producer_id=producer, producer_epoch=0)
    return {first: recompress(batch, codec)}


#: Batches of all formats, and the transactions of two producers.
STORED: dict[int, bytes] = {
    **old_entries(0, 0, 0),
    **old_entries(0, 1, 5),
    **old_entries(1, 0, 10),
    **old_entries(1, 3, 15),
    **new_batch(20, 3, 4),
    **new_batch(23, 2, producer=7),
    **new_batch(25, 2, producer=8),
    **new_batch(27, 1),
    28: bytes(encode_marker(ABORT, 7, 0, 0, 28, NOW_MS, 0)),
    **new_batch(29, 3, 2, producer=7),
    32: bytes(encode_marker(COMMIT, 8, 0, 0, 32, NOW_MS, 0)),
    33: bytes(encode_marker(COMMIT, 7, 0, 0, 33, NOW_MS, 0)),
    **new_batch(34, 1, producer=8),
    35: bytes(encode_marker(ABORT, 8, 0, 0, 35, NOW_MS, 0)),
    **new_batch(36, 4),
}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("view", ["values", "kv", "jsonl", "batches"])
def test_the_text_is_that_of_the_same_log_in_a_directory(
    broker: OneBroker, tmp_path: Path, view: str, isolation: str
) -> None:
    broker.batches, broker.aborted = STORED, [(7, 23, 28), (8, 34, 35)]
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    (tmp_path / "data" / "t-0" / f"{0:020}.log").write_bytes(b"".join(STORED.values()))
    for span in ("0", "7..12", "17", "22..31", "24..26", "26..28", "31", "-3", "-10", "-30..-4"):
        printed = []
        for place in (f"kafka://{broker.address}", str(tmp_path / "data")):
            options = ["--view", view, "--isolation", isolation]
            done = CliRunner().invoke(main, ["cat", place, f"t@{span}", *options])
            assert done.exit_code == 0, done.stderr
            printed.append(done.stdout_bytes)
        assert printed[0] == printed[1], span


def test_a_topic_that_may_not_be_read_is_reported_once(broker: OneBroker) -> None:
    place = f"kafka://{broker.address}"
    done = CliRunner().invoke(main, ["cat", place, "secret", "secret:0@-3", "t@38"])
    assert (done.exit_code, done.stdout) == (3, "v38\nv39\n")
    assert done.stderr == "kafkafs: secret: TOPIC_AUTHORIZATION_FAILED\n"
    list_offsets = broker.answers["ListOffsets"]

    def refused(version: int, data: Struct) -> Struct:
        answer = list_offsets(version, data)
        assert isinstance(answer, dict)
        secret = [each for each in answer["topics"] if each["name"] == b"secret"]
        for partition in (part for topic in secret for part in topic["partitions"]):
            partition["errorCode"] = NOT_ALLOWED
        return answer

    # The labels do not depend on which request the broker refuses.
    for answer in (list_offsets, refused):
        broker.answers["ListOffsets"] = answer
        done = CliRunner().invoke(main, ["grep", "v39", place])
        assert (done.exit_code, done.stdout) == (2, "t:0:v39\n")
        assert done.stderr == "kafkafs: secret: TOPIC_AUTHORIZATION_FAILED\n"


def test_a_topic_that_is_deleted_while_it_is_listed(broker: OneBroker) -> None:
    list_offsets = broker.answers["ListOffsets"]

    def deleted(version: int, data: Struct) -> Struct:
        """The broker leads the partition no more, and its metadata lists it no more."""
        broker.partitions = 0
        answer = list_offsets(version, data)
        assert isinstance(answer, dict)
        for partition in (part for topic in answer["topics"] for part in topic["partitions"]):
            partition["errorCode"] = NO_LEADER
        return answer

    for command in ("ls", "describe"):
        broker.answers["ListOffsets"], broker.partitions = deleted, 1
        done = call(broker, command)
        assert (done.exit_code, done.exception and type(done.exception)) == (3, SystemExit)
        assert "kafkafs: t:0: UNKNOWN_TOPIC_OR_PARTITION\n" in done.stderr


def test_retention_that_overtakes_the_reader_is_reported(broker: OneBroker) -> None:
    fetch = broker.fetch

    def overtaken(version: int, data: Struct) -> Struct:
        if data["topics"][0]["partitions"][0]["fetchOffset"] >= 10:
            broker.log_start = 22
        return fetch(version, data)

    broker.answers["Fetch"] = overtaken
    done = call(broker, "cat")
    assert (done.exit_code, done.stdout) == (3, lines(0, 10) + lines(22))
    assert done.stderr == (
        "kafkafs: t:0: offsets 10 to 21 were deleted in the cluster before they were read\n"
    )


def check_waits(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, isolation: str, change: Struct
) -> None:
    """Check that `cat` waits for offset 10, and how long, while answers for it have `change`."""
    fetch, left = broker.fetch, 3

    def changed(version: int, data: Struct) -> Struct:
        nonlocal left
        answer = fetch(version, data)
        if data["topics"][0]["partitions"][0]["fetchOffset"] >= 10 and left > 0:
            left -= 1
            answer["responses"][0]["partitions"][0] |= change
        return answer

    broker.answers["Fetch"] = changed
    done = call(broker, "cat", "--isolation", isolation)
    assert (done.exit_code, done.stdout, left) == (0, lines(), 0)
    quickly(monkeypatch)
    left = 1_000_000
    done = call(broker, "cat", "--isolation", isolation)
    assert (done.exit_code, done.stdout) == (3, lines(0, 10))
    assert done.stderr == (
        "kafkafs: t:0: the leader does not show offsets 10 to 39, which the cluster had\n"
    )


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_new_leader_is_waited_for(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """… which has all records, but an old high watermark. The wait has a limit."""
    old = {"records": None, "highWatermark": 5, "lastStableOffset": 5}
    check_waits(broker, monkeypatch, isolation, old)


def test_a_broker_that_throttles_is_asked_again_over_the_same_connection(broker: OneBroker) -> None:
    """So the pause is kept. Its answers have no partitions, though it has records."""
    fetch, left = broker.fetch, 3

    def throttled(version: int, data: Struct) -> Struct:
        nonlocal left
        left -= 1
        return {"throttleTimeMs": 50} if left >= 0 else fetch(version, data)

    broker.answers["Fetch"] = throttled
    assert call(broker, "cat").stdout == lines()
    assert broker.connections == 2


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_records_in_remote_storage_are_waited_for(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """If the remote storage is slow, an answer has no records. The wait has a limit."""
    broker.local_start = 30
    check_waits(broker, monkeypatch, isolation, {"records": b""})
    # Otherwise none are left, as after compaction.
    broker.local_start = 10
    done = call(broker, "cat", "--isolation", isolation)
    assert (done.exit_code, done.stdout) == (0, lines(0, 10))


def test_another_history_is_reported(broker: OneBroker) -> None:
    fetch = broker.fetch

    def diverging(version: int, data: Struct) -> Struct:
        answer = fetch(version, data)
        if data["topics"][0]["partitions"][0]["fetchOffset"] >= 10:
            answer["responses"][0]["partitions"][0] |= {
                "records": None,
                "divergingEpoch": {"epoch": 0, "endOffset": 7},
            }
        return answer

    broker.answers["Fetch"] = diverging
    done = call(broker, "cat")
    assert (done.exit_code, done.stdout) == (3, lines(0, 10))
    assert "log differs from offset 7 on" in done.stderr


def test_a_batch_that_no_reader_can_decode(broker: OneBroker) -> None:
    """… has the right CRC, so the client takes it."""
    header = parse_header(broker.batches[10])
    garbage = [
        (b"no stream", ZSTD, "zstd: a frame is truncated or invalid (offset 10)"),
        (b"\x7f no record", 0, "a record's length does not fit its batch"),
    ]
    for records, codec, reason in garbage:
        broker.batches[10] = pack(header._replace(attributes=codec), records)
        done = call(broker, "cat")
        assert (done.exit_code, done.stdout) == (3, lines(0, 10))
        assert done.stderr == f"kafkafs: t:0: {reason}\n"
        done = call(broker, "grep -v nothing")
        assert (done.exit_code, done.stdout) == (2, lines(0, 10) + lines(15))
        assert done.stderr == f"kafkafs: t:0: {reason}\n"


def test_a_marker_that_no_reader_can_decode(broker: OneBroker) -> None:
    """… ends the aborted transaction, as its producer has no other marker before that one."""
    broker.aborted = [(7, 23, 28)]
    broker.batches = STORED | {28: pack(parse_header(STORED[28]), b"\x7f no record")}
    done = call(broker, "grep -c 2")
    assert done.exit_code == 2
    assert done.stderr == "kafkafs: t:0: record length -64 does not fit its batch\n"
    broker.batches = STORED
    assert done.stdout == call(broker, "grep -c 2").stdout


# -- a broker that fails ---------------------------------------------------------------------------


def failing(broker: OneBroker, api: str, fault: str, ended: threading.Event) -> Answer:
    """The answers of an API from now on: none, a half, silence, or that to another request."""
    whole = broker.answers[api]

    def answer(version: int, data: Struct) -> bytes | Half | None:
        found = whole(version, data)
        assert isinstance(found, dict)
        if fault == "cut":
            return None
        if fault == "stall":
            ended.wait(HANG_S)
            return None
        return answer_frame(api, version, 0, found) if fault == "other" else Half(found)

    return answer


@pytest.mark.parametrize(
    ("command", "api", "fault"),
    [
        (*step, fault)
        for n, step in enumerate(STEPS)
        for fault in ("cut", ("truncate", "stall", "other")[n % 3])
    ],
)
def test_a_broker_that_fails_ends_the_command(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, command: str, api: str, fault: str
) -> None:
    quickly(monkeypatch)
    ended = threading.Event()
    broker.answers[api] = failing(broker, api, fault, ended)
    begun = time.monotonic()
    try:
        if command == "append":
            status, said = append(broker)
        else:
            done = call(broker, command)
            assert isinstance(done.exception, SystemExit), done.exception
            status, said = done.exit_code, done.stderr
    finally:
        ended.set()
    assert time.monotonic() - begun < HANG_S
    assert (status, said.count("\n")) == (2 if command == "grep v" else 3, 1), said
    assert said.startswith("kafkafs: ")
    assert broker.asked().count("Produce") == (api == "Produce")


def test_what_came_before_a_failure_is_printed(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    fetch = broker.fetch

    def answer(version: int, data: Struct) -> Struct | None:
        return None if len(broker.requests) > 8 else fetch(version, data)

    broker.answers["Fetch"] = answer
    done = call(broker, "cat")
    assert done.exit_code == 3
    assert done.stdout
    assert lines().startswith(done.stdout)


# -- append ----------------------------------------------------------------------------------------


def test_an_unknown_outcome_is_an_error(broker: OneBroker) -> None:
    """… and nothing is sent again; the line before it is acknowledged."""
    produce = broker.produce

    def answer(version: int, data: Struct) -> Struct:
        found = produce(version, data)
        if len(broker.produced) > 1:
            found["responses"][0]["partitionResponses"][0]["errorCode"] = TIMED_OUT
        return found

    broker.answers["Produce"] = answer
    status, said = append(broker, "a" * 800 + "\n" + "b" * 800 + "\n" + "c" * 800 + "\n")
    assert (status, len(broker.produced)) == (3, 2)
    assert said.startswith("kafkafs: lines 1 to 3 of standard input: t:0: the broker may")
    assert "a part of them may be in the topic" in said


def test_a_line_that_is_refused(broker: OneBroker) -> None:
    """… by its size, before anything is sent after the lines before it."""
    status, said = append(broker, "a\n" + "b" * 2000 + "\nc\n")
    assert status == 3
    assert "line 2 of standard input: " in said
    assert "all lines before it were appended" in said
    assert len(broker.produced) == 1
    refused = {"index": 0, "errorCode": TOO_LARGE, "baseOffset": -1}
    broker.answers["Produce"] = lambda version, data: {
        "responses": [{"name": "t", "partitionResponses": [refused]}]
    }
    refusal = "kafkafs: line 1 of standard input: t:0: MESSAGE_TOO_LARGE; nothing was appended\n"
    assert append(broker) == (3, refusal)


def test_partitions_that_are_added_get_their_keys(broker: OneBroker) -> None:
    lines = b"".join(b"%d\tvalue\n" % number for number in range(100))
    written_to: set[int] = set()

    def answer(version: int, data: Struct) -> Struct:
        written_to.add(data["topicData"][0]["partitionData"][0]["index"])
        return broker.produce(version, data)

    broker.answers["Produce"] = answer
    with Cluster([broker.address], ClientSettings()) as cluster:
        cluster.refresh(["t"])
        keyed, only = (TopicWriter(cluster, "t", number, "kv") for number in (None, 0))
        keyed.write(lines)
        broker.partitions = 4
        only.write(lines)
        assert written_to == {0}
        keyed.write(lines)
        assert written_to == {0, 1, 2, 3}


@pytest.mark.parametrize("code", [TOO_LARGE, NO_KEY])
def test_a_line_that_the_broker_refuses(broker: OneBroker, code: int) -> None:
    """… is named, and the lines before it are in the topic."""
    produced: list[bytes | None] = []

    def answer(version: int, data: Struct) -> Struct:
        found = broker.produce(version, data)
        values = [each.value for each in decode_plain(broker.produced[-1])]
        if b"bad" in values:
            found["responses"][0]["partitionResponses"][0] |= {"errorCode": code, "baseOffset": -1}
        else:
            produced.extend(values)
        return found

    broker.answers["Produce"] = answer
    status, said = append(broker, "a\nb\nc\nbad\nd\n")
    assert (status, produced) == (3, [b"a", b"b", b"c"])
    assert said.startswith("kafkafs: line 4 of standard input: t:0: ")
    assert said.endswith("; all lines before it were appended\n")


@pytest.mark.parametrize("results", [[], [{"resourceName": "t", "configs": [SIZE_WITHOUT_NUMBER]}]])
def test_a_broker_that_does_not_say_how_large_a_batch_may_be(
    broker: OneBroker, results: list[Struct]
) -> None:
    broker.answers["DescribeConfigs"] = lambda *_: {"results": results}
    assert append(broker) == (0, "")


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cat", "kafka://b:1/t", "kafka://c:1/t"], "addresses of one cluster"),
        (["cat", "kafka://b:1/t", "u"], "only whole addresses"),
        (["cat", "kafka://b:1"], "give a topic"),
        (["cat", "kafka://"], "'' is not the address of a broker"),
        (["cat", "kafka://b:1/t@x"], "not a valid start or range"),
        (["cat", "-f", "kafka://b:1/t@..5"], "a range has no end"),
        (["cat", "-f", "{data}", "t"], "-f requires an address"),
        (["cat", "kafka://u:secret@b:1/t"], "credentials do not belong into an address"),
        (["grep", "x", "kafka://b:1/t@x"], "not a valid start or range"),
        (["ls", "kafka://b:1/t@5"], "takes no @START..END"),
        (["ls", "--insecure", "{data}"], "--insecure requires an address"),
        (["groups", "kafka://b:1/t"], "without a topic"),
        (["append", "kafka://b:1/t", "--view", "batches"], "--view batches cannot"),
        (["append", "kafka://b:1"], "give one topic or partition"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], reason: str) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").touch()
    done = CliRunner().invoke(main, [word.format(data=tmp_path) for word in words])
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.split())
    assert "secret" not in done.stderr


def test_no_message_shows_a_password(broker: OneBroker, tmp_path: Path) -> None:
    """… also when a broker refuses it."""
    file = tmp_path / "client.properties"
    file.write_text("sasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=top-secret\n")
    broker.answers["SaslHandshake"] = lambda version, data: {"mechanisms": [b"PLAIN"]}
    broker.answers["SaslAuthenticate"] = lambda version, data: {"errorCode": 58}
    for more in ([], ["--insecure"]):
        done = call(broker, "ls", "-F", str(file), *more)
        assert done.exit_code == 3
        assert "top-secret" not in done.output
    assert "the credentials are refused" in done.stderr
    assert not hasattr(done, "exc_info") or "top-secret" not in str(done.exc_info)
