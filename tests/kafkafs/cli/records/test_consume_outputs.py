"""Outputs of `kafkafs consume`."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from kafkafs.cli.records.consume.outputs import Command
from kafkafs.cli.records.consume.reader import Batch
from kafkafs.cli.records.consume.sources import Partition

pytestmark = pytest.mark.programs


def test_a_signal_ends_a_command_that_is_just_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may write before this process knows that it has started."""
    output = Command("exec sleep 1000")
    popen = subprocess.Popen

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*words, **options)
        output.stop(signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    batch = Batch(Partition("orders", 0, "id"), b"a line\n", 1, 0, 0, 1)
    assert output.put(batch) == 128 + signal.SIGTERM
