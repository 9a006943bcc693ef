"""Base units inside (bytes, seconds, bytes per second), human units only here, at the edge."""

from __future__ import annotations

import math
import re

from kvprobe.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BINARY = (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_SIZE_UNITS = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": KIB, "m": MIB, "g": GIB, "t": 1024**4, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024**4,
}  # fmt: skip
_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE_UNITS = {
    "b/s": 1 / 8, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9, "tb/s": 1e12,
    "kib/s": KIB, "mib/s": MIB, "gib/s": GIB,
    "kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8, "tbit/s": 1e12 / 8,
    "kbps": 1e3 / 8, "mbps": 1e6 / 8, "gbps": 1e9 / 8, "tbps": 1e12 / 8,
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z/]*)\s*$")


def significant(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, without an exponent, thousands grouped."""
    number = float(f"{value:.{digits}g}")
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    decimals = max(0, digits - 1 - _exponent(number))
    return f"{number:,.{decimals}f}"


def _exponent(number: float) -> int:
    return int(f"{number:e}".split("e")[1])


def format_bytes(value: float) -> str:
    """448 MiB, 57,344 B: exact below 1 MiB, three digits above."""
    for unit, size in _BINARY:
        if abs(value) >= size and (size > KIB or value % KIB == 0):
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f} B"


def format_seconds(value: float) -> str:
    """1.29 s, 50.4 ms, 3.5 us."""
    size = abs(value)
    if size >= 120:
        return f"{significant(value / 60)} min"
    if size >= 1:
        return f"{significant(value)} s"
    if size >= 1e-3 or value == 0:
        return f"{significant(value * 1e3)} ms"
    return f"{significant(value * 1e6)} us"


def signed_seconds(value: float) -> str:
    """+69.0 ms, -108 ms: for differences."""
    return ("+" if value > 0 else "-" if value < 0 else "") + format_seconds(abs(value))


def format_rate(value: float) -> str:
    """385 GB/s (decimal, as link speeds are sold)."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(value) >= size * 0.1:
            return f"{significant(value / size)} {unit}"
    return f"{value:,.0f} B/s"


def format_quantity(value: float | int | str | bool | None, unit: str) -> str:
    """One value in the human form of its base unit; ``not measured`` for None."""
    if value is None:
        return "not measured"
    if isinstance(value, bool | str):
        return str(value)
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    if unit == "B/s":
        return format_rate(value)
    if unit == "ratio":
        return f"{significant(value * 100)} %"
    number = f"{value:,}" if isinstance(value, int) else significant(value)
    return f"{number} {unit}".strip()


def parse_size(text: str) -> int:
    """``512MiB`` -> bytes. Decimal for MB, binary for MiB and plain M. Raises UsageError."""
    return round(_parse(text, _SIZE_UNITS, "a size such as 512MiB"))


def parse_duration(text: str) -> float:
    """``10s``, ``250ms``, ``2h`` -> seconds. Raises UsageError."""
    return _parse(text, _TIME_UNITS, "a duration such as 10s, 250ms or 2h")


def parse_rate(text: str) -> float:
    """``400Gb/s`` (bits) or ``50GB/s`` (bytes) -> bytes per second. The case of the b decides. Raises UsageError."""
    match = _NUMBER.match(text)
    if match and match[2].endswith("b/s"):
        text = match[1] + match[2].removesuffix("b/s") + "bit/s"
    elif match and match[2].endswith("bps"):
        text = match[1] + match[2].removesuffix("bps") + "bit/s"
    return _parse(
        text.replace("bit/s", "BIT/S"), _RATE_UNITS | {"bit/s": 1 / 8}, "a rate such as 400Gb/s or 50GB/s"
    )


def _parse(text: str, table: dict[str, float] | dict[str, int], what: str) -> float:
    match = _NUMBER.match(text)
    unit = match[2].lower() if match else ""
    if not match or unit not in table:
        raise UsageError(f"{text!r} is not {what}.")
    return float(match[1].replace(",", "").replace("_", "")) * table[unit]
