"""`kvprobe env`: what a bug report needs, secrets removed."""

from __future__ import annotations

import json

import click

from kvprobe.flows.env import collect
from kvprobe.system import System


@click.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(form: str) -> None:
    """Versions, GPUs and settings for a bug report. Values of secrets, host names and addresses are left out."""
    found = collect(System())
    if form == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        click.echo(f"{title}\n{'-' * len(title)}")
        width = max((len(name) for name in rows), default=0)
        for name, value in rows.items():
            click.echo(f"{name:<{width}}  {value}")
        click.echo()
