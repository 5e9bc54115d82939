"""The view of keys and values: `key TAB value` and a newline for each record, the same to append.

The view keeps all bytes of key and value, and nulls: `_key_value.pyx` has the format. It shows no
headers and timestamps; an appended line has no headers, and the time of its append.
"""

from __future__ import annotations

from typing import Final, Literal

from kafkafs.views import _key_value

_LOOPS = _key_value.KeyValueLoops()


class KeyValue:
    """`TextView` for keys and values; has no state. `committed` is as in `Values`."""

    is_text: Literal[True] = True
    whole_records: Final = True

    def __init__(self, committed: bool = True) -> None:
        self.committed: Final = committed
        self.name: Final = "kv" if committed else "kv-uncommitted"

    parse = staticmethod(_key_value.parse_lines)
    render = staticmethod(_LOOPS.render)
    measure = staticmethod(_LOOPS.measure)
