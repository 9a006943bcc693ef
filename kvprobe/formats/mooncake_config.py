"""``MOONCAKE_CONFIG_PATH``: the JSON file of MooncakeStoreConnector, checked as vLLM 0.33 reads it."""

from __future__ import annotations

import math
import re
from typing import Any

from kvprobe.errors import FormatError
from kvprobe.formats.chat_template import parse_object

KEYS = {
    "metadata_server", "master_server_address", "protocol", "device_name", "mode", "global_segment_size",
    "local_buffer_size", "enable_offload", "tenant_id",
}  # fmt: skip
MODES = ("embedded", "standalone-store")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*$", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DEFAULT_BYTES = 4 * 2**30


def problem_of(text: str, source: str) -> str | None:
    """What vLLM would refuse in the file, in one sentence; None if it would take it."""
    try:
        data = parse_object(text, source)
    except FormatError as error:
        return error.reason.removeprefix(f"{source} ")
    mode = data.get("mode", "embedded")
    if mode not in MODES:
        return f"mode is {mode!r}; it must be {' or '.join(MODES)}"
    try:
        segment = size_of(data.get("global_segment_size", _DEFAULT_BYTES))
        size_of(data.get("local_buffer_size", _DEFAULT_BYTES))
    except ValueError as error:
        return str(error)
    if mode == "embedded" and segment <= 0:
        return "mode embedded needs a global_segment_size above 0"
    if mode == "standalone-store" and segment != 0:
        return "mode standalone-store needs global_segment_size 0"
    for key in ("metadata_server", "master_server_address"):
        if not isinstance(data.get(key), str) or not data[key]:
            return f"{key} is missing"
    unknown = sorted(set(data) - KEYS)
    return f"unknown key {unknown[0]!r}" if unknown else None


def size_of(value: Any) -> int:
    """A size as a number of bytes or a text such as ``4GB`` (binary, as Mooncake takes it). Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value)
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size such as 4GB")
    return int(float(match[1]) * _UNITS[match[2].lower()[:1].replace("b", "")])
