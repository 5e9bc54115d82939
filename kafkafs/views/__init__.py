"""Views: ways of writing a partition's records as text, and of reading them back from it.

A view is incremental and pure: bytes in, bytes and numbers out, no file, clock or thread. Its
state between two calls is a `Cursor` or a `Measure`, which belong to the caller.

`_measure` has both, and the loop over batches that all views share. `_render` is the values view,
`_key_value` and `_json_lines` (text in `_json_text`) the views of whole records, which share
`_whole`. `_parse` makes batches of lines of values, `_key_value` of its own lines; `json_records`
and `_json_records` parse JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from kafkafs.views import _json_lines, _key_value, _parse, _render

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from kafkafs.views._measure import Loops


class Parse(Protocol):
    """As `_parse.encode_lines`."""

    def __call__(
        self,
        data: Buffer,
        start: int,
        end: int,
        timestamp_ms: int,
        max_batch_bytes: int,
        begun: bytes | bytearray = b"",
        /,
    ) -> tuple[bytearray, int]: ...


class TextView:
    """A view that shows records as text, and takes lines.

    `name`: of its line indexes and absolute positions, too. `committed`: it ends at the last stable
    offset and leaves out aborted transactions; one that shows those too (`read_uncommitted`) has
    other text at other positions, and so another name. `whole_records`: it shows more than values;
    a cursor in a batch then needs the batch's header.

    `render` and `measure` are those of `_measure.Loops`; `parse` is as
    `_parse.encode_lines`.
    """

    is_text: Final[Literal[True]] = True

    def __init__(
        self, name: str, parse: Parse, loops: Loops, *, committed: bool, whole_records: bool
    ) -> None:
        self.name: Final = name
        self.committed: Final = committed
        self.whole_records: Final = whole_records
        self.parse: Final = parse
        self.render: Final = loops.render
        self.measure: Final = loops.measure


def values_view(committed: bool = True) -> TextView:
    """The plain view: each record's value and a newline; each line appended is a value.

    The fastest. A null value is an empty line, and a value with a newline shows as two. It shows no
    keys, headers and timestamps; an appended line has only the time of its append.
    """
    name = "values" if committed else "uncommitted"
    return TextView(
        name, _parse.encode_lines, _render.LOOPS, committed=committed, whole_records=False
    )


def key_value_view(committed: bool = True) -> TextView:
    """`key TAB value` and a newline for each record, the same to append (`_key_value.pyx`).

    The view keeps all bytes of key and value, and nulls. It shows no headers and timestamps; an
    appended line has no headers, and the time of its append.
    """
    name = "kv" if committed else "kv-uncommitted"
    return TextView(
        name, _key_value.encode_lines, _key_value.LOOPS, committed=committed, whole_records=True
    )


def json_lines_view(committed: bool = True) -> TextView:
    """A JSON object on a line of its own for each record, the same to append.

    The view loses nothing of a record but its offset, which the log assigns at an append. It writes
    the format in `_json_lines.pyx`, and takes the one in `json_records.py`.
    """
    name = "jsonl" if committed else "jsonl-uncommitted"
    return TextView(name, _parse_json, _json_lines.LOOPS, committed=committed, whole_records=True)


def _parse_json(
    data: Buffer,
    start: int,
    end: int,
    timestamp_ms: int,
    max_batch_bytes: int,
    begun: bytes | bytearray = b"",
) -> tuple[bytearray, int]:
    # Only the first append imports the parser: a mount starts without it.
    from kafkafs.views.json_records import parse

    return parse(data, start, end, timestamp_ms, max_batch_bytes, begun)


#: The functions that make the views of text, by their names in commands.
TEXT_VIEWS: Final = {"values": values_view, "kv": key_value_view, "jsonl": json_lines_view}


class BatchesView:
    """The view of a partition's record batches as they are stored, back to back.

    Its bytes are the segments' own, from the batch with the log start to the log end: control
    batches, aborted and open transactions and empty batches too, of any codec and format. So it has
    nothing to render or to measure.
    """

    name: Final = "batches"
    is_text: Final[Literal[False]] = False
    committed: Final = False


View: TypeAlias = TextView | BatchesView

#: The list of views: the functions that make them, by name. The first is the view of a topic's own
#: files, and `.NAME` is the directory of each other one.
VIEWS: Final[dict[str, Callable[[bool], View]]] = {
    **TEXT_VIEWS,
    "batches": lambda committed: BatchesView(),
}
