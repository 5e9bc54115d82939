"""Runs `kafkafs grep` several times in one process, and prints the time and the bytes read of each.

    search_ours.py RUNS ARGUMENT...        one line of JSON; seconds of wall time

So the figures exclude the start of Python, but include the opening of the data directory. The first
call, which imports modules, is not counted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from kafkafs.cli.records.grep import command


def bytes_read() -> int:
    """Return the bytes of all read calls of this process."""
    found = re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def main() -> None:
    runs, *arguments = sys.argv[1:]
    seconds, read = [], []
    report = os.dup(1)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        for _ in range(int(runs) + 1):
            os.truncate(1, 0)
            os.lseek(1, 0, os.SEEK_SET)
            before, begun = bytes_read(), time.perf_counter()
            status: object = None
            try:
                command.main(arguments, "kafkafs grep", standalone_mode=False)
            except SystemExit as ended:
                status = ended.code
            if status not in (0, 1):
                raise SystemExit(f"kafkafs grep: exit status {status}")
            sys.stdout.flush()
            seconds.append(time.perf_counter() - begun)
            read.append(bytes_read() - before)
        printed.seek(0)
        text = printed.read().decode()
    figures = {"seconds": seconds[1:], "read": read[1:], "printed": text}
    os.write(report, json.dumps(figures).encode() + b"\n")


if __name__ == "__main__":
    main()
