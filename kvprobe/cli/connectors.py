"""``kvprobe connectors``."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION
from kvprobe.flows.connectors import run


@click.command("connectors")
@click.argument("names", nargs=-1, metavar="[CONNECTOR]...")
@click.option("--kv-transfer-config", metavar="JSON", help="The option's JSON, or @FILE: its connector (or MultiConnector) must be ready.")  # fmt: skip
@click.option("--vllm-version", metavar="V", help="The vLLM that will serve (default: the one installed here, else the newest known).")  # fmt: skip
@click.option("--dp", type=click.IntRange(1, 4096), default=1, show_default=True, help="Data-parallel ranks on this host: side-channel ports in a row.")  # fmt: skip
@click.option("--measure", type=click.Choice(["auto", "on", "off"]), default="auto", show_default=True, help="Transfer over Mooncake and NIXL on TCP loopback; auto: if Mooncake loads.")  # fmt: skip
@click.option("--model", metavar="MODEL", help="Whose descriptor plan to move (default: that of a 7B model).")
@click.option("--prompt-tokens", type=click.IntRange(16, 131072), default=2048, show_default=True, help="Prompt length of the plan.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1, 1000), default=10, show_default=True, help="Warm samples a series.")  # fmt: skip
@click.option(
    "--budget", type=DURATION, default="20s", show_default=True, help="Time for measuring, a library."
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> NoReturn:
    """What does each KV connector of this vLLM need, and does this machine have it?

    Without a name every connector is looked at, and one for P/D must be ready. With names, or with the
    configuration, those must be ready: package and version, native libraries (loaded in a child process), free ports,
    configuration file, devices.

    \b
    kvprobe connectors                                   all of them
    kvprobe connectors NixlConnector --dp 8              ready for eight ranks on this host?
    kvprobe connectors --kv-transfer-config @kv.json     also a MultiConnector and its children
    kvprobe connectors MooncakeConnector --measure on    and move real bytes
    """
    execute(ctx, common, params, run)
