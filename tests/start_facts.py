"""Writes what a program can see of its start to a file: `python -m tests.start_facts FILE`."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import trio


def facts() -> dict[str, Any]:
    return {
        "arguments": [sys.argv[1:], sys.orig_argv, repr(sys.flags), sys.executable],
        "main": [__name__, sys.modules["__main__"].__dict__ is globals(), sys.path],
        "environment": dict(os.environ),
        "inherited": subprocess.run(["env"], stdout=subprocess.PIPE, text=True).stdout,
        "time": [time.tzname, time.timezone],
        "directory": os.stat(".").st_ino,
        "umask": os.umask(0),
        "limits": [
            [name, resource.getrlimit(getattr(resource, name))]
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        ],
        "signals": [repr(signal.getsignal(number)) for number in signal.valid_signals()],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": [_descriptor(number) for number in range(64)],
        "streams": [_stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "standard": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "warnings": repr(warnings.filters),
        "logging": [logging.root.level, repr(logging.root.handlers)],
        "name": Path("/proc/self/comm").read_text(),
        "random": [random.random(), trio._core._run._r.random()],
        "command line": Path("/proc/self/cmdline").read_text().split("\0")[:-1],
    }


def _descriptor(number: int) -> list[int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    kind = stat.S_IFMT(found.st_mode)
    return [kind] if kind == stat.S_IFIFO else [kind, found.st_dev, found.st_ino]


def _stream(stream: Any) -> list[Any] | None:
    if stream is None:
        return None
    return [
        *(type(stream.buffer).__name__, stream.fileno(), stream.name, stream.mode),
        *(stream.encoding, stream.errors, stream.isatty()),
        *(stream.line_buffering, stream.write_through),
    ]


if __name__ == "__main__":
    atexit.register(Path(sys.argv[1]).write_text, json.dumps(facts()))
    sys.exit(3)
