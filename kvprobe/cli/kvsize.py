"""``kvprobe kvsize``."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.kvsize import kvsize


@click.command(name="kvsize")
@click.option(
    "--model",
    required=True,
    metavar="MODEL",
    help="A directory with config.json, that file, a name on the hub, or one of the models kvprobe knows.",
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub model.")
@click.option(
    "--kv-cache-dtype",
    default="auto",
    show_default=True,
    metavar="DTYPE",
    help="As for vllm serve: auto, bfloat16, fp8, nvfp4 ...",
)
@click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="Tensor-parallel size.")
@click.option("--pp", type=int, default=1, show_default=True, metavar="N", help="Pipeline-parallel size.")
@click.option(
    "--dcp", type=int, default=1, show_default=True, metavar="N", help="Decode context parallel size."
)
@click.option(
    "--block-size", type=int, metavar="N", help="--block-size of vllm serve (default: vLLM's choice)."
)
@click.option("--gpu-arch", metavar="SM", help="sm90, sm100 ... (default: Hopper, shown as assumed).")
@click.option(
    "--no-prefix-caching",
    is_flag=True,
    help="The servers run with --no-enable-prefix-caching (recurrent models' blocks).",
)
@click.option("--mtp", is_flag=True, help="The servers speculate with the model's own MTP layers.")
@click.option(
    "--prompt-tokens",
    type=int,
    multiple=True,
    metavar="N",
    help="Prompt length to plan the transfer for. Repeatable (default: 1024, 8192, 32768).",
)
@click.option("--explain", is_flag=True, help="Print the arithmetic, to be redone by hand.")
@click.option(
    "--check-against-log",
    metavar="FILE",
    help="Hold 'Avg MB per transfer' of a decode log against the computed bytes; - for stdin.",
)
@click.option("--cross-check", is_flag=True, help="Ask the installed vLLM for its own KV cache specs, too.")
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Bytes of KV cache per token, per rank and per prompt, exact or refused.

    \b
    kvprobe kvsize --model Qwen/Qwen2.5-7B-Instruct --prompt-tokens 8192
    kvprobe kvsize --model ./checkpoint --tp 8 --kv-cache-dtype fp8 --explain
    kvprobe kvsize --model ./checkpoint --check-against-log decode.log --prompt-tokens 8000

    The rules are those of vLLM 0.33. An architecture without a rule, or an option that vLLM itself refuses,
    ends UNKNOWN (3) with the reason; there is never a number from a guess.
    """
    execute(ctx, common, {**params, "prompt_tokens": list(params["prompt_tokens"])}, kvsize)
