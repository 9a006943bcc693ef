"""``kvprobe estimate``: what would P/D cost on hardware that is not here?"""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.case_options import case_options
from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION, RATE, SIZE
from kvprobe.flows.estimate import flow
from kvprobe.models.links import LINKS


@click.command()
@click.option(
    "--model", metavar="MODEL", help="Hub name, directory, config.json or one of the shipped models."
)
@click.option(
    "--bandwidth", type=RATE, help="One direction of the link, such as 400Gb/s (bits) or 50GB/s (bytes)."
)
@click.option("--link", metavar="NAME", help=f"A link with a source: {', '.join(LINKS)}.")
@click.option(
    "--fit",
    metavar="R.json",
    help="The cost fit in a preflight report: descriptors and bytes as measured there.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Prompt length (default 8192); repeatable, the longest is judged.",
)
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Tensor parallel size of both sides; every rank pulls its share.",
)
@click.option("--shared-link", is_flag=True, help="All ranks pull through one link instead of one each.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="As vllm serve's.")
@click.option(
    "--block-size", type=click.IntRange(min=1), help="As vllm serve's (default: what vLLM chooses)."
)
@click.option(
    "--connector",
    type=click.Choice(["pull", "push"]),
    default="pull",
    show_default=True,
    help="Which fit counts: READ (pull) or WRITE (push).",
)
@click.option("--rtt", type=DURATION, help="Round trip of a long way, such as 40ms.")
@click.option(
    "--window",
    type=SIZE,
    help="Most bytes in flight (socket buffer times streams); limits the rate over --rtt.",
)
@click.option("--relay", is_flag=True, help="A relay stores the KV and sends it on: all bytes take two legs.")
@click.option("--vllm-version", help="The vLLM that will serve (default: the newest calibrated one).")
@click.option(
    "--kv-buffer-device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="As in kv_transfer_config.",
)
@click.option("--ttft-slo", type=DURATION, help="The TTFT you must keep, such as 500ms.")
@click.option("--base-ttft", type=DURATION, help="The TTFT you have without P/D at the judged prompt length.")
@case_options
@click.option("--emit", type=click.Choice(["dynamo"]), help="Also print the estimate in a planner's units.")
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """What would P/D cost over a link that you do not have here?

    Bytes on the wire, descriptors, TTFT tax and advice for your case. Without a fit the descriptors' cost is not known
    and the result is UNKNOWN: the figures are then lower bounds, enough to rule P/D out, never to promise it.

    \b
    kvprobe estimate --model meta-llama/Llama-3.1-70B --prompt-tokens 10000 --bandwidth 400Gb/s
    kvprobe estimate --model Qwen/Qwen2.5-7B-Instruct --link ucx-emulation
    kvprobe estimate --model Qwen/Qwen2.5-7B-Instruct --fit R.json --itl-slo 50ms --base-ttft 200ms --rate 2
    """
    params["prompt_tokens"] = list(params["prompt_tokens"])
    execute(ctx, common, params, flow)
