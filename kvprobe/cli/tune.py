"""`kvprobe tune`: which setting makes the transfer faster."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION
from kvprobe.flows.tune import tune


@click.command()
@click.option(
    "--model", metavar="MODEL", help="Hub name, directory, config.json or one of the shipped models."
)
@click.option(
    "--memory", type=click.Choice(["auto", "dram"]), default="auto", show_default=True, help="auto: the GPUs."
)
@click.option("--prefill-gpu", type=click.IntRange(min=0), default=0, show_default=True, help="CUDA ordinal.")
@click.option("--decode-gpu", type=click.IntRange(min=0), default=1, show_default=True, help="CUDA ordinal.")
@click.option(
    "--connector",
    type=click.Choice(["pull", "push"]),
    default="pull",
    show_default=True,
    help="What runs now.",
)
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="As vllm serve's.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel size.")
@click.option("--block-size", type=click.IntRange(min=1), help="What runs now (default: what vLLM chooses).")
@click.option("--block-sizes", type=click.IntRange(min=1), multiple=True, help="Block sizes to try (default 16, 32, 64, 128, 256); repeatable.")  # fmt: skip
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=8192, show_default=True, help="Prompt length to tune for.")  # fmt: skip
@click.option("--budget", type=DURATION, default="150s", show_default=True, help="Time for the sweep.")
@click.option("--vllm-version", help="The vLLM that will serve.")
@click.option("--allow-fp8", is_flag=True, help="Let an fp8 KV cache win (it is measured anyway).")
@click.option("--keep", metavar="NAME", multiple=True, help="A variable of this environment that must stay; `all` keeps every one.")  # fmt: skip
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Measure what makes the transfer faster, and print the flags for it.

    Block size, packed layers, direction, NIXL threads, UCX pipeline, host buffers and every UCX or allocator
    variable that is set here are tried with the model's real descriptor list; the ranking is by the whole TTFT tax,
    copies on the prefill side included.

    \b
    kvprobe tune --model Qwen/Qwen2.5-7B-Instruct
    kvprobe tune --model Qwen/Qwen2.5-7B-Instruct --prompt-tokens 30000 --budget 5min
    """
    execute(ctx, common, params, tune)
