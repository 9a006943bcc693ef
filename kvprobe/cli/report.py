"""`kvprobe report`: print a stored report again."""

from __future__ import annotations

import click

from kvprobe.cli.common import Common, output_options, present
from kvprobe.cli.stored import read_report


@click.command()
@click.argument("file", metavar="REPORT")
@output_options
def command(ctx: click.Context, common: Common, file: str) -> None:
    """Print a stored report (JSON, - for stdin) in any format; the exit code is the report's.

    \b
    kvprobe report preflight.json
    kvprobe report preflight.json -f html -o preflight.html
    """
    present(ctx, read_report(file), common)
