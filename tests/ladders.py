"""Small measured facts of one pair, for the tests of models and rules: times as 2x H200 gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvprobe.formats.ucx_proto import ProtocolRow
from kvprobe.models.descriptors import DescriptorPlan, TransferGroup
from kvprobe.models.kv_layout import ModelConfig
from kvprobe.models.ladder import Rung
from kvprobe.models.transfer import Series, Setup, TransferFacts
from kvprobe.policy import Policy, parse_policy
from kvprobe.rules.ladder_facts import LadderFacts

ROOT = Path(__file__).resolve().parent.parent
BYTES = 469762048
"""8,192 tokens of Qwen2.5-7B: 28 regions x 512 blocks of 32 KiB."""
CUDA_IPC = ProtocolRow(operation="READ", title="read", count=99, low_bytes=0, high_bytes=None, how="zero-copy", via="cuda_ipc/cuda")  # fmt: skip
EMULATED = msgspec.structs.replace(CUDA_IPC, how="software emulation", via="tcp/lo")


def policy() -> Policy:
    """The default profile."""
    file = ROOT / "checks" / "profiles" / "default.toml"
    return parse_policy(file.read_text(encoding="utf-8"), file.name)


def rung(number: int, seconds: float | None, **more: Any) -> Rung:
    told = {"samples": (seconds,) * 7 if seconds and number else (), "statistic": "median", "bytes": BYTES}
    status = "measured" if seconds else "unknown"
    return Rung(**{"number": number, "status": status, "seconds": seconds, **told, **more})


def series(
    seconds: tuple[float, ...] = (0.0505,) * 10,
    *,
    op: str = "READ",
    order: str = "shuffled",
    tokens: int = 8192,
    **more: Any,
) -> Series:
    """One series of the Qwen2.5-7B plan; contiguous blocks are merged to 28 descriptors."""
    count = 28 * tokens // 16
    told: dict[str, Any] = {
        "id": f"{op.lower()}-{order}-{tokens}", "in_flight": 1, "bytes": count * 32768, "descriptors": count,
        "nixl_descriptors": 28 if order == "contiguous" else count, "cold_seconds": (0.2,), "post_seconds": (0.04,) * len(seconds),
        "overhead_seconds": (0.0005,) * len(seconds), "verified": True,
    }  # fmt: skip
    return Series(op=op, order=order, prompt_tokens=tokens, seconds=seconds, **{**told, **more})


def transfer(*found: Series, **more: Any) -> TransferFacts:
    told: dict[str, Any] = {
        "setup": Setup(), "protocols": (CUDA_IPC,), "handshake_seconds": 0.08, "versions": {"nixl": "1.5.1"}, "workers": {}
    }  # fmt: skip
    return TransferFacts(series=found, **{**told, **more})


def ladder(run: TransferFacts | None = None, **more: Any) -> LadderFacts:
    """A healthy NVLink pair; ``run`` and ``more`` change it."""
    run = run if run is not None else transfer(series(), series((0.0017,) * 10, order="contiguous"))
    told: dict[str, Any] = {
        "subject": "GPU0 -> GPU1", "memory": "vram", "judged_tokens": 8192, "transfer": run, "promised_p2p": True,
        "rungs": (rung(0, 0.000983, status="computed", note="18 NVLinks x 26.562 GB/s"), rung(1, 0.00123), rung(2, 0.00121),
                  rung(3, 0.0017), rung(4, 0.0505)),
    }  # fmt: skip
    return LadderFacts(**{**told, **more})


def plan(tokens: int = 8192, block_size: int = 16) -> DescriptorPlan:
    """Qwen2.5-7B's: 28 regions, 2 KiB a token and layer."""
    group = TransferGroup(
        name="full", regions=28, descriptor_bytes=2048 * block_size, blocks=-(-tokens // block_size)
    )
    return DescriptorPlan(
        prompt_tokens=tokens, block_size_tokens=block_size, groups=(group,), bytes_all_ranks=group.bytes
    )


def model() -> ModelConfig:
    """Qwen2.5-7B-Instruct: 57,344 bytes a token in bfloat16."""
    return ModelConfig(
        name="qwen",
        config={
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
            "num_hidden_layers": 28, "num_key_value_heads": 4, "torch_dtype": "bfloat16", "max_position_embeddings": 32768,
        },
    )  # fmt: skip
