"""KVP522-523: GPUs and namespaces that instances of one machine share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, merged, say


def gpus(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP522: no GPU is promised to two engines beyond its memory."""
    found: list[Finding] = []
    for a, b in facts.one_machine:
        left, right = a.devices, b.devices
        if left is None or right is None:
            continue
        common = [d for d in left if d in right]
        if not common:
            continue
        default = [0.9 if before(i.version, (0, 20, 0)) else 0.92 for i in (a, b)]
        shares = [_fraction(i, d) for i, d in zip((a, b), default, strict=True)]
        if None in shares or sum(s or 0 for s in shares) <= 1:
            continue
        said = [
            f"{share:g}" + ("" if i.serve.has("--gpu-memory-utilization") else " (default)")
            for i, share in zip((a, b), shares, strict=True)
        ]
        unset = [i.where for i in (a, b) if not _pinned(i)]
        found.append(
            say(
                "KVP522", "gpu-shared", "error",
                f"GPU {', '.join(common)} is used by both with memory shares {said[0]} + {said[1]} > 1\nthe second runs out of memory",
                code="same_gpu_overcommit", where=f"{a.where} / {b.where}",
                fix="Give each its own GPU (CUDA_VISIBLE_DEVICES), or lower --gpu-memory-utilization so that they sum to less than 1.",
                notes=(f"CUDA_VISIBLE_DEVICES is not set on {' and '.join(unset)}, so counting starts at GPU 0.",) if unset else (),
            )
        )  # fmt: skip
    yield from merged(found)


def _pinned(instance: Instance) -> bool:
    box = instance.command.box
    return instance.setting("CUDA_VISIBLE_DEVICES") is not None or bool(
        box and box.gpus.startswith("device=")
    )


def _fraction(instance: Instance, default: float) -> float | None:
    text = instance.serve.get("--gpu-memory-utilization")
    if text is None:
        return None if instance.serve.unread or instance.serve.has("--kv-cache-memory-bytes") else default
    try:
        return float(text)
    except ValueError:
        return None


def containers(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP523: containers on one machine share what CUDA IPC needs: the PID namespace and a view of both GPUs."""
    found: list[Finding] = []
    for pair in facts.pairs:
        left, right = pair.prefill.command.box, pair.decode.command.box
        if left is None or right is None or pair.one_machine is not True:
            continue
        if not (pair.prefill.uses_ucx and pair.decode.uses_ucx):
            continue
        shared = _one_pid_namespace(pair)
        blind = left.gpus.startswith("device=") and right.gpus.startswith("device=") and not (
            set(left.gpus[7:].split(",")) & set(right.gpus[7:].split(","))
        )  # fmt: skip
        if shared and not blind:
            found.append(
                say(
                    "KVP523",
                    "containers-cuda-ipc",
                    "ok",
                    "both containers share a PID namespace",
                    where=pair.where,
                )
            )
            continue
        missing = []
        if not shared:
            missing.append("have separate PID namespaces")
        if blind:
            missing.append("each see only their own GPU")
        pod, compose = left.kind == "pod", left.kind == "compose"
        fix = (
            ("shareProcessNamespace: true" if left.unit == right.unit else "hostPID: true on both") if pod
            else f"pid: service:{left.unit} on decode (or pid: host on both), ipc: host" if compose
            else f"--pid=container:{left.name or 'PREFILL'} on decode (or --pid=host on both), --ipc=host"
        )  # fmt: skip
        found.append(
            say(
                "KVP523", "containers-cuda-ipc", "warn",
                f"the containers {' and '.join(missing)}: UCX cannot use cuda_ipc between them\nKV goes over TCP "
                "at under 1 GB/s, without an error",
                code="containers_no_cuda_ipc", where=pair.where,
                fix=f"Set {fix}, and give both containers both GPUs, choosing with CUDA_VISIBLE_DEVICES.",
                links=("https://github.com/openucx/ucx/issues/11978",),
            )
        )  # fmt: skip
    for instance in facts.instances:
        box = instance.command.box
        if box is None or box.kind == "pod" or box.shm or box.ipc or (instance.gpus_needed or 1) < 2:
            continue
        found.append(
            say(
                "KVP523", "containers-cuda-ipc", "info",
                "the container has Docker's 64 MiB of shared memory; NCCL between its GPUs wants more",
                code="container_shm_small", where=instance.where, fix="Add --ipc=host or --shm-size=16g.",
            )
        )  # fmt: skip
    yield from merged(found)


def _one_pid_namespace(pair: Pair) -> bool:
    left, right = pair.prefill.command.box, pair.decode.command.box
    if left is None or right is None:
        return True
    if left.kind == "pod" and left.unit == right.unit and left.pid == "shared":
        return True
    names = [{b.name, b.unit} - {""} for b in (left, right)]
    joined = [re.sub(r"^(container|service):", "", b.pid) for b in (left, right)]
    return (left.pid == right.pid == "host") or joined[1] in names[0] or joined[0] in names[1] or (
        bool(joined[0]) and joined[0] == joined[1]
    )  # fmt: skip


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP522", "gpu-shared", gpus),
    Rule("KVP523", "containers-cuda-ipc", containers),
)
