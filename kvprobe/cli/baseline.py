"""`kvprobe baseline`: keep a good run, show it, forget it; `--baseline stored` compares with it."""

from __future__ import annotations

import click

from kvprobe.cli import settings
from kvprobe.cli.common import Common, output_options, present
from kvprobe.cli.stored import read_report
from kvprobe.errors import KvprobeError, ProbeError, UsageError
from kvprobe.figures import figures
from kvprobe.finding import VerdictStatus
from kvprobe.models.statistics import FEW_SAMPLES
from kvprobe.store import KEPT, Store, state_dir


@click.group()
def command() -> None:
    """Keep a good run as the baseline that later runs are compared with.

    \b
    kvprobe baseline set                                     keep the last preflight run
    kvprobe preflight --model M --baseline stored            compare with it
    """


def _store(ctx: click.Context, folder: str | None) -> Store:
    return Store(state_dir(folder or settings.settings_of(ctx).state_dir))


_STATE_DIR = click.option("--state-dir", metavar="DIR", help="Where baselines are kept.")


@command.command("set")
@click.argument("file", metavar="[REPORT]", required=False)
@click.option("--command", "run", type=click.Choice(KEPT), default="preflight", show_default=True, help="Whose last run to keep.")  # fmt: skip
@click.option("--force", is_flag=True, help="Keep a run that was not GO.")
@_STATE_DIR
@click.pass_context
def set_(ctx: click.Context, file: str | None, run: str, force: bool, state_dir: str | None) -> None:
    """Keep REPORT, or the last stored run, as the baseline of its command."""
    store = _store(ctx, state_dir)
    try:
        report = read_report(file) if file else store.last(run)
    except KvprobeError as error:
        raise UsageError(f"No baseline was set: {error.reason}", error.remedy) from error
    if report.verdict.status is not VerdictStatus.GO and not force:
        raise UsageError(
            f"No baseline was set: that run ended {report.verdict.status.value.replace('_', '-').upper()}.",
            "Use --force to keep it all the same.",
        )
    usable = [f for f in figures(report.result) if f.better and len(f.samples) >= FEW_SAMPLES]
    path = store.set_baseline(report)
    click.echo(f"Baseline of {report.run.command} set: run of {report.run.started_at}, {len(usable)} figures with samples ({path}).")  # fmt: skip
    if not usable:
        click.echo(f"kvprobe: no figure of it has {FEW_SAMPLES} samples, so nothing can be compared with it.", err=True)  # fmt: skip


@command.command("show")
@click.argument("run", metavar="[COMMAND]", type=click.Choice(KEPT), default="preflight")
@_STATE_DIR
@output_options
def show(ctx: click.Context, common: Common, run: str, state_dir: str | None) -> None:
    """Print the baseline of COMMAND (default: preflight) as a report."""
    report = _store(ctx, state_dir).baseline(run)
    if report is None:
        raise ProbeError(
            f"No baseline of {run} has been set.", "Run `kvprobe baseline set` after a good run."
        )
    present(ctx, report, common)


@command.command("forget")
@click.argument("run", metavar="[COMMAND]", type=click.Choice(KEPT), default="preflight")
@_STATE_DIR
@click.pass_context
def forget(ctx: click.Context, run: str, state_dir: str | None) -> None:
    """Remove the baseline of COMMAND (default: preflight)."""
    there = _store(ctx, state_dir).remove_baseline(run)
    click.echo(f"Baseline of {run} forgotten." if there else f"No baseline of {run} has been set.")
