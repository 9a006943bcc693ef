"""``kvprobe logs``."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.logs import logs
from kvprobe.units import parse_duration


def _duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else parse_duration(value)


@click.command(name="logs")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--follow",
    is_flag=True,
    help="Wait for new lines as tail -F does; Ctrl-C or --for ends it with the report.",
)
@click.option(
    "--for",
    "for_",
    metavar="TIME",
    callback=_duration,
    help="Stop following, or reading a pipe, after this time.",
)
@click.option("--silence", metavar="TIME", callback=_duration, help="Give up when nothing comes for so long.")
@click.option(
    "--metrics-url",
    multiple=True,
    metavar="[ROLE=]URL",
    help="Read /metrics instead; repeat it as prefill=URL and decode=URL to compare both.",
)
@click.option(
    "--interval",
    default="10s",
    metavar="TIME",
    callback=_duration,
    show_default=True,
    help="Time between the two scrapes; 0 for all since the start.",
)
@click.option("--metrics-only", is_flag=True, help="The metrics lines alone, without the log doctor.")
@click.option(
    "--report",
    metavar="FILE",
    help="A stored preflight or transfer report: what does the engine lose over NIXL alone?",
)
@click.option(
    "--operation",
    type=click.Choice(["READ", "WRITE"]),
    default="READ",
    show_default=True,
    help="Which of the report's fits: READ for pull, WRITE for push.",
)
@click.option("--signatures", metavar="FILE", help="Further log signatures (TOML as in checks/signatures).")
@click.option(
    "--keep",
    type=click.IntRange(2, 1_000_000),
    default=4000,
    show_default=True,
    help="Intervals kept for the report: the first and the newest half. Sums and timeline cover all.",
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """What the engine's log says about KV transfers, and what went wrong in it.

    \b
    kvprobe logs decode.log prefill.log.gz         transfers, failures and their causes
    kubectl logs deploy/decode | kvprobe logs -    from a pipe
    kvprobe logs --follow decode.log               live, until Ctrl-C
    kvprobe logs --metrics-url decode:8000         the same from /metrics, two scrapes apart

    Any wrapping is read: colours, docker, Kubernetes, journald, JSON lines, gzip, zstd, xz. Times are those of the side
    that starts the transfer: decode for NIXL's pull, prefill for push and Mooncake.
    """
    execute(
        ctx,
        common,
        {**params, "files": list(params["files"]), "metrics_url": list(params["metrics_url"])},
        logs,
    )
