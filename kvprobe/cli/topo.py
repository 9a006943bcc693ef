"""``kvprobe topo``."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.topo import topo


@click.command(name="topo")
@click.option(
    "--file",
    multiple=True,
    metavar="FILE",
    help="Saved or pasted nvidia-smi text instead of this machine; - for stdin. Repeat it. r=FILE says which -p2p letter it shows.",
)
@click.option(
    "--prefill", metavar="GPU", help="GPU that prefills, as nvidia-smi names it: GPU0, 0 or a UUID."
)
@click.option("--decode", metavar="GPU", help="GPU that decodes.")
@click.option(
    "--connector",
    type=click.Choice(["pull", "push"]),
    default="pull",
    show_default=True,
    help="pull: decode reads prefill (NixlConnector). push: prefill writes decode.",
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Which GPUs can reach each other, and how.

    \b
    kvprobe topo                                       ask this machine's driver
    kvprobe topo --file p2p_r.txt --file topo_m.txt    saved texts, from any machine
    ssh node 'nvidia-smi topo -p2p r' | kvprobe topo --file r=-

    What decides is the permission: nvidia-smi topo -p2p r for pull, -p2p w for push. topo -m alone gives
    distances and ends UNKNOWN.
    """
    execute(ctx, common, {**params, "file": list(params["file"])}, topo)
