"""KVP513-517: what prefill and decode have to have in common for the first request to pass NIXL's handshake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvprobe.finding import Finding
from kvprobe.formats.serve_command_surface import show_version
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, known, merged, named, say

_SPECULATIVE = ("eagle", "eagle3", "mtp", "dflash", "dspark")
_LAYOUTS = {"NHD": "LBNHC", "HND": "LBHNC"}


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
                    f"{what} differs: prefill {left}, decode {right}; it is part of NIXL's compatibility hash, so every "
                    "request fails with a hash mismatch" if not unchecked else
                    f"{what} differs: prefill {left}, decode {right}; enforce_handshake_compat is off, so decode reads it as its own",
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


def parallel_shape(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP514: the tensor, pipeline and context parallel sizes of both sides fit each other and the connector."""
    found: list[Finding] = []
    for instance in facts.instances:
        found += _own_shape(instance)
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        p, d = pair.prefill.size("--tensor-parallel-size"), pair.decode.size("--tensor-parallel-size")
        if not p or not d:
            continue
        if max(p, d) % min(p, d):
            found.append(
                say(
                    "KVP514", "parallel-shape", "error",
                    f"prefill TP {p} and decode TP {d} do not divide one another: the handshake asserts it",
                    code="tp_not_divisible", where=pair.where, fix="Choose TP sizes of which one divides the other.",
                )
            )  # fmt: skip
        elif p > d and before(pair.decode.version, (0, 14, 0)):
            found.append(
                say(
                    "KVP514", "parallel-shape", "error",
                    f"prefill TP {p} > decode TP {d} is not supported by {named(pair.decode.version)}: "
                    "Decode TP cannot be smaller than prefill TP",
                    code="tp_prefill_larger_unsupported", where=pair.where,
                    fix="Use vLLM 0.14 or later on both sides, or a decode TP that is at least prefill's.",
                )
            )  # fmt: skip
        else:
            found.append(
                say(
                    "KVP514",
                    "parallel-shape",
                    "ok",
                    f"TP {p} on prefill and {d} on decode fit",
                    where=pair.where,
                )
            )
        sizes = [i.size("--decode-context-parallel-size") for i in (pair.prefill, pair.decode)]
        if all(sizes) and max(s or 1 for s in sizes) % min(s or 1 for s in sizes):
            found.append(
                _shape(
                    pair.where,
                    f"DCP {sizes[0]} on prefill and {sizes[1]} on decode do not divide one another",
                    "Align the DCP sizes.",
                )
            )
    yield from merged(found)


def _shape(where: str, title: str, fix: str) -> Finding:
    return say(
        "KVP514", "parallel-shape", "error", title, code="parallel_shape_unsupported", where=where, fix=fix
    )


def _own_shape(instance: Instance) -> Iterable[Finding]:
    nixl = instance.nixl
    if nixl is None:
        return
    push = nixl.connector == "NixlPushConnector"
    tp, dcp, pcp, pp = (
        instance.size(f"--{kind}-size")
        for kind in (
            "tensor-parallel",
            "decode-context-parallel",
            "prefill-context-parallel",
            "pipeline-parallel",
        )
    )
    if push and dcp and dcp > 1:
        yield _shape(
            instance.where, f"NixlPushConnector does not support DCP {dcp}", "Use DCP 1, or NixlConnector."
        )
    elif nixl.connector == "NixlConnector" and dcp and tp and pcp and dcp not in (1, max(tp, pcp)):
        yield _shape(
            instance.where,
            f"DCP {dcp} must be 1 or equal to TP {max(tp, pcp)} with NixlConnector",
            f"Set DCP to 1 or {max(tp, pcp)}.",
        )
    if pcp and pcp > 1 and nixl.role in ("kv_consumer", "kv_both"):
        yield _shape(
            instance.where,
            f"PCP {pcp} works on kv_producer only, and this is {nixl.role}",
            "Use PCP 1 on decode, kv_producer on prefill.",
        )
    if pp and pp > 1 and push and nixl.role == "kv_consumer":
        yield _shape(
            instance.where,
            f"a decode instance with NixlPushConnector cannot have PP {pp}",
            "Use PP 1 on decode.",
        )
    elif pp and pp > 1 and not push:
        yield say(
            "KVP514", "parallel-shape", "info",
            f"PP {pp} with {nixl.connector} fails at start for hybrid models (sliding window, Mamba)",
            code="parallel_shape_unsupported", where=instance.where, fix="Use NixlPushConnector for PP with a hybrid model.",
        )  # fmt: skip


def block_size(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP515: decode's block size is prefill's or a multiple of it."""
    found = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        given = [i.serve.number("--block-size", 0) for i in (pair.prefill, pair.decode)]
        if None in given or not any(given):
            continue
        p, d = (size or 16 for size in given)
        assumed = "" if all(given) else " (16 is the default of most attention backends)"
        if p == d:
            continue
        tp = [i.size("--tensor-parallel-size") or 1 for i in (pair.prefill, pair.decode)]
        strict = before(pair.decode.version, (0, 11, 2))
        if d % p or strict or tp[0] > tp[1]:
            why = (
                f"{named(pair.decode.version)} wants equal sizes" if strict and not d % p
                else "with a larger TP on prefill they must be equal" if not d % p
                else f"decode's must be a multiple of prefill's, and {d} is not"
            )  # fmt: skip
            found.append(
                say(
                    "KVP515", "block-size", "error" if all(given) else "warn",
                    f"block size {p} on prefill, {d} on decode{assumed}: {why}, so the handshake fails",
                    code="block_size_mismatch", where=pair.where,
                    fix=f"Set --block-size {max(p, d)} on both, or a multiple of prefill's on decode.",
                )
            )  # fmt: skip
        else:
            found.append(
                say(
                    "KVP515", "block-size", "info",
                    f"block size {p} on prefill, {d} on decode{assumed}: fine for models without hybrid layers",
                    code="block_size_differs", where=pair.where,
                    fix=f"--block-size {max(p, d)} on both gives fewer descriptors, and works with hybrid models too.",
                )
            )  # fmt: skip
    yield from merged(found)


def kv_layout(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP516: both sides store KV in the same layout."""
    found = []
    for pair in facts.pairs:
        if pair.prefill.nixl is None or pair.decode.nixl is None:
            continue
        given = [i.setting("VLLM_KV_CACHE_LAYOUT") for i in (pair.prefill, pair.decode)]
        if not any(given) or not known(*(g or "auto" for g in given)):
            continue
        # NIXL asks for LBHNC (HND) itself where nobody sets a layout.
        p, d = (_LAYOUTS.get((g or "HND").upper(), (g or "HND").upper()) for g in given)
        permute = pair.decode.nixl.field("enable_permute_local_kv") or (
            pair.decode.kv and pair.decode.kv.field("enable_permute_local_kv")
        )
        tp = [i.size("--tensor-parallel-size") for i in (pair.prefill, pair.decode)]
        if p != d and not permute:
            found.append(
                say(
                    "KVP516", "kv-layout", "error",
                    f"VLLM_KV_CACHE_LAYOUT is {given[0] or 'unset'} on prefill and {given[1] or 'unset (NIXL asks for HND)'} on "
                    f"{'decode' if given[1] else 'decode'}: the handshake refuses different layouts, whatever the TP (MLA models apart)",
                    code="kv_layout_mismatch", where=pair.where, fix="Set the same VLLM_KV_CACHE_LAYOUT on both, best none or HND.",
                )
            )  # fmt: skip
        elif p == d == "LBNHC" and None not in tp and tp[0] != tp[1]:
            found.append(
                say(
                    "KVP516", "kv-layout", "error",
                    f"TP {tp[0]} and {tp[1]} with layout {given[0]}: splitting heads needs a block-contiguous layout",
                    code="kv_layout_mismatch", where=pair.where, fix="Unset VLLM_KV_CACHE_LAYOUT or set HND on both.",
                )
            )  # fmt: skip
    yield from merged(found)


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
                        f"{option} differs: prefill {left or 'unset'}, decode {right or 'unset'}; if the token ids differ, decode "
                        "takes wrong KV without an error",
                        code="prompt_rendering_differs", where=pair.where, fix=f"Use the same {option} on both sides.",
                    )
                )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP513", "compat-hash", hash_factors),
    Rule("KVP514", "parallel-shape", parallel_shape),
    Rule("KVP515", "block-size", block_size),
    Rule("KVP516", "kv-layout", kv_layout),
    Rule("KVP517", "same-prompt", same_prompt),
)
