"""The plain view: each record's value and a newline; each line appended is a value.

A null value is an empty line, and a value that holds a newline shows as two: the fast view, and
lossy only in that. Keys, headers and timestamps are not shown; an appended line has none but the
time it is given.
"""

from __future__ import annotations

from typing import Final, Literal

from kafkafs.views import _parse, _render


class Values:
    """`TextView` for values; has no state.

    With `committed` false it also shows aborted transactions and, at once, open ones
    (isolation.level=read_uncommitted): other text at other positions, so it has another name.
    """

    is_text: Literal[True] = True
    whole_records: Final = False

    def __init__(self, committed: bool = True) -> None:
        self.committed: Final = committed
        self.name: Final = "values" if committed else "uncommitted"

    parse = staticmethod(_parse.encode_lines)
    render = staticmethod(_render.render)
    measure = staticmethod(_render.measure)
