"""Reading config.json as an untrusted input: every value checked, every key that was used remembered."""

from __future__ import annotations

import math
from typing import Any

from kvprobe.models.kv_layout.class_defaults import CLASS_DEFAULTS
from kvprobe.models.kv_layout.types import ModelConfig, Refused

_NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config.text_config",
    "language_model_config",
)
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")
"""Left out of a nested text config they mean the class's default; missing at the top level they mean damage."""
_LIMIT = 1 << 32
"""No head count, width or window of a real model comes near; above it the number is damage."""
MAX_LAYERS = 4096


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

    A key is looked for in the nested text config (``text_config`` and its older names), or at the top level
    when there is none. A key that is absent (not null) may have a default in the model type's configuration
    class; that is remembered in ``defaulted``. ``take()`` returns the keys read since the last call.
    """

    def __init__(self, model: ModelConfig) -> None:
        if not isinstance(model.config, dict):
            raise Refused(
                f"{model.name}: the config is not a JSON object.", "bad_value", "Check config.json."
            )
        self.name = model.name
        self.top = model.config
        self.hf_quant_config = model.hf_quant_config
        self.prefix = next((p for p in _NESTED if isinstance(look_up(self.top, p), dict)), "")
        self.text: dict[str, Any] = look_up(self.top, self.prefix) if self.prefix else self.top
        self.used: dict[str, Any] = {}
        self.defaulted: dict[str, int] = {}
        self._recent: list[str] = []

    @property
    def model_type(self) -> str:
        """The text part's ``model_type``; empty if it has none."""
        value = self.text.get("model_type") or self.top.get("model_type")
        return value if isinstance(value, str) else ""

    def class_default(self, key: str) -> int | None:
        """What transformers fills in for an absent key of this model type; None if nothing fixed."""
        kind = self.model_type
        table = CLASS_DEFAULTS.get(f"{kind}_text") or CLASS_DEFAULTS.get(kind) or {}
        return table.get(key)

    def take(self) -> tuple[str, ...]:
        """The present keys read since the last call, in order."""
        recent, self._recent = tuple(dict.fromkeys(self._recent)), []
        return recent

    def keep(self, keys: tuple[str, ...]) -> None:
        """Put keys back for the next :meth:`take`."""
        self._recent = [*keys, *self._recent]

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return look_up(self.text, key) is not None

    def raw(self, key: str) -> Any:
        """The value as it stands, remembered as used; None if absent."""
        value = look_up(self.text, key)
        if value is not None:
            self._remember(f"{self.prefix}.{key}" if self.prefix else key, value)
        return value

    def raw_top(self, key: str) -> Any:
        """The same at the top level of the file."""
        value = look_up(self.top, key)
        if value is not None:
            self._remember(key, value)
        return value

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """A whole number under the first key present, else the class's default, else ``default``.

        Raises Refused if there is none or it is no whole number of at least ``least``.
        """
        found = self.optional(*keys, least=least)
        if found is not None:
            return found
        if default is not None:
            return default
        raise Refused(
            f"{self.name}: config.json has no {' or '.join(keys)}, so the KV size is not known.",
            "missing_key",
            "Give the model's complete config.json.",
        )

    def optional(self, *keys: str, least: int = 0) -> int | None:
        """As :meth:`count`; None when no key is present and the class has no default."""
        for key in keys:
            if self.has(key):
                return self.whole(self.raw(key), key, least)
        for key in keys:
            if key in self.text or (key in _SIZES and not self.prefix):
                continue
            default = self.class_default(key)
            if default is not None:
                self.defaulted[key] = default
                self._recent.append(f"{key} (default of {self.model_type})")
                return default
        return None

    def flag(self, key: str, default: bool) -> bool:
        """A boolean. Raises Refused on another type."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self.wrong(key, value, "true or false")

    def word(self, key: str) -> str | None:
        """A text; None if absent. Raises Refused on another type."""
        value = self.raw(key)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(key, value, "a text")

    def items(self, key: str) -> list[Any] | None:
        """A list of at most :data:`MAX_LAYERS`; None if absent. Raises Refused on another type."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, list) and len(value) <= MAX_LAYERS:
            return value
        raise self.wrong(key, value, f"a list of at most {MAX_LAYERS} entries")

    def wrong(self, key: str, value: Any, wanted: str) -> Refused:
        """The refusal for a value of the wrong type or range."""
        shown = repr(value)[:40] if not isinstance(value, list | dict) else f"a {type(value).__name__}"
        return Refused(f"{self.name}: {key} is {shown}, not {wanted}.", "bad_value", "Check config.json.")

    def whole(self, value: Any, key: str, least: int = 0) -> int:
        """``value`` as a whole number from ``least``. Raises Refused."""
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LIMIT:
            raise self.wrong(key, value, f"a whole number from {least} to {_LIMIT}")
        return value

    def _remember(self, path: str, value: Any) -> None:
        self.used[path] = value
        self._recent.append(path)
