"""`kafkafs produce`: appends ready record batches to a partition."""

from __future__ import annotations

import os
import sys
import time

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, logs_argument, mount_to_change
from kafkafs.cli.common.ending import fail, one_line_errors, say
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.refusals import Request
from storage.plural import counted

# Of one write.
_CHUNK_BYTES = 1 << 20


@click.command(
    "produce",
    epilog=examples(
        "kafkafs produce data orders:0 < 00000000000000000000.log",
        "kafkafs produce mnt/orders/0 < 00000000000000000000.log",
    ),
)
@logs_argument("DATA|MOUNT TOPIC:PARTITION", allow_empty=False)
def command(logs: Address) -> None:
    """Append the record batches on standard input, in the format of a .log file, to a partition.

    Batches of any format are accepted and get new offsets. Formats v0 and v1 become v2. The codec
    stays, unless the topic's compression.type sets another one. Batches that a producer has already
    written are not written again.

    DATA is mounted, or not in use. In a mount, the daemon appends. If a batch is refused, the
    batches before it are in the log, and none after it. Standard error prints how many, and at
    which byte produce stopped, and the exit status is 1. For a mount it counts bytes, and
    .kafkafs/log has the reason.

    When the command returns, everything is on the disk. Its memory does not grow with the input.
    """
    topic, partition = logs.partition()
    if sys.stdin is None:
        raise fail("standard input is closed")
    with one_line_errors():
        check_address(logs, or_create=True)
        mount = mount_to_change(logs)
        if mount is None:
            _append_here(logs.data_dir, topic, partition)
        else:
            directory = os.path.join(logs.data_dir, f"{topic}-{partition}")
            _append_through(mount, directory, topic, partition)


def _append_here(data_dir: str, topic: str, partition: int) -> None:
    """Append to a log of a directory that no process has open."""
    from storage.directory.manager import LogManager
    from storage.log.produce import StreamAppender
    from storage.paths import check_takes_records

    check_takes_records(topic)
    producer: StreamAppender | None = None
    try:
        with opening_shown() as progress, LogManager.open(data_dir, progress=progress) as manager:
            log = manager.log(topic, partition)
            log.check_not_read_only()
            stdin = sys.stdin.fileno()
            if os.path.samestat(os.fstat(stdin), os.stat(log.active.log_path)):
                raise fail("standard input is a file of the same partition")
            producer = StreamAppender(log, time.time_ns)
            # Closing the directory flushes what was appended, after an error, too.
            producer.run(lambda size: os.read(stdin, size))
    finally:
        if producer is not None:
            say(f"{topic}:{partition}: {producer.produced}", err=True)


def _append_through(mount: str, directory: str, topic: str, partition: int) -> None:
    """Have the daemon append. `directory` is the partition's."""
    stdin = sys.stdin.fileno()
    name = os.path.join(topic, ".batches", str(partition))
    path = os.path.join(mount, name)
    own = [path, *(each.path for each in os.scandir(directory))]
    if any(os.path.samestat(os.fstat(stdin), os.stat(each)) for each in own):
        raise fail("standard input is a file of the same partition")
    size = 0
    request = Request(mount, name, os.path.join(topic, str(partition)))
    try:
        # Closing it says where the last batch is incomplete.
        with open(path, "ab", buffering=0) as file:
            while data := os.read(stdin, _CHUNK_BYTES):
                request.begin()
                left = memoryview(data)
                while left:
                    written = file.write(left)
                    size += written
                    left = left[written:]
            os.fsync(file)
    except OSError as error:
        reason = request.refusal(error)
        raise fail(f"{topic}:{partition}: after {counted(size, 'byte')}: {reason}") from None
    say(f"{topic}:{partition}: {counted(size, 'byte')}", err=True)
