"""Click types for quantities: text with a unit in, base units out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kvprobe.errors import UsageError
from kvprobe.units import parse_duration, parse_rate, parse_size


class Quantity(click.ParamType):  # type: ignore[type-arg]  # generic only since Click 8.3
    """A number with a unit; plain numbers are base units."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(error.reason, param, ctx)


DURATION = Quantity("duration", parse_duration)
SIZE = Quantity("size", parse_size)
RATE = Quantity("rate", parse_rate)
