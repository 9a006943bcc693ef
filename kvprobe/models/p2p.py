"""May the side that moves the KV cache reach its peer's memory? One label, one deciding cell, one reason."""

from __future__ import annotations

import re

import msgspec

from kvprobe.errors import UsageError
from kvprobe.formats.nvidia_smi import CAPABILITY, LINK_MEANING, P2P_MEANING
from kvprobe.models.topology import Topology, pairs_with

REFUSED = frozenset({"CNS", "GNS", "TNS", "NS", "DR"})
_ASK = "nvidia-smi topo -p2p {letter}"
_WHY_REFUSED = {
    "CNS": "CNS points at the platform (chipset, IOMMU, ACS, BIOS), not at the GPU: put both GPUs under one PCIe root, switch ACS and IOMMU translation off, or keep both roles on one GPU.",
    "GNS": "GNS: the driver does not grant P2P on this GPU model; no BIOS or IOMMU change will help. Use GPUs with P2P (data-centre GPUs, NVLink), or keep both roles on one GPU.",
    "TNS": "TNS: the path between these two GPUs cannot carry P2P (different CPU sockets or PCIe roots): choose two GPUs under one PCIe root.",
    "NS": "NS does not say why. KV between these two GPUs is staged through host memory or TCP: measure one long prompt before any benchmark, stay colocated if TTFT binds.",
    "DR": "DR: P2P was switched off by a driver registry key; look for NVreg_RegistryDwords in /etc/modprobe.d and remove the key that disables P2P.",
}  # fmt: skip


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one ordered pair."""

    verdict: str
    """p2p_ok, p2p_unavailable, unknown, tool_error, not_applicable, foreign_input."""
    severity: str
    """ok, info, warn, fail, error."""
    prefill: str
    decode: str
    connector: str
    reason: str
    """One line that can stand alone."""
    advice: str | None = None
    commands: tuple[str, ...] = ()
    letter: str | None = None
    """The capability that decides: r (pull) or w (push); rw if only that was asked."""
    cell: str | None = None
    """``GPU1>GPU0``: who accesses whom."""
    status: str | None = None
    meaning: str | None = None
    link: str | None = None
    """The pair's entry in ``topo -m``."""
    link_meaning: str | None = None
    reverse_status: str | None = None
    """The same letter the other way round."""
    working_pairs: tuple[str, ...] = ()
    """Other pairs that work, as ``prefill GPU0, decode GPU1``."""


def gpu_name(text: str, topology: Topology) -> str:
    """``GPU3`` from ``GPU3``, ``gpu 3``, ``3`` or the UUID's start. Raises UsageError for anything else.

    A MIG instance (``GPU3 MIG 1g.10gb``, ``MIG-<uuid>``) counts as its GPU: P2P is a matter of whole GPUs.
    """
    match = re.fullmatch(r"(?:gpu)?\s*[: ]?\s*(\d{1,4})(?:\W+mig(?![a-z]).*)?", text.strip(), re.IGNORECASE)
    if match:
        return f"GPU{int(match[1])}"
    start = text.strip().lower()
    hits = [
        name
        for name, uuids in topology.uuids.items()
        if start and any(uuid.lower().startswith(start) for uuid in uuids)
    ]
    if len(hits) != 1:
        raise UsageError(f"{text!r} names no GPU.", "Write it as nvidia-smi does: GPU0.")
    return hits[0]


def conclude(topology: Topology, prefill: str, decode: str, connector: str = "pull") -> Conclusion:
    """Judge one pair. With pull, decode reads prefill; with push, prefill writes decode."""
    letter = "r" if connector == "pull" else "w"
    actor, peer = (decode, prefill) if letter == "r" else (prefill, decode)
    base = Conclusion(
        verdict="unknown", severity="warn", prefill=prefill, decode=decode, connector=connector, reason="", letter=letter,
        cell=f"{actor}>{peer}", link=topology.link(prefill, decode), link_meaning=link_meaning(topology.link(prefill, decode)),
    )  # fmt: skip
    early = _no_question(topology, base) or _no_pair(topology, base)
    if early is not None:
        return early
    used = next((x for x in (letter, "rw") if base.cell in topology.matrix.get(x, {})), None)
    if used is None:
        return _not_told(topology, base, letter)
    status = topology.matrix[used][base.cell or ""]
    told = msgspec.structs.replace(
        base, letter=used, status=status, meaning=P2P_MEANING.get(status),
        reverse_status=topology.matrix[used].get(f"{peer}>{actor}"), working_pairs=_working(topology, used, base),
    )  # fmt: skip
    words = topology.contradictions.get(used, {}).get(base.cell or "")
    if words:
        return _with(told, "unknown", "warn", f"the files contradict each other: {told.cell} is {' and '.join(words)} in topo -p2p {used}", "Save both GPUs' status once more, on one machine.", (_ASK.format(letter=letter),))  # fmt: skip
    return _by_status(topology, told, letter, actor, peer)


def _by_status(topology: Topology, told: Conclusion, letter: str, actor: str, peer: str) -> Conclusion:
    verb = "read" if letter == "r" else "write"
    status, meaning = told.status or "U", told.meaning or "a word that nvidia-smi's legend does not have"
    who = f"{_role(told, actor)} {actor} may {{}}{verb} {_role(told, peer)} {peer}: {status}"
    if status == "OK":
        if {actor, peer} & set(topology.mig):
            split = " and ".join(sorted({actor, peer} & set(topology.mig)))
            reason = f"topo -p2p {told.letter} says OK for whole GPUs, but {split} is split by MIG, and MIG instances have no P2P"
            return _with(told, "unknown", "warn", reason, "Switch MIG off for this pair, or use host staging.", ("nvidia-smi -L",))  # fmt: skip
        over = f" over {told.link}" if told.link else ""
        return _with(
            told,
            "p2p_ok",
            "ok",
            who.format("") + over,
            "OK is a permission, not a speed: measure with kvprobe preflight.",
        )
    if status in REFUSED:
        advice = _WHY_REFUSED[status]
        if told.link and told.link.startswith("NV"):
            advice = f"{told.link} is there, so the links are up and the permission is withheld: check nvidia-fabricmanager (NVSwitch), MIG and the container's device list. {advice}"
        if told.working_pairs:
            advice = f"Use a pair that works: {'; '.join(told.working_pairs[:4])}. {advice}"
        return _with(told, "p2p_unavailable", "fail", f"{who.format('not ')} ({meaning})", advice)
    return _with(told, "unknown", "warn", f"{told.cell} is {status} ({meaning}) in topo -p2p {told.letter}", "The driver does not know: measure a real copy with kvprobe preflight.")  # fmt: skip


def _no_question(topology: Topology, base: Conclusion) -> Conclusion | None:
    """Another vendor's tool, an error, or nothing at all."""
    if not topology.gpus:
        if topology.foreign:
            tool = topology.foreign
            reason = f"this is output of {tool.tool} ({tool.vendor}), not of nvidia-smi"
            return _with(base, "foreign_input", "error", reason, "kvprobe judges NVIDIA GPUs only; ask the vendor's own tool for its peer access.")  # fmt: skip
        if topology.errors:
            return _error(topology, base)
    if not topology.recognised:
        return _with(base, "unknown", "warn", "no nvidia-smi topology was found in the text", "Save the answer of this command.", (_ASK.format(letter=base.letter),))  # fmt: skip
    return None


def _error(topology: Topology, base: Conclusion) -> Conclusion:
    error = topology.errors[0]
    more = f" (and {len(topology.errors) - 1} more)" if len(topology.errors) > 1 else ""
    reason = f"an error stands where a topology should be: {error.text!r}{more}; {error.cause}"
    return _with(base, "tool_error", "error", reason, error.remedy, (_ASK.format(letter=base.letter),))


def _no_pair(topology: Topology, base: Conclusion) -> Conclusion | None:
    gpus = topology.gpus
    absent = [g for g in (base.prefill, base.decode) if g not in gpus]
    if absent and topology.header_cut:
        reason = (
            f"the table is truncated in its header: whether {' and '.join(absent)} is there cannot be told"
        )
        return _with(
            base, "unknown", "warn", reason, "Save the whole table.", (_ASK.format(letter=base.letter),)
        )
    if len(gpus) == 1:
        split = f", split by MIG: {topology.names.get(gpus[0], gpus[0])}" if topology.mig else ""
        reason = f"there is only one GPU here ({gpus[0]}{split}), no pair to judge"
        advice = "Both roles on one GPU need no P2P; if decode is on another host, check the way over the NICs instead."
        return _with(base, "not_applicable", "info", reason, advice)
    if gpus and absent:
        reason = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not here; there are {', '.join(gpus)}"
        return _with(
            base,
            "not_applicable",
            "info",
            reason,
            "Name two of the GPUs that are there with --prefill and --decode.",
        )
    if base.prefill == base.decode:
        return _with(base, "not_applicable", "info", f"prefill and decode share one GPU ({base.prefill}): no P2P is needed", "Name two GPUs to judge a pair.")  # fmt: skip
    return None


def _not_told(topology: Topology, base: Conclusion, letter: str) -> Conclusion:
    ask = _ASK.format(letter=letter)
    asked = [x for x in topology.matrix if x not in ("m", "?")]
    if any(base.cell in topology.missing.get(x, ()) for x in (letter, "rw")):
        reason = f"the table of topo -p2p {letter} is truncated: {base.cell} is not in it"
        return _with(base, "unknown", "warn", reason, "Save the whole table.", (ask,))
    if topology.errors_alone and not asked:
        return _error(topology, base)
    if "?" in topology.matrix:
        reason = f"a P2P table is there, but nothing says which capability it shows; {ask} would"
        return _with(base, "unknown", "warn", reason, f"Name it: --file {letter}=FILE, or save the command with its output.", (ask,))  # fmt: skip
    if asked:
        told = ", ".join(f"{x} ({CAPABILITY.get(x, x)})" for x in asked)
        actor, peer = (base.cell or ">").split(">")
        reason = f"only topo -p2p {told} was asked; that does not tell whether {actor} may {CAPABILITY[letter]} {peer}"
        advice = f"Ask for the capability that decides: {ask}. An OK is no proof of correct data either: verify with a real copy (kvprobe preflight)."
        return _with(base, "unknown", "warn", reason, advice, (ask,))
    near = f": {base.link} is a distance, not a permission" if base.link else ""
    return _with(
        base, "unknown", "warn", f"nothing here tells P2P permission{near}", f"Ask for it: {ask}.", (ask,)
    )


def _working(topology: Topology, letter: str, base: Conclusion) -> tuple[str, ...]:
    found = []
    for cell in pairs_with(topology.matrix[letter], "OK", topology.gpus):
        actor, peer = cell.split(">")
        prefill, decode = (peer, actor) if base.connector == "pull" else (actor, peer)
        if (prefill, decode) != (base.prefill, base.decode):
            found.append((prefill, decode))
    # Pairs that keep one of the chosen GPUs come first.
    found.sort(key=lambda p: (p[0] != base.prefill and p[1] != base.decode, int(p[0][3:]), int(p[1][3:])))
    return tuple(f"prefill {p}, decode {d}" for p, d in found)


def _role(told: Conclusion, gpu: str) -> str:
    return "decode" if gpu == told.decode else "prefill"


def _with(
    base: Conclusion, verdict: str, severity: str, reason: str, advice: str, commands: tuple[str, ...] = ()
) -> Conclusion:
    return msgspec.structs.replace(
        base, verdict=verdict, severity=severity, reason=reason, advice=advice, commands=commands
    )


def link_meaning(link: str | None) -> str | None:
    """``NV18`` -> ``a bonded set of 18 NVLinks``."""
    if link and link.startswith("NV"):
        return f"a bonded set of {link[2:]} NVLinks"
    return LINK_MEANING.get(link or "")
