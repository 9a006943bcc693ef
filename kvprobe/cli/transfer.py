"""`kvprobe transfer`: one descriptor list, measured in every way that matters."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION, SIZE
from kvprobe.flows import Door, Draft
from kvprobe.flows.listen import listen
from kvprobe.flows.ranks import all_ranks
from kvprobe.flows.transfer import measure_transfer
from kvprobe.flows.two_nodes import connect
from kvprobe.models.two_nodes import DEFAULT_PORT


@click.command()
@click.option("--model", metavar="MODEL", help="Whose descriptor list to move.")
@click.option("--regions", type=click.IntRange(min=1), help="A list given by hand: memory regions,")
@click.option("--descriptor-size", type=SIZE, help="bytes of one block of one region (32KiB),")
@click.option("--blocks", type=click.IntRange(min=1), help="and blocks moved of each region.")
@click.option(
    "--memory", type=click.Choice(["auto", "dram"]), default="auto", show_default=True, help="auto: the GPUs."
)
@click.option("--prefill-gpu", type=click.IntRange(min=0), default=0, show_default=True, help="CUDA ordinal.")
@click.option("--decode-gpu", type=click.IntRange(min=0), help="CUDA ordinal (default: 1; with --connect 0; with --all-ranks after prefill's).")  # fmt: skip
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
@click.option("--all-ranks", is_flag=True, help="All --tp decode ranks pull at once, each over its own pair.")
@click.option("--prefill-tp", type=click.IntRange(min=1), metavar="M", help="With --all-ranks: prefill's TP size (default: --tp).")  # fmt: skip
@click.option("--listen", is_flag=False, flag_value=str(DEFAULT_PORT), metavar="[HOST:]PORT", help=f"Two nodes: hold prefill's side here (default: 127.0.0.1:{DEFAULT_PORT}).")  # fmt: skip
@click.option("--connect", metavar="HOST:PORT", help="Two nodes: measure with the listener there, as decode.")
@click.option(
    "--token-file", metavar="FILE", help="The token that both nodes share (default: $KVPROBE_TOKEN)."
)
@click.option("--keep", is_flag=True, help="With --listen: serve one peer after another.")
@click.option(
    "--wait", type=DURATION, default="10min", show_default=True, help="With --listen: how long for a peer."
)
@click.option("--max-memory", type=SIZE, help="With --listen: lend at most this (default: 8 GiB of VRAM, 4 GiB of DRAM).")  # fmt: skip
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """How fast this descriptor list moves, over which transport, and why.

    \b
    kvprobe transfer --model Qwen/Qwen2.5-7B-Instruct --in-flight 2 --in-flight 4 --in-flight 8
    kvprobe transfer --model Qwen/Qwen2.5-7B-Instruct --env UCX_TLS=^cuda_ipc --diagnose
    kvprobe transfer --regions 28 --descriptor-size 32KiB --blocks 512 --memory dram
    kvprobe transfer --model Qwen/Qwen2.5-7B-Instruct --tp 2 --prefill-tp 4 --all-ranks
    kvprobe transfer --listen 0.0.0.0            on one node, KVPROBE_TOKEN set on both;
    kvprobe transfer --connect node-a:18777 --model Qwen/Qwen2.5-7B-Instruct    on the other
    """
    if params["listen"] and params["connect"]:
        raise click.UsageError("--listen and --connect are for two different nodes.")
    if not params["listen"] and (params["keep"] or params["max_memory"]):
        raise click.UsageError("--keep and --max-memory go with --listen.")
    if params["prefill_tp"] and not params["all_ranks"]:
        raise click.UsageError("--prefill-tp goes with --all-ranks.")
    if params["all_ranks"] and (params["listen"] or params["connect"]):
        raise click.UsageError("--all-ranks measures within one host.")
    if params["decode_gpu"] is None:
        after = params["prefill_gpu"] + (params["prefill_tp"] or params["tp"])
        params["decode_gpu"] = 0 if params["connect"] else after if params["all_ranks"] else 1
    execute(ctx, common, params, _flow)


def _flow(door: Door, params: dict[str, Any]) -> Draft:
    """Chosen here, not in :func:`command`: under ``--replay`` the recorded parameters decide."""
    if params.get("listen"):
        return listen(door, params)
    if params.get("connect"):
        return connect(door, params)
    return all_ranks(door, params) if params.get("all_ranks") else measure_transfer(door, params)
