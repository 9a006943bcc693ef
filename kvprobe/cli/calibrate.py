"""`kvprobe calibrate`: fit the assumed terms of the TTFT tax to live runs."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.calibrate import calibrate


@click.command()
@click.argument("reports", nargs=-1, metavar="LIVE_REPORT...")
@click.option(
    "--save", metavar="FILE", help="Write the calibration to FILE, for `kvprobe preflight --calibration`."
)
@click.option("--vllm-version", metavar="V", help="The version the runs belong to (default: as the reports tell).")  # fmt: skip
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Fit the assumed terms (second hop, scheduling and polling, decode step, staging) to live runs.

    \b
    kvprobe live --prefill URL --decode URL --format json --output live.json
    kvprobe calibrate live.json --save calibration.json
    kvprobe preflight --model MODEL --calibration calibration.json
    """
    execute(ctx, common, params, calibrate)
