"""`kvprobe judge`: hold a stored report against another policy, without measuring again."""

from __future__ import annotations

import datetime

import click
import msgspec

from kvprobe.cli.common import Common, judging_options, let_through, load_policy, present, rolled_up
from kvprobe.cli.stored import read_report
from kvprobe.errors import ExitCode
from kvprobe.policy import rejudge


@click.command()
@click.argument("file", metavar="REPORT")
@judging_options
def command(ctx: click.Context, common: Common, file: str) -> None:
    """Judge a stored report anew, by another policy.

    Figures that name their threshold are held against the new one; what failed for another reason (a wrong
    template, a missing capability) keeps its status. Waivers count as of today.

    \b
    kvprobe judge preflight.json --policy our-cluster.toml
    kvprobe judge preflight.json --profile strict --fail-on warn
    """
    policy = load_policy(common, ctx)
    stored = read_report(file)
    findings, moved = rejudge(stored.findings, policy)
    if not common.quiet:
        click.echo(
            f"kvprobe: {moved} of {len(findings)} findings name a threshold and are judged by {policy.source}; the others keep their status.",
            err=True,
        )
    if stored.verdict.exit_code == ExitCode.USAGE:
        present(ctx, stored, common)
    # Only a run that was made to satisfy required checks is held to them.
    held = stored.run.command == "preflight" or (stored.policy is not None and stored.policy.required)
    today = datetime.datetime.now(datetime.UTC).date()
    report = rolled_up(
        msgspec.structs.replace(stored, findings=findings),
        policy,
        required=policy.required if held else (),
        fail_on=common.fail_on or policy.fail_on,
        today=today,
    )
    present(ctx, let_through(report, common), common)
