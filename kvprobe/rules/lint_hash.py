"""KVP513, KVP517: what NIXL's compatibility hash covers, and what it does not cover but has to be equal too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding
from kvprobe.formats.serve_command_surface import show_version
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, known, merged, say

_SPECULATIVE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


def hash_factors(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP513: all factors of NIXL's compatibility hash that the command lines decide are equal on both sides."""
    found = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        differing = list(_differing(pair))
        for what, left, right, fix in differing:
            unchecked = pair.decode.nixl.extra.get("enforce_handshake_compat") is False
            found.append(
                say(
                    "KVP513", "compat-hash", "error",
                    f"{what} differs: prefill {left}, decode {right}\nit is part of NIXL's compatibility hash, so every "
                    "request fails with a hash mismatch" if not unchecked else
                    f"{what} differs: prefill {left}, decode {right}\nenforce_handshake_compat is off, so decode reads it as its own",
                    code="compat_hash_factor_differs", where=pair.where, fix=fix,
                    notes=("vLLM itself shows only the two digests.",),
                )
            )  # fmt: skip
        if not differing:
            found.append(
                say(
                    "KVP513", "compat-hash", "ok",
                    "model string, dtype, KV cache dtype, attention backend, HMA and speculation are equal on both sides",
                    where=pair.where,
                )
            )  # fmt: skip
    yield from merged(found)


def _differing(pair: Pair) -> Iterable[tuple[str, str, str, str]]:
    p, d = pair.prefill, pair.decode
    if p.version and d.version and p.version != d.version:
        yield (
            "the vLLM version",
            show_version(p.version),
            show_version(d.version),
            "Roll out the same vLLM on both sides at once.",
        )
    if before(p.version, (0, 13, 0)) and before(d.version, (0, 13, 0)):
        return
    if (
        p.serve.model
        and d.serve.model
        and known(p.serve.model, d.serve.model)
        and p.serve.model != d.serve.model
    ):
        yield (
            "the model string",
            p.serve.model,
            d.serve.model,
            ("Give both the same text: both the same path or both the same hub id, of the same checkpoint."),
        )
    for option, default in (("--dtype", "auto"), ("--kv-cache-dtype", "auto")):
        left, right = p.serve.get(option) or default, d.serve.get(option) or default
        if known(left, right) and left != right:
            yield option, left, right, f"Use the same {option} on both sides."
    backends = [_backend(i) for i in (p, d)]
    if backends[0] != backends[1] and known(*(b or "auto" for b in backends)):
        yield (
            "the attention backend",
            backends[0] or "auto",
            backends[1] or "auto",
            "Set the same --attention-backend on both.",
        )
    if p.hma is not None and d.hma is not None and p.hma != d.hma and not before(p.version, (0, 20, 2)):
        words = ["on" if i.hma else "off" for i in (p, d)]
        yield (
            "the hybrid KV cache manager",
            words[0],
            words[1],
            (
                "Pass --disable-hybrid-kv-cache-manager on both sides, or on neither, with the same connectors."
            ),
        )
    speculation = [_speculation(i) for i in (p, d)]
    if None not in speculation and speculation[0] != speculation[1] and not before(p.version, (0, 28, 0)):
        yield (
            "speculative decoding",
            speculation[0] or "off",
            speculation[1] or "off",
            "Use the same method and draft model on both.",
        )


def _backend(instance: Instance) -> str | None:
    given = instance.serve.get("--attention-backend") or instance.setting("VLLM_ATTENTION_BACKEND")
    nested = instance.serve.nested.get("--attention-config", {}).get("backend")
    value = given or (str(nested) if nested else None)
    return value.upper().removesuffix("_VLLM_V1") if value else None


def _speculation(instance: Instance) -> str | None:
    """Method and draft model if they are hashed; empty for none; None if it cannot be read here."""
    text = instance.serve.get("--speculative-config")
    config: Any = instance.serve.nested.get("--speculative-config") if text is None else None
    if text is not None:
        try:
            config = json.loads(text)
        except (ValueError, RecursionError):
            return None
    if not isinstance(config, dict):
        return ""
    method = str(config.get("method", "")).lower()
    return f"{method} {config.get('model', '')}".strip() if method in _SPECULATIVE else ""


def same_prompt(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP517: both sides turn a chat into the same tokens; decode takes prefill's KV by position, not by content."""
    found = []
    for pair in facts.pairs:
        for option in (
            "--chat-template",
            "--tokenizer",
            "--tokenizer-mode",
            "--tokenizer-revision",
            "--revision",
            "--default-chat-template-kwargs",
        ):
            left, right = pair.prefill.serve.get(option), pair.decode.serve.get(option)
            if left != right and known(left or "unset", right or "unset"):
                found.append(
                    say(
                        "KVP517", "same-prompt", "warn",
                        f"{option} differs: prefill {left or 'unset'}, decode {right or 'unset'}\nif the token ids differ, decode "
                        "takes wrong KV without an error",
                        code="prompt_rendering_differs", where=pair.where, fix=f"Use the same {option} on both sides.",
                    )
                )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP513", "compat-hash", hash_factors),
    Rule("KVP517", "same-prompt", same_prompt),
)
