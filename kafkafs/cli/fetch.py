"""`kafkafs fetch TOPIC:PARTITION:OFFSET:BYTES …`: messages as a fetch response."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import data_dir_option, number

if TYPE_CHECKING:
    from storage.log.log import Log

_NAMED_OFFSETS = ("earliest", "latest")


class _Request(NamedTuple):
    topic: str
    partition: int
    offset: int | str  # or one of _NAMED_OFFSETS
    max_bytes: int


def _requests(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> list[_Request]:
    from storage.convert.fetch import MAX_SET_BYTES

    requests = []
    for text in texts:
        parts = text.split(":")
        if len(parts) != 4 or not parts[0]:
            raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION:OFFSET:BYTES")
        named = parts[2] in _NAMED_OFFSETS
        offset = parts[2] if named else number(parts[2], "offset, earliest or latest")
        max_bytes = number(parts[3], "count of bytes")
        if not 0 < max_bytes <= MAX_SET_BYTES:
            raise click.BadParameter(f"{max_bytes} bytes are not from 1 to {MAX_SET_BYTES}")
        requests.append(_Request(parts[0], number(parts[1], "partition"), offset, max_bytes))
    return requests


@click.command("fetch")
@data_dir_option
@click.option(
    "--reset",
    type=click.Choice(_NAMED_OFFSETS),
    help="Where to read instead of an offset that is outside the log.",
)
@click.argument(
    "requests",
    metavar="TOPIC:PARTITION:OFFSET:BYTES...",
    nargs=-1,
    required=True,
    callback=_requests,
)
def command(data_dir: str, reset: str | None, requests: list[_Request]) -> None:
    """Write messages to standard output, as a server's response to a fetch.

    OFFSET is a number, earliest or latest. BYTES bounds the messages: the first one is whole even
    if it is larger, the last one may be cut. One request gives a MessageSetSend, several a
    MultiMessageSetSend. Standard error says how many messages these are and where to go on.

    The directory may be in use: nothing is changed in it.
    """
    from storage.convert.fetch import encode_multi_response
    from storage.directory.manager import LogManager

    whole = True
    responses = []
    with (
        one_line_errors(),
        LogManager.open(data_dir, read_only=True) as manager,
    ):
        logs = [manager.log(request.topic, request.partition) for request in requests]
        for log, request in zip(logs, requests, strict=True):
            response, found = _respond(log, request, reset)
            responses.append(response)
            whole = whole and found
    data = responses[0] if len(responses) == 1 else encode_multi_response(responses)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    if not whole:
        sys.exit(1)


def _respond(log: Log, request: _Request, reset: str | None) -> tuple[bytes, bool]:
    """(the response to one request, whether its offset was inside the log)"""
    from storage.convert.fetch import ErrorCode, encode_response, read_messages
    from storage.errors import OffsetOutOfRange

    where = f"{request.topic}:{request.partition}"
    offset = request.offset
    if isinstance(offset, int) and not log.log_start_offset <= offset <= log.log_end_offset:
        if reset is None:
            error = OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
            say(f"kafkafs: OffsetOutOfRange: {where}: {error}", err=True)
            return encode_response(b"", ErrorCode.OFFSET_OUT_OF_RANGE), False
        offset = reset
    if isinstance(offset, str):
        earliest = offset == "earliest"
        offset = log.log_start_offset if earliest else log.last_stable_offset
    found = read_messages(log, offset, request.max_bytes)
    say(f"{where}: {found.count} messages, next offset {found.next_offset}", err=True)
    return encode_response(found.data), True
