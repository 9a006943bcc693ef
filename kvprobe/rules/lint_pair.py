"""KVP514-516: shapes that prefill and decode have to have in common for the first request to pass NIXL's handshake."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.models.pd_instance import Instance, LintFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, known, merged, named, say

_LAYOUTS = {"NHD": "LBNHC", "HND": "LBHNC"}


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
                    f"prefill TP {p} > decode TP {d} (--tensor-parallel-size) is not supported by {named(pair.decode.version)}\n"
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
        for side, layout in zip((pair.prefill, pair.decode), given, strict=True):
            if (
                layout
                and known(layout)
                and layout.upper() not in ("NHD", "HND")
                and before(side.version, (0, 29, 0))
            ):
                found.append(
                    say(
                        "KVP516",
                        "kv-layout",
                        "error",
                        f"VLLM_KV_CACHE_LAYOUT={layout}: {named(side.version)} knows NHD and HND only",
                        code="vllm_too_old",
                        where=side.place("VLLM_KV_CACHE_LAYOUT"),
                        fix="Use vLLM 0.30 or later on both sides, or HND.",
                    )
                )
        if not any(given) or not known(*(g or "auto" for g in given)):
            continue
        # NIXL asks for LBHNC (HND) itself where nobody sets a layout.
        p, d = (_LAYOUTS.get((g or "HND").upper(), (g or "HND").upper()) for g in given)
        unset = "unset (NIXL asks for HND)"
        permute = pair.decode.nixl.field("enable_permute_local_kv") or (
            pair.decode.kv and pair.decode.kv.field("enable_permute_local_kv")
        )
        tp = [i.size("--tensor-parallel-size") for i in (pair.prefill, pair.decode)]
        if p != d and not permute:
            found.append(
                say(
                    "KVP516", "kv-layout", "error",
                    f"VLLM_KV_CACHE_LAYOUT differs: prefill {given[0] or unset}, decode {given[1] or unset}\n"
                    "the handshake refuses different layouts, whatever the TP (MLA models apart)",
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


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP514", "parallel-shape", parallel_shape),
    Rule("KVP515", "block-size", block_size),
    Rule("KVP516", "kv-layout", kv_layout),
)
