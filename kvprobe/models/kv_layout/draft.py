"""Draft layers: multi-token prediction adds decoder layers of the model's own kind, and their caches move too."""

from __future__ import annotations

import msgspec

from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.types import LayerGroup

_COUNT = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_RULED = {
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM", "MiMoForCausalLM",
}  # fmt: skip
"""Classes whose MTP layer is one more layer of the same cache kind in vLLM 0.33."""


def with_mtp(context: Context, groups: list[LayerGroup]) -> list[LayerGroup]:
    """The groups with the MTP layers appended. Raises Refused when the checkpoint has none or there is no rule."""
    kept = context.fields.take()
    count = context.fields.optional(*_COUNT)
    keys = context.fields.take()
    context.fields.keep(kept)
    if not count:
        raise context.refuse(
            "--mtp was given, but config.json has no MTP layers.", "no_mtp_layers", "Leave --mtp out."
        )
    if context.architecture not in _RULED:
        raise context.refuse(
            f"the caches of {context.architecture}'s MTP layers have no rule.", "mtp_without_rule"
        )
    first = context.layers()
    added = tuple(range(first, first + count))
    return [_extended(group, added, keys) for group in groups]


def _extended(group: LayerGroup, added: tuple[int, ...], keys: tuple[str, ...]) -> LayerGroup:
    line = f"{len(added)} MTP layer(s) with a cache of the same shape"
    return msgspec.structs.replace(
        group,
        layers=(*group.layers, *added),
        keys=(*group.keys, *keys),
        arithmetic=(*group.arithmetic, line),
    )
