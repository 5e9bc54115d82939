"""`kafkafs consume --decode`, and `cat --decode` in a mount."""

from __future__ import annotations

import json
import subprocess

from tests.fork_server import KAFKAFS
from tests.kafkafs.schemas.registries import Topic as RegistryTopic
from tests.kafkafs.schemas.registries import framed, lines_of
from tests.mount.consume.conftest import Topic
from tests.mount.contract.writing import append


def test_batches_are_decoded(topic: Topic) -> None:
    registry = RegistryTopic()
    registry.register("any-value", 1, 1, '"long"')
    if not (topic.mount / "_schemas").exists():
        append(topic.mount.topic("_schemas", 1).parent / ".jsonl/0", registry.text)
    values = [framed(1, b"\2"), framed(1, b"\4"), framed(9, b"\2")]
    append(topic.path / ".jsonl/0", lines_of(*((b"new", value) for value in values)))
    count = 2 * 10 + len(values)
    told = b"kafkafs: 1 record could not be decoded\n"
    for options in ([], ["--batch-records", "1", "--exec", "cat"]):
        done = topic.consume("--decode", "--strict", *options, group=False)
        assert (done.returncode, done.stderr) == (1, told)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == count
        decoded = {line["key"]: line for line in lines if "valueSchema" in line}
        assert decoded["new"]["value"] == 2
    shown = subprocess.run(
        [*KAFKAFS, "cat", "--decode", "--value-only", f"{topic.path}/0@10..12"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert shown.stdout == b"1\n2\n"
