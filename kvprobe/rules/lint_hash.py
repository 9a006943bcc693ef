"""KVP513, KVP517: what NIXL's compatibility hash covers, and what it does not cover but has to be equal too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvprobe.finding import Finding
from kvprobe.formats.serve_command_surface import show_version
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, known, merged, say

_SAME_DTYPE = {"half": "float16", "float": "float32"}
_SPECULATIVE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


class Difference(NamedTuple):
    """One factor that is not the same text on both sides."""

    what: str
    sides: Sequence[str]
    """Prefill's and decode's."""
    fix: str
    perhaps: str = ""
    """When the two may still come out equal; empty: they do not."""


def hash_factors(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP513: all factors of NIXL's compatibility hash that the command lines decide are equal on both sides."""
    found = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        differing = list(_differing(pair))
        found += [_finding(pair, difference) for difference in differing]
        if not differing:
            found.append(
                say(
                    "KVP513", "compat-hash", "ok",
                    "model string, dtype, KV cache dtype, attention backend, HMA and speculation are equal on both sides",
                    where=pair.where,
                )
            )  # fmt: skip
    yield from merged(found)


def _finding(pair: Pair, difference: Difference) -> Finding:
    what, (left, right), fix, perhaps = difference
    unchecked = (
        pair.decode.nixl is not None and pair.decode.nixl.extra.get("enforce_handshake_compat") is False
    )
    effect = (
        "enforce_handshake_compat is off, so decode reads prefill's KV as if it were its own" if unchecked
        else f"it is part of NIXL's compatibility hash, so every request fails with a hash mismatch{perhaps}"
    )  # fmt: skip
    return say(
        "KVP513", "compat-hash", "warn" if perhaps else "error",
        f"{what} differs: prefill {left}, decode {right}\n{effect}",
        code="compat_hash_factor_differs", where=pair.where, fix=fix,
        notes=("vLLM itself shows only the two digests.",),
    )  # fmt: skip


def _differing(pair: Pair) -> Iterable[Difference]:
    p, d = pair.prefill, pair.decode
    if p.version and d.version and p.version != d.version:
        versions = show_version(p.version), show_version(d.version)
        yield Difference("the vLLM version", versions, "Roll out the same vLLM on both sides at once.")
    if before(p.version, (0, 13, 0)) and before(d.version, (0, 13, 0)):
        return  # no hash yet
    models = [i.serve.model or "" for i in (p, d)]
    if all(models) and known(*models) and models[0] != models[1]:
        same = "Give both the same text: both the same path or both the same hub id, of the same checkpoint."
        yield Difference("the model string", models, same)
    yield from _dtypes(p, d)
    backends = [_backend(i) for i in (p, d)]
    if backends[0] != backends[1] and known(*(b or "auto" for b in backends)):
        perhaps = "" if all(backends) else ", unless vLLM chooses this backend by itself"
        shown = [b or "auto" for b in backends]
        yield Difference("the attention backend", shown, "Set the same --attention-backend on both.", perhaps)
    if p.hma is not None and d.hma is not None and p.hma != d.hma and not before(p.version, (0, 20, 2)):
        words = ["on" if i.hma else "off" for i in (p, d)]
        same = (
            "Pass --disable-hybrid-kv-cache-manager on both sides, or on neither, with the same connectors."
        )
        yield Difference("the hybrid KV cache manager", words, same)
    speculation = [_speculation(i) for i in (p, d)]
    if None not in speculation and speculation[0] != speculation[1] and not before(p.version, (0, 28, 0)):
        words = [s or "off" for s in speculation]
        yield Difference("speculative decoding", words, "Use the same method and draft model on both.")


def _dtypes(p: Instance, d: Instance) -> Iterable[Difference]:
    kv = [i.serve.get("--kv-cache-dtype") or "auto" for i in (p, d)]
    if known(*kv) and kv[0] != kv[1]:
        yield Difference("--kv-cache-dtype", kv, "Use the same --kv-cache-dtype on both sides.")
    # The model's dtype is hashed after it is resolved, so `auto` may be the same as what the other side spells out.
    given = [i.serve.get("--dtype") or "auto" for i in (p, d)]
    weights = [_SAME_DTYPE.get(g, g) for g in given]
    if known(*given) and weights[0] != weights[1]:
        perhaps = ", unless auto gives the same for this checkpoint" if "auto" in weights else ""
        yield Difference("--dtype", given, "Use the same --dtype on both sides.", perhaps)


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
