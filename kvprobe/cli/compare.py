"""``kvprobe compare``: did P/D beat colocated in this benchmark?"""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION
from kvprobe.flows.compare import flow


@click.command()
@click.argument("results", nargs=-1, metavar="COLOCATED PD [PD...]")
@click.option(
    "--decode-log",
    multiple=True,
    metavar="FILE",
    help="Log of the decode server during the P/D run: was KV moved, and what share of the tax is it.",
)
@click.option("--ttft-slo", type=DURATION, help="Target for the time to first token, such as 2s or 500ms.")
@click.option("--tpot-slo", type=DURATION, help="Target for the mean time per output token of a request.")
@click.option("--itl-slo", type=DURATION, help="Target for the gap between tokens, such as 50ms.")
@click.option(
    "--slo-percentile",
    type=click.FloatRange(50, 100),
    default=99.0,
    show_default=True,
    help="Share of the samples that must meet each target.",
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Did P/D beat colocated? Two results of `vllm bench serve --save-result`, or two directories of a rate sweep.

    Says what P/D gained, what it cost and whether that holds the targets; or why the two may not be compared: other
    lengths or rates, failed requests, a queue instead of a latency, prompts from the prefix cache, P/D that was not
    active. With --save-detailed the differences get confidence intervals. Repeated runs of one rate are pooled.

    \b
    kvprobe compare colocated.json pd.json --decode-log decode.log
    kvprobe compare sweep-colocated/ sweep-pd/ --ttft-slo 2s --itl-slo 50ms

    Exit: 0 P/D gains or nothing differs, 1 P/D loses or misses a target, 3 nothing may be concluded.
    """
    params["results"] = list(params["results"])
    params["decode_log"] = list(params["decode_log"])
    execute(ctx, common, params, flow)
