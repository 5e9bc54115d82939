"""Types of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from storage.units import duration_ms, size_bytes


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    def __init__(
        self, parse: Callable[[str, str], int], unit: str, least: str, most: str | None
    ) -> None:
        self._parse, self._unit, self._least, self._most = parse, unit, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        try:
            number = self._parse(value, self._unit)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)
        if number < self._parse(self._least, self._unit):
            self.fail(f"{value!r} is less than {self._least}", param, ctx)
        if self._most is not None and number > self._parse(self._most, self._unit):
            self.fail(f"{value!r} is more than {self._most}", param, ctx)
        return number


class Duration(_Quantity):
    """A duration, as milliseconds. A number without a unit has the given one."""

    name = "duration"

    def __init__(self, unit: str = "ms", least: str = "0") -> None:
        super().__init__(duration_ms, unit, least, None)


class ByteCount(_Quantity):
    """A size, as bytes."""

    name = "size"

    def __init__(self, least: str = "0", most: str | None = None) -> None:
        super().__init__(size_bytes, "B", least, most)
