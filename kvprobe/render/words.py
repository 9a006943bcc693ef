"""Words that every format for people uses: categories, figures and yardsticks."""

from __future__ import annotations

from kvprobe.finding import Expected, Quantity
from kvprobe.units import format_quantity

CATEGORIES = {
    "1": "topology", "2": "transfer", "3": "conversation", "4": "logs", "5": "configuration",
    "6": "budget", "7": "connectors", "8": "fleet", "9": "kvprobe",
}  # fmt: skip


def describe_quantity(quantity: Quantity) -> str:
    """``50.4 ms (median of 10)``."""
    text = format_quantity(quantity.value, quantity.unit)
    if quantity.statistic:
        count = f" of {quantity.samples}" if quantity.samples else ""
        text += f" ({quantity.statistic}{count})"
    return f"{text}, {quantity.note}" if quantity.note else text


def describe_expected(expected: Expected) -> str:
    """``at most 200 ms (policy default: ...)``."""
    parts = []
    if expected.value is not None:
        parts.append(format_quantity(expected.value, expected.unit))
    if expected.min is not None:
        parts.append(f"at least {format_quantity(expected.min, expected.unit)}")
    if expected.max is not None:
        parts.append(f"at most {format_quantity(expected.max, expected.unit)}")
    return f"{', '.join(parts) or 'see source'} ({expected.source})"
