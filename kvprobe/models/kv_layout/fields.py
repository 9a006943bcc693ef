"""Reading config.json as an untrusted input: every value checked, every key that was used remembered."""

from __future__ import annotations

import math
from typing import Any

from kvprobe.models.kv_layout.types import ModelConfig, Refused

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config.text_config")
_LIMIT = 1 << 40
"""No head count, width or window of a real model comes near; above it the number is damage."""


def look_up(config: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None where a step is absent or not an object."""
    value: Any = config
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


class Fields:
    """Typed access to the text part of a config.

    A key is looked for in the nested text config (``text_config`` and its older names), else at the top
    level when there is none. ``take()`` returns the keys read since the last call.
    """

    def __init__(self, model: ModelConfig) -> None:
        if not isinstance(model.config, dict):
            raise Refused(f"{model.name}: the config is not a JSON object.", "not_an_object")
        self.name = model.name
        self.top = model.config
        self.hf_quant_config = model.hf_quant_config
        self.prefix = next((p for p in _NESTED if isinstance(look_up(self.top, p), dict)), "")
        self.text: dict[str, Any] = look_up(self.top, self.prefix) if self.prefix else self.top
        self.used: dict[str, Any] = {}
        self._recent: list[str] = []

    def take(self) -> tuple[str, ...]:
        """The present keys read since the last call, in order."""
        recent, self._recent = tuple(dict.fromkeys(self._recent)), []
        return recent

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return look_up(self.text, key) is not None

    def raw(self, key: str) -> Any:
        """The value as it stands, remembered as used; None if absent."""
        value = look_up(self.text, key)
        if value is not None:
            path = f"{self.prefix}.{key}" if self.prefix else key
            self.used[path] = value
            self._recent.append(path)
        return value

    def raw_top(self, key: str) -> Any:
        """The same at the top level of the file."""
        value = look_up(self.top, key)
        if value is not None:
            self.used[key] = value
            self._recent.append(key)
        return value

    def first(self, *keys: str) -> str | None:
        """The first of the keys that is there and not null."""
        return next((key for key in keys if self.has(key)), None)

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least`` under the first key present. Raises Refused otherwise."""
        key = self.first(*keys)
        if key is None:
            if default is None:
                raise Refused(
                    f"{self.name}: config.json has no {' or '.join(keys)}, so the KV size is not known.",
                    "missing_key",
                    "Give the model's complete config.json.",
                )
            return default
        return self._whole(self.raw(key), key, least)

    def optional(self, *keys: str, least: int = 0) -> int | None:
        """As :meth:`count`; None when no key is present."""
        key = self.first(*keys)
        return None if key is None else self._whole(self.raw(key), key, least)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean. Raises Refused on another type."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self.wrong(key, value, "true or false")

    def text_value(self, key: str) -> str | None:
        """A string; None if absent. Raises Refused on another type."""
        value = self.raw(key)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(key, value, "a text")

    def items(self, key: str) -> list[Any] | None:
        """A list; None if absent. Raises Refused on another type."""
        value = self.raw(key)
        if value is None or isinstance(value, list):
            return value
        raise self.wrong(key, value, "a list")

    def wrong(self, key: str, value: Any, wanted: str) -> Refused:
        """The refusal for a value of the wrong type or range."""
        shown = repr(value)
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        return Refused(f"{self.name}: {key} is {shown}, not {wanted}.", "bad_value", "Check config.json.")

    def _whole(self, value: Any, key: str, least: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LIMIT:
            raise self.wrong(key, value, f"a whole number from {least}")
        return value
