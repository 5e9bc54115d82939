"""`kafkafs fetch`: messages as a fetch response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import check_address, number, resolve
from kafkafs.cli.common.ending import end, say, warn
from kafkafs.cli.common.output import binary_stdout
from kafkafs.cli.common.words import Logs, Topic, words_argument
from storage.plural import counted

if TYPE_CHECKING:
    from storage.log.log import Log

_NAMED_OFFSETS = ("earliest", "latest")
# Behind the place of a request.
_OFFSET_AND_BYTES = re.compile(r":(?:[0-9]+|earliest|latest):[0-9]+\Z")


class _Request(NamedTuple):
    topic: str
    partition: int
    offset: int | str  # or one of _NAMED_OFFSETS
    max_bytes: int


def _parsed(words: Sequence[str]) -> tuple[str, list[_Request]]:
    """Return the data directory and the requests. Errors: ClickException."""
    from storage.convert.fetch import MAX_SET_BYTES

    is_path = _OFFSET_AND_BYTES.search(words[0]) is not None
    first, texts = ([], words) if is_path else ([words[0]], words[1:])
    if not texts:
        raise click.UsageError("give TOPIC:PARTITION:OFFSET:BYTES, or MOUNT/TOPIC/PARTITION:…")
    parts = [text.rsplit(":", 2) for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if len(part) != 3 or not part[0]:
            raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION:OFFSET:BYTES")
    address = resolve([*first, *(place for place, _, _ in parts)])
    check_address(address)
    if len(address.places) != len(parts):
        raise click.UsageError("give DATA TOPIC:PARTITION:OFFSET:BYTES")
    requests = []
    for text, (topic, partition), (_, offset, size) in zip(
        texts, address.places, parts, strict=True
    ):
        if partition is None:
            raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION:OFFSET:BYTES")
        named = offset in _NAMED_OFFSETS
        at = offset if named else number(offset, "offset (a number, earliest or latest)")
        max_bytes = number(size, "number of bytes")
        if not 0 < max_bytes <= MAX_SET_BYTES:
            raise click.BadParameter(
                f"{max_bytes}: the number of bytes must be from 1 to {MAX_SET_BYTES}"
            )
        requests.append(_Request(topic, partition, at, max_bytes))
    return address.data_dir, requests


@click.command(
    "fetch",
    epilog=examples(
        "kafkafs fetch data orders:0:earliest:1000000 > response",
        "kafkafs fetch mnt/orders/0:latest:1000000 > response",
    ),
)
@click.option(
    "--reset",
    type=click.Choice(_NAMED_OFFSETS),
    help="The place to read from if OFFSET is outside of the log.",
)
@words_argument("DATA|MOUNT TOPIC:PARTITION:OFFSET:BYTES...", Logs(Topic(then=":")))
def command(reset: str | None, words: Sequence[str]) -> None:
    """Write messages to standard output, in the format of a Kafka 0.7 server's answer to a fetch.
    The directory may be in use.

    OFFSET is a number, earliest or latest. After BYTES bytes, the response for a partition is cut,
    so its last message can be incomplete. The first message is always complete, even if it is
    larger than BYTES. If you name one partition, the response is a MessageSetSend of Kafka's source
    code. If you name several partitions, it is a MultiMessageSetSend. Instead of DATA and
    TOPIC:PARTITION:OFFSET:BYTES, you can give one path in a mount:
    MOUNT/TOPIC/PARTITION:OFFSET:BYTES.

    A message is the value of a record. fetch leaves out control records, and the records of aborted
    and open transactions. Messages have no offsets, so fetch prints the number of messages and the
    next offset to standard error.

    If OFFSET is outside of the log, --reset says where to read. Without --reset, the response has
    error code 1 and the exit status is 1, and standard error has a line with OffsetOutOfRange.
    """
    from storage.convert.fetch import encode_multi_response
    from storage.manager import LogManager

    data_dir, requests = _parsed(words)
    whole = True
    responses = []
    with LogManager.open(data_dir, read_only=True) as manager:
        logs = [manager.log(request.topic, request.partition) for request in requests]
        for log, request in zip(logs, requests, strict=True):
            response, found = _respond(log, request, reset)
            responses.append(response)
            whole = whole and found
    data = responses[0] if len(responses) == 1 else encode_multi_response(responses)
    with binary_stdout() as out:
        out.write(data)
    end(found=not whole)


def _respond(log: Log, request: _Request, reset: str | None) -> tuple[bytes, bool]:
    """(the response to one request, whether its offset was inside the log)"""
    from storage.convert.fetch import ErrorCode, encode_response, read_messages
    from storage.errors import OffsetOutOfRange

    where = f"{request.topic}:{request.partition}"
    offset = request.offset
    if isinstance(offset, int) and not log.log_start_offset <= offset <= log.log_end_offset:
        if reset is None:
            error = OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            warn(f"OffsetOutOfRange: {where}: {error}")
            return encode_response(b"", ErrorCode.OFFSET_OUT_OF_RANGE), False
        offset = reset
    if isinstance(offset, str):
        earliest = offset == "earliest"
        offset = log.log_start_offset if earliest else log.last_stable_offset
    found = read_messages(log, offset, request.max_bytes)
    say(f"{where}: {counted(found.count, 'message')}, next offset {found.next_offset}", err=True)
    return encode_response(found.data), True
