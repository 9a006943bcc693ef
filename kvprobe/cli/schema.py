"""`kvprobe schema`: the JSON Schema of the report."""

from __future__ import annotations

import json

import click

from kvprobe.report import json_schema


@click.command()
def command() -> None:
    """Print the JSON Schema of kvprobe.report/v1, which every --format json document validates against."""
    click.echo(json.dumps(json_schema(), indent=2))
