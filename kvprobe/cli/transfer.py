"""`kvprobe transfer`: one descriptor list, measured in every way that matters."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION, SIZE
from kvprobe.flows.transfer import measure_transfer


@click.command()
@click.option("--model", metavar="MODEL", help="Whose descriptor list to move.")
@click.option("--regions", type=click.IntRange(min=1), help="A list given by hand: memory regions,")
@click.option("--descriptor-size", type=SIZE, help="bytes of one block of one region (32KiB),")
@click.option("--blocks", type=click.IntRange(min=1), help="and blocks moved of each region.")
@click.option(
    "--memory", type=click.Choice(["auto", "dram"]), default="auto", show_default=True, help="auto: the GPUs."
)
@click.option("--prefill-gpu", type=click.IntRange(min=0), default=0, show_default=True, help="CUDA ordinal.")
@click.option("--decode-gpu", type=click.IntRange(min=0), default=1, show_default=True, help="CUDA ordinal.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="As vllm serve's.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel size.")
@click.option("--block-size", type=click.IntRange(min=1), help="As vllm serve's.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), multiple=True, help="Prompt lengths (default 8192); repeatable.")  # fmt: skip
@click.option("--op", type=click.Choice(["read", "write", "both"]), default="both", show_default=True, help="read: decode pulls; write: prefill pushes.")  # fmt: skip
@click.option("--order", type=click.Choice(["shuffled", "contiguous", "both"]), default="both", show_default=True, help="Block ids as an aged or as a fresh vLLM has them.")  # fmt: skip
@click.option(
    "--in-flight", type=click.IntRange(min=1, max=64), multiple=True, help="Transfers at once; repeatable."
)
@click.option("--processes", type=click.IntRange(min=1, max=2), default=2, show_default=True, help="1: both agents in one process.")  # fmt: skip
@click.option("--visible", type=click.Choice(["one", "both"]), default="one", show_default=True, help="GPUs that each process sees.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=0, max=64), default=4, show_default=True, help="NIXL's num_threads (vLLM: 4).")  # fmt: skip
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Set for both sides; NAME alone removes it; repeatable.")  # fmt: skip
@click.option("--kv-buffer-device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="cpu: through host buffers, copies timed.")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1, max=1000), default=10, show_default=True, help="Warm samples a series.")  # fmt: skip
@click.option("--budget", type=DURATION, default="30s", show_default=True, help="Time for the series.")
@click.option("--diagnose", is_flag=True, help="Then try what could explain a slow transfer.")
@click.option(
    "--diagnose-budget", type=DURATION, default="120s", show_default=True, help="Time for these experiments."
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """How fast this descriptor list moves, over which transport, and why.

    \b
    kvprobe transfer --model Qwen/Qwen2.5-7B-Instruct --in-flight 2 --in-flight 4 --in-flight 8
    kvprobe transfer --model Qwen/Qwen2.5-7B-Instruct --env UCX_TLS=^cuda_ipc --diagnose
    kvprobe transfer --regions 28 --descriptor-size 32KiB --blocks 512 --memory dram
    """
    execute(ctx, common, params, measure_transfer)
