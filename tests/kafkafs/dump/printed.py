"""An output for tests of dumps."""

from __future__ import annotations

from kafkafs.dump.output import Output, Value


class Printed(Output):
    """Collects the events, the printed lines and the complaints."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Value]]] = []
        self.lines: list[bytes] = []
        self.complaints: list[str] = []
        super().__init__(self._add_lines, lambda line: self.complaints.append(bytes(line).decode()))

    def event(self, kind: str, **fields: Value) -> None:
        self.events.append((kind, fields))

    def _add_lines(self, lines: bytes | memoryview) -> None:
        self.lines += bytes(lines).splitlines()
