"""The plain view: each record's value and a newline; each line appended is a value.

This view is the fastest. A null value is an empty line, and a value with a newline shows as two. It
shows no keys, headers and timestamps; an appended line has only the time of its append.
"""

from __future__ import annotations

from typing import Final, Literal

from kafkafs.views import _parse, _render


class Values:
    """`TextView` for values; has no state.

    With `committed` false it also shows aborted and open transactions
    (isolation.level=read_uncommitted): other text at other positions, so its name differs.
    """

    is_text: Literal[True] = True
    whole_records: Final = False

    def __init__(self, committed: bool = True) -> None:
        self.committed: Final = committed
        self.name: Final = "values" if committed else "uncommitted"

    parse = staticmethod(_parse.encode_lines)
    render = staticmethod(_render.render)
    measure = staticmethod(_render.measure)
