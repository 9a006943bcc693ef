"""The gate: which architecture gets an answer, and from which family of caches."""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.fields import Fields
from kvprobe.models.kv_layout.full import dense
from kvprobe.models.kv_layout.types import LayerGroup, Refused

Family = Callable[[Context], list[LayerGroup]]

FAMILIES: dict[str, Family] = dict.fromkeys(("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"), dense)  # fmt: skip


def family_of(fields: Fields) -> tuple[str, Family]:
    """The first entry of ``architectures`` and its family. Raises Refused for an unknown one."""
    names = fields.raw_top("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise Refused(
            f"{fields.name}: config.json names no architecture, so no rule can be chosen.",
            "unknown_architecture",
            "Give the model's complete config.json.",
        )
    name = names[0]
    if name not in FAMILIES:
        raise Refused(
            f"{fields.name}: kvprobe has no KV rule for the architecture {name}.", "unknown_architecture"
        )
    return name, FAMILIES[name]
