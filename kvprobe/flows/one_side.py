"""What each of two nodes needs before it meets the other: the token, its own GPU or memory, what it lends."""

from __future__ import annotations

import msgspec

from kvprobe.errors import ProbeError, UsageError
from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door
from kvprobe.flows.transfer import TransferRequest, environment, setup_of
from kvprobe.models.transfer import Setup
from kvprobe.models.two_nodes import refused_variable
from kvprobe.probes import capacity, gpus
from kvprobe.probes.peer_session import Lending
from kvprobe.probes.peer_wire import MIN_TOKEN, NEW_TOKEN
from kvprobe.system import System
from kvprobe.units import format_bytes

_DRAM_BYTES = 4 * 1024**3
_VRAM_BYTES = 8 * 1024**3


def token_of(system: System, file: str | None) -> str:
    """The token that both nodes share; empty in a replay. Raises UsageError when there is none, or a short one."""
    token = (system.secret_file(file) if file else system.secret("KVPROBE_TOKEN")) or ""
    if system.replayed_from:
        return ""
    if not token:
        raise UsageError(
            "Two nodes need a shared token: set KVPROBE_TOKEN on both, or give --token-file FILE.", NEW_TOKEN
        )
    if len(token) < MIN_TOKEN:
        raise UsageError(f"The token has {len(token)} characters; {MIN_TOKEN} are the least.", NEW_TOKEN)
    return token


def connecting_side(door: Door, request: TransferRequest) -> tuple[Setup, str | None, list[AnyEvidence]]:
    """This node's set-up, and its GPU's compute capability (None: host memory). Raises UsageError and ProbeError."""
    for name, value in environment(request).items():
        why = refused_variable(name, value)
        if why:
            raise UsageError(f"--env {name}: {why}.", "Set it on each node for itself.")
    if request.processes != 2 or request.visible != "one":
        raise UsageError("Between two nodes each side is one process with one GPU.")
    if request.diagnose:
        raise UsageError("--diagnose works within one host.", "Try its experiments with --env on both nodes.")
    base = setup_of(request)
    room = capacity.look(door.system)
    if request.memory == "dram":
        spin = room.facts.progress_thread
        return msgspec.structs.replace(base, memory="dram", progress_thread=spin), None, [room]
    seen = gpus.look(door.system)
    gpu = seen.facts.cuda_gpu(request.decode_gpu)
    if gpu is None:
        raise ProbeError(f"There is no GPU {request.decode_gpu} here; {len(seen.facts.visible)} are visible.", "Choose one with --decode-gpu, or measure host memory with --memory dram.")  # fmt: skip
    setup = msgspec.structs.replace(base, memory="vram", prefill_gpu=gpu.index, decode_gpu=gpu.index)
    return setup, gpu.compute_capability, [seen]


def lending(door: Door, prefill_gpu: int, max_memory: int | None, memory: str) -> tuple[Lending, str | None]:
    """What a listening node gives a peer, and its GPU's name; without a GPU host memory only."""
    room = capacity.look(door.system).facts
    dram = min(max_memory or _DRAM_BYTES, room.memory_available_bytes // 4)
    told = Lending(
        dram_bytes=dram, progress_thread=room.progress_thread, no_gpu="--memory dram was given there"
    )
    if memory == "dram":
        return told, None
    try:
        seen = gpus.look(door.system)
    except ProbeError as error:
        return msgspec.structs.replace(told, no_gpu=f"no GPU there: {error.reason}"), None
    gpu = seen.facts.cuda_gpu(prefill_gpu)
    if gpu is None:
        why = f"GPU {prefill_gpu} was asked for there, {len(seen.facts.visible)} are visible"
        return msgspec.structs.replace(told, no_gpu=why), None
    free = int((gpu.memory_free_bytes or 0) * 0.9)
    vram = min(max_memory or _VRAM_BYTES, free)
    door.progress.step(f"lending {format_bytes(vram)} of {gpu.label}, {format_bytes(dram)} of host memory")
    return msgspec.structs.replace(told, vram_bytes=vram, gpu_index=gpu.index, no_gpu=""), gpu.label
