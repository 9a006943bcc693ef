"""Where a pair runs: two GPUs of this host, or its host memory."""

from __future__ import annotations

import msgspec

from kvprobe.evidence import AnyEvidence
from kvprobe.flows import Door
from kvprobe.models.transfer import Setup
from kvprobe.probes import capacity, gpus


def placed(
    door: Door, base: Setup, *, memory: str, prefill_gpu: int, decode_gpu: int
) -> tuple[Setup, str | None, list[AnyEvidence]]:
    """``base`` on its GPUs (CUDA ordinals) or, with ``memory="dram"``, in host memory.

    With it the compute capability of the decode GPU (None: host memory) and what was looked at. Raises ProbeError.
    """
    if memory == "dram":
        room = capacity.look(door.system)
        setup = msgspec.structs.replace(base, memory="dram", progress_thread=room.facts.progress_thread)
        return setup, None, [room]
    seen = gpus.look(door.system)
    prefill, decode = gpus.require_pair(seen.facts, prefill_gpu, decode_gpu)
    setup = msgspec.structs.replace(base, memory="vram", prefill_gpu=prefill.index, decode_gpu=decode.index)
    return setup, decode.compute_capability, [seen]
