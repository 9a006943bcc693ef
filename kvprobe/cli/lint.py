"""``kvprobe lint``: will this prefill/decode pair start, match and stay correct?"""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.lint import lint


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--prefill",
    multiple=True,
    metavar="COMMAND",
    help="A prefill instance's command line, as typed into a shell.",
)
@click.option("--decode", multiple=True, metavar="COMMAND", help="A decode instance's command line.")
@click.option(
    "--host",
    multiple=True,
    metavar="ROLE=NAME",
    help="Where a role runs: prefill=node-a or 'prefill=node-a (192.0.2.11)'; decode=pod: an address of its own each.",
)
@click.option(
    "--vllm-version",
    metavar="VERSION",
    help="The vLLM to judge by, where no image tag says it (default: the installed one, else 0.33.0).",
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Read launch files and say what will not start, not match or silently go wrong.

    FILE: shell scripts, docker run, compose files, Kubernetes manifests (llm-d, Dynamo, LeaderWorkerSet, Helm output),
    systemd units, environment files, `vllm serve --config` files and hosts files, any number, in any mixture; a folder
    stands for the launch files in it, - for standard input.

    \b
    kvprobe lint prefill.sh decode.sh proxy.sh --host prefill=node-a --host decode=node-b
    helm template my-release ./chart | kvprobe lint -
    kvprobe lint --prefill "vllm serve ..." --decode "vllm serve ..." --vllm-version 0.30.0
    """
    execute(ctx, common, params, lint)
