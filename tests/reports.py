"""Small reports of the real shape, for the tests of renderers, store and baseline."""

from __future__ import annotations

from typing import Any

from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status, judge
from kvprobe.report import PolicyUsed, Report, Run

SAMPLES = (0.0500, 0.0502, 0.0504, 0.0505, 0.0507, 0.0509, 0.0511)


def finding(status: Status = Status.FAIL, **changes: Any) -> Finding:
    """The deciding finding, as the transfer rules make it."""
    return Finding(
        **{
            "id": "KVP203",
            "name": "nixl-read-scattered",
            "status": status,
            "title": "NIXL READ of 8,192 tokens as vLLM stores them: 1.29 s",
            "measured": Quantity(value=1.29, unit="s", statistic="median", samples=7),
            "expected": Expected(
                source="policy default: transfer_8k_seconds (vLLM P/D guide)", max=0.2, unit="s"
            ),
            "remedy": Remedy(
                text="UCX emulates the read over tcp: allow cuda_ipc.", commands=("unset UCX_TLS",)
            ),
            "where": "GPU0>GPU1",
            "notes": ("transport observed: tcp/lo, software emulation",),
            **changes,
        }
    )


def result(samples: tuple[float, ...] = SAMPLES) -> dict[str, Any]:
    """A ``result`` as `kvprobe preflight` gives it: four rungs, a fit, a tax, raw samples."""
    size = 469762048
    return {
        "memory": "vram",
        "judged": {"prompt_tokens": 8192, "operation": "READ", "order": "shuffled", "statistic": "median"},
        "kv": {"bytes_per_token": {"per_rank": 57344, "all_ranks": 57344}, "kv_cache_dtype": "bfloat16", "block_size_tokens": 16},
        "subject": "GPU0 -> GPU1",
        "ladder": [
            rung(0, "link", 0.00098, None, status="computed", note="18 NVLinks of 26.6 GB/s"),
            rung(1, "raw copy", 0.00122, 0.00024, samples=[0.00122] * 7, statistic="median"),
            rung(2, "UCX", None, None, status="skipped", note="ucxx is not installed"),
            rung(3, "NIXL contiguous", 0.00168, 0.00046, samples=[s / 30 for s in samples], transport="cuda_ipc"),
            rung(4, "NIXL as vLLM stores it", 0.0505, 0.0488, samples=list(samples), transport="cuda_ipc", largest_loss=True),
        ],
        "largest_loss": {"rung": 4, "below": 3, "seconds": 0.0488, "ratio": 30.0, "means": "descriptor cost: block size, layout, transport"},
        "transport": {"label": "cuda_ipc"},
        "fit": {"READ": {"t0_seconds": 0.0009, "seconds_per_descriptor": 3.4e-06, "bandwidth_bytes_per_second": 280e9, "transport": "cuda_ipc", "worst_residual": 0.04}},
        "tax": [
            {
                "prompt_tokens": n, "bytes": n * 57344, "descriptors": n * 28 // 16, "transfer_seconds": n * 6e-6,
                "transfer_origin": "measured", "transfer_source": "rung 4, median of 7", "p50_seconds": n * 1e-5, "p90_seconds": n * 1.4e-5,
                "terms": [
                    {"name": "transfer", "seconds": n * 6e-6, "origin": "measured", "source": "rung 4"},
                    {"name": "decode step", "seconds": n * 4e-6, "origin": "assumed", "source": "vLLM 0.30 on 2x H200"},
                ],
            }
            for n in (512, 2048, 8192, 32768)
        ],
        "transfers": [
            series("shuffled", 8192, size, 14336, samples),
            series("shuffled", 512, size // 16, 896, tuple(s / 14 for s in samples)),
            series("contiguous", 8192, size, 28, tuple(s / 30 for s in samples)),
        ],
    }  # fmt: skip


def rung(number: int, name: str, seconds: float | None, loss: float | None, **more: Any) -> dict[str, Any]:
    """One row of the ladder, as :func:`kvprobe.models.ladder.describe` gives it."""
    size = 469762048
    return {
        "rung": number, "name": name, "status": "measured", "bytes": size, "seconds": seconds, "statistic": None, "samples": [],
        "quartiles_seconds": None, "bandwidth_bytes_per_second": size / seconds if seconds else None, "transport": None,
        "note": None, "loss_seconds": loss, "largest_loss": False, **more,
    }  # fmt: skip


def series(
    order: str, tokens: int, size: int, descriptors: int, seconds: tuple[float, ...]
) -> dict[str, Any]:
    """One series of samples, as the transfer worker's facts give it."""
    return {
        "op": "READ", "order": order, "prompt_tokens": tokens, "in_flight": 1, "bytes": size, "descriptors": descriptors,
        "nixl_descriptors": descriptors, "cold_seconds": [seconds[0] * 3], "seconds": list(seconds),
        "median_seconds": sorted(seconds)[len(seconds) // 2], "transport": "cuda_ipc",
    }  # fmt: skip


def report(*findings: Finding, command: str = "preflight", **changes: Any) -> Report:
    """A report that was rolled up as the CLI does it."""
    required = changes.pop("required", ())
    run = Run(
        command=command,
        argv=(command, "--model", "Qwen/Qwen2.5-7B-Instruct"),
        id="20261129T181500Z",
        started_at="2026-11-29T18:15:00+00:00",
        duration_seconds=11.9,
        host="node-a",
    )
    return Report(
        **{
            "run": run,
            "subject": {"model": "Qwen/Qwen2.5-7B-Instruct", "headline": "GPU0>GPU1"},
            "policy": PolicyUsed(name="default", source="profile default"),
            "verdict": judge(findings, required=required),
            "findings": findings,
            "evidence": (
                Evidence(
                    id="gpus", kind="gpus", origin=Origin.READ, source="NVML",
                    facts={"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]},
                    versions={"driver": "580.159.04"},
                ),
                Evidence(
                    id="nixl", kind="transfer", origin=Origin.MEASURED, source="NIXL",
                    facts={}, versions={"nixl": "1.5.1", "ucx": "1.20.0"},
                ),
            ),
            "result": result(),
            **changes,
        }
    )  # fmt: skip
