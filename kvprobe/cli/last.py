"""`kvprobe last`: the newest stored run, for monitors that cannot wait for a measurement."""

from __future__ import annotations

import datetime

import click
import msgspec

from kvprobe.cli import settings
from kvprobe.cli.common import Common, failed_report, output_options, present
from kvprobe.cli.types import DURATION
from kvprobe.errors import ExitCode, KvprobeError
from kvprobe.finding import Verdict, VerdictStatus
from kvprobe.report import Report
from kvprobe.store import KEPT, Store, state_dir
from kvprobe.units import format_seconds


@click.command()
@click.argument("run", metavar="[COMMAND]", type=click.Choice(KEPT), default="preflight")
@click.option("--max-age", type=DURATION, metavar="DURATION", help="An older result is UNKNOWN, such as 2h.")
@click.option("--state-dir", metavar="DIR", help="Where runs are kept (default: $KVPROBE_STATE_DIR, ~/.local/state/kvprobe).")  # fmt: skip
@output_options
def command(
    ctx: click.Context, common: Common, run: str, max_age: float | None, state_dir: str | None
) -> None:
    """The report of the newest run (of preflight, if no COMMAND is named), as it was stored.

    A stale result, a run that was killed and an empty store are UNKNOWN. Nothing is measured: it answers at once.

    \b
    kvprobe last --max-age 2h --format line       node-problem-detector
    kvprobe last --max-age 2h --format nagios     Nagios, Icinga, Sensu
    """
    present(ctx, newest(ctx, run, max_age, state_dir), common)


def newest(ctx: click.Context, run: str, max_age: float | None, folder: str | None) -> Report:
    """The stored report, its verdict UNKNOWN where it no longer tells about now."""
    store = Store(state_dir(folder or settings.settings_of(ctx).state_dir))
    try:
        report = store.last(run)
    except KvprobeError as error:
        return failed_report(run, error)
    return too_old(report, max_age, datetime.datetime.now(datetime.UTC))


def too_old(report: Report, max_age: float | None, now: datetime.datetime) -> Report:
    """``report`` with an UNKNOWN verdict if it is older than ``max_age`` seconds, of unknown age, or from the future."""
    if max_age is None:
        return report
    try:
        age = (now - datetime.datetime.fromisoformat(report.run.started_at or "")).total_seconds()
    except (ValueError, TypeError):
        return _unknown(report, "the stored result does not tell its time")
    age -= report.run.duration_seconds or 0.0
    if age < -300:
        return _unknown(report, f"the stored result is {format_seconds(-age)} in the future: check the clock")
    if age > max_age:
        return _unknown(report, f"stale: the stored result is {format_seconds(age)} old, at most {format_seconds(max_age)} is allowed")  # fmt: skip
    return report


def _unknown(report: Report, reason: str) -> Report:
    verdict = Verdict(
        status=VerdictStatus.UNKNOWN,
        exit_code=ExitCode.UNKNOWN,
        reasons=(reason, *report.verdict.reasons),
    )
    return msgspec.structs.replace(report, verdict=verdict)
