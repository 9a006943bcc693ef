"""Predicted TTFT tax against what was recorded (samples/ttft): one line a run and prompt length.

The transfer comes from a fit of rung 4 of the same transport, or from the decode log where runs.json says so.
``--fit`` prints what the constants would be if they were fitted to these files again; ``--json`` is for tests;
``--samples DIR`` takes further runs in the same form. Exit status 1 if a prediction misses by more than 15 % and 10 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvprobe.models import calibration, cost_fit, ttft  # noqa: E402
from kvprobe.models.statistics import median  # noqa: E402

TRANSFERS = re.compile(r"transfers=(\d+), Avg xfer time \(ms\)=([\d.]+), P90 xfer time \(ms\)=([\d.]+).*Avg MB per transfer=([\d.]+)")  # fmt: skip
LAYERS, BYTES_PER_TOKEN_AND_LAYER = 28, 2048
"""The recorded model: one descriptor a layer and block; K and V of 4 heads x 128, 2 bytes. runs.json may tell others."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--samples", type=Path, default=Path(__file__).resolve().parent.parent / "samples/ttft"
    )
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for name, about in read_json(options.samples / "runs.json").items() for row in compare(options.samples, name, about)]  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print_table(rows)
    if options.fit:
        print_fit(rows)
    return 0 if all(row["within"] for row in rows) else 1


def compare(folder: Path, name: str, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Every prompt length of one run."""
    lines = read_lines(folder / f"{name}.jsonl")
    colocated = read_lines(folder / f"{about.get('colocated', name)}.jsonl")
    found = []
    for tokens in sorted({r["length"] for r in lines if r["kind"] == "pd" and not r.get("warmup")}):
        through = [r["ttft_ms"] / 1e3 for r in warm(lines, "pd", tokens)]
        alone = [r["ttft_ms"] / 1e3 for r in warm(colocated, "colo", tokens)]
        measured = median(through) - median(alone)
        block, layers = about.get("block_size", 16), about.get("layers", LAYERS)
        per_token = layers * about.get("bytes_per_token_and_layer", BYTES_PER_TOKEN_AND_LAYER)
        blocks = -(-tokens // block)
        size = blocks * block * per_token
        if about["transfer"] == "log":
            transfer = from_log(lines, size)
        else:
            transfer = rung4(folder, about["transfer"]).predict(blocks * layers, size)
        predicted = ttft.tax(
            tokens,
            transfer,
            vllm_version=about["vllm_version"],
            bytes=size,
            kv_buffer_device=about["kv_buffer_device"],
        )
        error = predicted.p50_seconds - measured
        found.append({
            "run": name, "vllm_version": about["vllm_version"], "prompt_tokens": tokens, "requests": len(through), "transfer_seconds": transfer,
            "staged_bytes": size if about["kv_buffer_device"] == ttft.HOST_BUFFER else 0,
            "measured_seconds": measured, "predicted_seconds": predicted.p50_seconds, "error_seconds": error,
            "within": abs(error) <= calibration.tolerance(measured),
        })  # fmt: skip
    return found


def rung4(folder: Path, variants: list[str]) -> cost_fit.CostFit:
    points = [
        cost_fit.Point(descriptors=r["tel_desc"], bytes=r["bytes"], seconds=r["total_ms"] / 1e3)
        for r in read_lines(folder / "rung4.jsonl")
        if r["variant"] in variants
    ]
    return cost_fit.fit(points)


def from_log(lines: list[dict[str, Any]], size: int) -> float:
    """The usual transfer of that size in the last interval that moved nothing else."""
    intervals = [
        m for r in lines if r["kind"] == "kv_transfer_metrics" and (m := TRANSFERS.search(r["line"]))
    ]
    count, mean, p90, _ = [m for m in intervals if round(float(m[4]) * 2**20) == size][-1].groups()
    return calibration.warm_transfer_seconds(int(count), float(mean) / 1e3, float(p90) / 1e3)


def warm(lines: list[dict[str, Any]], kind: str, tokens: int) -> list[dict[str, Any]]:
    return [r for r in lines if r["kind"] == kind and r["length"] == tokens and not r.get("warmup")]


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'run':<38}{'tokens':>7}{'n':>3}{'transfer':>10}{'measured':>10}{'predicted':>10}{'error':>9}")
    for row in rows:
        print(
            f"{row['run']:<38}{row['prompt_tokens']:>7}{row['requests']:>3}"
            + "".join(
                f"{row[k] * 1e3:>10.1f}"
                for k in ("transfer_seconds", "measured_seconds", "predicted_seconds")
            )
            + f"{row['error_seconds'] * 1e3:>+9.1f} ms {row['error_seconds'] / row['measured_seconds']:>+7.1%}"
            + ("" if row["within"] else "   MISSED")
        )
    missed = sum(not row["within"] for row in rows)
    print(
        f"{len(rows) - missed} of {len(rows)} within 15 % or 10 ms (medians, ms; only 3 to 6 requests a length)"
    )


def print_fit(rows: list[dict[str, Any]]) -> None:
    """All runs together: one constant a version, one hop a token, one staging cost a byte."""
    versions = sorted({row["vllm_version"] for row in rows})
    table = [
        [float(row["vllm_version"] == v) for v in versions]
        + [row["prompt_tokens"] * 1e-6, row["staged_bytes"] * 1e-9]
        for row in rows
    ]
    target = [row["measured_seconds"] - row["transfer_seconds"] for row in rows]
    found = calibration.fit_terms(
        table, target, [calibration.tolerance(row["measured_seconds"]) for row in rows]
    )
    for version, value in zip(versions, found, strict=False):
        print(f"vLLM {version}: scheduling and polling plus one decode step {value * 1e3:.2f} ms")
    print(
        f"second hop {found[-2]:.2f} us a token; host staging {found[-1]:.3f} ns a byte, both sides together"
    )


def read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
