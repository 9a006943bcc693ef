"""The gate: which architecture gets an answer, and from which family of caches."""

from __future__ import annotations

import difflib

from kvprobe.models.kv_layout.families import (
    BACKEND_TYPES,
    FAMILIES,
    PLUGINS,
    REMOVED,
    TEXT_TYPES,
    WITHOUT_RULE,
    WRAPPERS,
)
from kvprobe.models.kv_layout.fields import Fields
from kvprobe.models.kv_layout.full import Family
from kvprobe.models.kv_layout.types import Refused

_REMOVED_IN = {name: version for version, names in REMOVED.items() for name in names.split()}


def family_of(fields: Fields) -> tuple[str, Family]:
    """The first entry of ``architectures`` and its family, through the text part of a multimodal model.

    Raises Refused for an unknown or removed architecture: there is no falling back to a likeness.
    """
    name = _named(fields)
    inner = name
    if name in WRAPPERS:
        inner = WRAPPERS[name] or _text_architecture(fields, name)
    if inner in FAMILIES:
        wanted = BACKEND_TYPES.get(inner)
        if wanted and fields.model_type not in ("", wanted):
            raise Refused(
                f"{fields.name}: vLLM runs {inner} through transformers, which does not know its model type "
                f"{fields.model_type[:40]!r}.",
                "unknown_model_type",
                f"Use a checkpoint of the model type {wanted}.",
            )
        return inner, FAMILIES[inner]
    raise _unknown(fields, inner)


def _named(fields: Fields) -> str:
    names = fields.raw_top("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise Refused(
            f"{fields.name}: config.json names no architecture, so no rule can be chosen.",
            "unknown_architecture",
            "Give the model's complete config.json.",
        )
    return names[0]


def _text_architecture(fields: Fields, wrapper: str) -> str:
    names = fields.text.get("architectures") if fields.prefix else None
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    kind = fields.model_type
    if fields.prefix and kind in TEXT_TYPES:
        return TEXT_TYPES[kind]
    raise Refused(
        f"{fields.name}: the text part of {wrapper} is of type {kind or '(none)'!r}, for which there is no rule.",
        "unknown_architecture",
    )


def _unknown(fields: Fields, name: str) -> Refused:
    shown = name if len(name) <= 80 else f"{name[:80]}..."
    who = f"{fields.name}: {shown} (model type {fields.model_type or 'not given'})"
    if name in _REMOVED_IN:
        return Refused(
            f"{who} is no longer served: vLLM removed it in {_REMOVED_IN[name]}.",
            "removed_architecture",
            "Use another model, or the vLLM version before that.",
        )
    if name in PLUGINS:
        return Refused(f"{who} is served by an out-of-tree plugin only.", "plugin_architecture")
    if name in WITHOUT_RULE:
        return Refused(
            f"{who}: the first missing rule is that for {WITHOUT_RULE[name]}.",
            "architecture_without_rule",
            "Ask an installed vLLM with --cross-check.",
        )
    near = difflib.get_close_matches(name, [*FAMILIES, *WRAPPERS], 1, 0.9)
    hint = f"Is {near[0]} meant?" if near else "Ask an installed vLLM with --cross-check."
    return Refused(f"{who} has no KV rule, and kvprobe does not guess one.", "unknown_architecture", hint)
