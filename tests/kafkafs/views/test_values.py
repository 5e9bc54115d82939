"""kafkafs.views.values_view: lines in, the same lines out, through the view's own face."""

from __future__ import annotations

from kafkafs.views import values_view
from kafkafs.views._measure import Cursor, Measure


def test_lines_come_back() -> None:
    view = values_view()
    text = b"one\n\nthree with \xff and \0\n"
    batches, lines = view.parse(text, 0, len(text), 1_700_000_000_000, 1_000_000)
    assert lines == 3
    out = bytearray(100)
    end, skip = view.render(batches, 0, len(batches), Cursor(0), out, 0, len(out), 0)
    assert out[:end] == text
    assert skip == 0
    state = Measure()
    view.measure(batches, 0, len(batches), state)
    assert (state.text_length, state.records) == (len(text), 3)
    assert view.name == "values"
