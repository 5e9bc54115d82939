"""Where tests of a dump have it print to."""

from __future__ import annotations

from kafkafs.dump.events import Value


class Printed:
    """What is printed, and what is complained about."""

    is_json = False

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Value]]] = []
        self.lines: list[bytes] = []
        self.complaints: list[str] = []

    def event(self, kind: str, **fields: Value) -> None:
        self.events.append((kind, fields))

    def text(self, lines: memoryview) -> None:
        self.lines += bytes(lines).splitlines()

    def complain(self, line: str, kind: str, **fields: Value) -> None:
        self.complaints.append(line)

    def flush(self) -> None:
        """Nothing is held back."""
