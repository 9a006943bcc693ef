"""``kvprobe topo``: NVML or saved texts -> one topology -> the answer for the chosen pair."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence import AnyEvidence, Evidence, Origin
from kvprobe.finding import Finding
from kvprobe.flows import Door, Draft
from kvprobe.formats.nvidia_smi import SmiText, capability_in_name, parse
from kvprobe.formats.nvml import GpuFacts
from kvprobe.models.link import link_ceiling
from kvprobe.models.p2p import Conclusion, conclude, gpu_name
from kvprobe.models.topology import Topology, from_nvml, from_texts
from kvprobe.probes import gpus, host
from kvprobe.rules.base import run_rules
from kvprobe.rules.host import TRANSPORT_RULES, HostView
from kvprobe.rules.topology import RULES, TopologyFacts

_LIMIT_BYTES = 8 * 1024 * 1024
_LABELLED = re.compile(r"(rw|[rwnapm])=(.+)")


def topo(door: Door, params: dict[str, Any]) -> Draft:
    """``params``: file (paths, each perhaps ``r=PATH``), prefill, decode, connector."""
    nvml: GpuFacts | None = None
    evidence: list[AnyEvidence] = []
    inputs: list[dict[str, Any]] = []
    findings: list[Finding] = []
    if params["file"]:
        texts = [_read(door, name) for name in params["file"]]
        topology = from_texts(texts)
        evidence += [_evidence(i, text) for i, text in enumerate(texts)]
        inputs += [_summary(text) for text in texts]
    else:
        found = gpus.look(door.system)
        nvml, topology = found.facts, from_nvml(found.facts)
        here = host.look(door.system)
        findings += run_rules(TRANSPORT_RULES, HostView(host=here.facts), door.policy)
        evidence += [found, here]
    prefill, decode = _pair(params, topology)
    conclusion = conclude(topology, prefill, decode, params["connector"])
    facts = TopologyFacts(
        topology=topology, conclusion=conclusion, gpus=nvml, evidence=tuple(e.id for e in evidence)
    )
    return Draft(
        subject={"headline": f"{prefill} (prefill) to {decode} (decode), {params['connector']}"},
        findings=(*run_rules(RULES, facts, door.policy), *findings),
        evidence=tuple(evidence),
        result=_result(topology, conclusion, nvml, inputs),
    )


def _read(door: Door, name: str) -> SmiText:
    labelled = _LABELLED.fullmatch(name)
    letter, path = (labelled[1], labelled[2]) if labelled else (None, name)
    if path != "-" and door.system.path_kind(path) == "absent":
        raise UsageError(f"--file {path} does not exist.")
    text = door.system.read_text("/dev/stdin" if path == "-" else path, limit_bytes=_LIMIT_BYTES)
    source = "stdin" if path == "-" else path
    if letter is None:
        letter = capability_in_name(PurePath(path).name)
    return parse(text, source, None if letter == "m" else letter, explicit=labelled is not None)


def _pair(params: dict[str, Any], topology: Topology) -> tuple[str, str]:
    """The two GPUs; the first two that there are where the call names none."""
    given = [gpu_name(params[role], topology) if params[role] else None for role in ("prefill", "decode")]
    free = [name for name in (*topology.gpus, "GPU0", "GPU1") if name not in given]
    prefill = given[0] or free.pop(0)
    decode = given[1] or next(name for name in free if name != prefill)
    return prefill, decode


def _evidence(number: int, text: SmiText) -> Evidence[SmiText]:
    versions = {k: v for k, v in (("driver", text.driver), ("cuda", text.cuda)) if v}
    return Evidence(
        id=f"smi-{number + 1}",
        kind="nvidia_smi",
        origin=Origin.PARSED,
        source=text.source,
        facts=text,
        versions=versions,
    )


def _summary(text: SmiText) -> dict[str, Any]:
    kinds = ["topo -m" if t.kind == "m" else f"topo -p2p {t.capability or '?'}" for t in text.tables]
    kinds += ["nvidia-smi -L"] if text.gpus else []
    kinds += [f"{text.foreign.tool} ({text.foreign.vendor})"] if text.foreign else []
    kinds += [f"error: {error.text}" for error in text.errors]
    return {"file": text.source, "holds": kinds}


def _result(
    topology: Topology, conclusion: Conclusion, nvml: GpuFacts | None, inputs: list[dict[str, Any]]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "gpus": list(topology.gpus),
        "names": topology.names,
        "nics": topology.nics,
        "matrix": topology.matrix,
        "missing": topology.missing,
        "pair": {"prefill": conclusion.prefill, "decode": conclusion.decode},
        "conclusion": msgspec.to_builtins(conclusion),
        "nearest_nics": {g: list(nics) for g in topology.gpus if (nics := topology.nearest_nics(g))},
        "cpu_affinity": topology.cpu_affinity,
        "numa": topology.numa,
        "link": _ceiling(topology, conclusion, nvml),
        "inputs": inputs,
    }
    if nvml is not None:
        result["nvml"] = msgspec.to_builtins(nvml)
    return result


def _ceiling(topology: Topology, conclusion: Conclusion, nvml: GpuFacts | None) -> dict[str, Any] | None:
    """Rung 0 of the pair, one direction; None where nothing tells it."""
    names = (conclusion.prefill, conclusion.decode)
    if nvml is not None and conclusion.cell:
        actor, peer = (int(name[3:]) for name in conclusion.cell.split(">"))
        gpu = nvml.gpu(actor)
        if gpu is None:
            return None
        access = "read" if conclusion.connector == "pull" else "write"
        built: dict[str, Any] = msgspec.to_builtins(
            link_ceiling(gpu, nvml.pair(actor, peer), nvml.gpu(peer), access=access)
        )
        return built
    rates = [topology.nvlink_bytes_per_second.get(name, ()) for name in names]
    count = int(conclusion.link[2:]) if conclusion.link and conclusion.link.startswith("NV") else 0
    if not count or not all(rates):
        return None
    speed = min(min(r) for r in rates)
    basis = f"{count} NVLinks x {speed / 1e9:.3f} GB/s (nvidia-smi nvlink -s)"
    return {"bytes_per_second": count * speed, "basis": basis, "path": "nvlink"}
