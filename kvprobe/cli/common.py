"""What all commands share: the common options, and the way from a flow's Draft to output and exit code."""

from __future__ import annotations

import datetime
import functools
import locale
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from kvprobe.assets import profile_path
from kvprobe.cli.progress import TerminalProgress
from kvprobe.errors import KvprobeError, UsageError
from kvprobe.finding import ExitCode, Finding, Verdict, VerdictStatus, judge
from kvprobe.flows import Door, Draft
from kvprobe.policy import Policy, apply_waivers, parse_policy
from kvprobe.render import RENDERERS, Look, renderer
from kvprobe.report import PolicyUsed, Report, Run
from kvprobe.rules.kvprobe_itself import not_measured
from kvprobe.system import RecordingSystem, ReplaySystem, System, write_atomically

F = TypeVar("F", bound=Callable[..., Any])
Flow = Callable[[Door, dict[str, Any]], Draft]


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the common options."""

    format: str
    output: str | None
    verbose: bool
    quiet: bool
    profile: str | None
    policy: str | None
    fail_on: str | None
    color: str
    progress: str
    record: str | None
    replay: str | None


_OPTIONS = (
    click.option("-f", "--format", type=click.Choice(list(RENDERERS)), default="table", show_default=True, help="Output format."),
    click.option("-o", "--output", metavar="FILE", help="Write the report to FILE (replaced as a whole) instead of stdout."),
    click.option("-v", "--verbose", is_flag=True, help="Details of passing checks; tracebacks of crashes."),
    click.option("-q", "--quiet", is_flag=True, help="The verdict line only; no progress."),
    click.option("--profile", metavar="NAME", help="Policy from checks/profiles (default: default)."),
    click.option("--policy", metavar="FILE", help="Policy from a TOML file."),
    click.option("--fail-on", type=click.Choice(["fail", "warn"]), help="What makes a NO-GO (default: the policy's, fail)."),
    click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours."),
    click.option("--progress", type=click.Choice(["auto", "on", "off"]), default="auto", help="Progress on stderr."),
    click.option("--record", metavar="DIR", help="Write every input of this run to DIR, identities replaced."),
    click.option("--replay", metavar="DIR", help="Run on the inputs of a recorded run, on any machine."),
)  # fmt: skip


def common_options(function: F) -> F:
    """Add the common options; the command gets them as ``common``, and Click's context as ``ctx``."""

    @click.pass_context
    @functools.wraps(function)
    def wrapper(ctx: click.Context, /, **params: Any) -> Any:
        values = {name: params.pop(name) for name in Common.__struct_fields__}
        return function(ctx, Common(**values), **params)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def execute(ctx: click.Context, common: Common, params: dict[str, Any], flow: Flow) -> NoReturn:
    """Run a command's flow, print its report in the asked format, and exit with the verdict's code.

    Under ``--replay`` the recorded parameters hold, except those given on this command line.
    A KvprobeError in the flow becomes a report too: UNKNOWN, or exit 2 for a UsageError.
    """
    command = ctx.info_name or ""
    policy = load_policy(common)
    system, params = _open_system(ctx, common, command, params)
    progress = TerminalProgress(common.progress, quiet=common.quiet)
    started = system.now()
    code: int | None = None
    try:
        with progress:
            draft = flow(Door(system=system, policy=policy, progress=progress), params)
    except UsageError as error:
        draft = Draft(error={"reason": error.reason, "remedy": error.remedy})
        code = ExitCode.USAGE
        click.echo(f"kvprobe: {error}", err=True)
    except KvprobeError as error:
        findings = tuple(not_measured(error, policy))
        draft = Draft(findings=findings, error={"reason": error.reason, "remedy": error.remedy})
    duration = (system.now() - started).total_seconds()
    host = system.hostname()
    system.close()
    run = Run(
        command=command,
        argv=tuple(sys.argv[1:]),
        id=started.strftime("%Y%m%dT%H%M%SZ"),
        started_at=started.isoformat(timespec="seconds"),
        duration_seconds=round(duration, 3),
        host=host,
        replayed_from=system.replayed_from,
        interrupted=system.interrupted,
    )
    report = finish(draft, run, policy, common.fail_on, started.date(), code)
    if code != ExitCode.USAGE or common.format == "json":
        emit(report, common)
    ctx.exit(
        ExitCode.INTERRUPTED if system.interrupted else code if code is not None else report.verdict.exit_code
    )


def finish(
    draft: Draft, run: Run, policy: Policy, fail_on: str | None, today: datetime.date, code: int | None = None
) -> Report:
    """Waivers, roll-up, report: the last pure step of every command."""
    effective = fail_on or draft.fail_on or policy.fail_on
    findings: tuple[Finding, ...] = apply_waivers(draft.findings, policy, today)
    if code == ExitCode.USAGE:
        reason = (draft.error or {}).get("reason", "usage error")
        verdict = Verdict(status=VerdictStatus.UNKNOWN, exit_code=code, reasons=(reason,))
    else:
        verdict = judge(findings, required=draft.required, fail_on=effective)
    return Report(
        run=run,
        subject=draft.subject,
        policy=PolicyUsed(name=policy.name, source=policy.source, fail_on=effective, required=draft.required),
        verdict=verdict,
        findings=tuple(sorted(findings, key=lambda f: f.id)),
        evidence=draft.evidence,
        result=draft.result,
        error=draft.error,
    )


def load_policy(common: Common) -> Policy:
    """The policy of ``--policy FILE`` or ``--profile NAME``. Raises UsageError."""
    if common.policy and common.profile:
        raise UsageError("--policy and --profile exclude each other.")
    path = Path(common.policy) if common.policy else profile_path(common.profile or "default")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Policy {path} cannot be read: {error.strerror}.") from None
    return parse_policy(text, str(path) if common.policy else f"profile {path.stem}")


def _open_system(
    ctx: click.Context, common: Common, command: str, params: dict[str, Any]
) -> tuple[System, dict[str, Any]]:
    if common.record and common.replay:
        raise UsageError("--record and --replay exclude each other.")
    if common.replay:
        replay = ReplaySystem(Path(common.replay))
        recorded = replay.request
        if recorded.get("command") != command:
            raise UsageError(
                f"{common.replay} records `kvprobe {recorded.get('command')}`, not `kvprobe {command}`."
            )
        given = {n for n in params if ctx.get_parameter_source(n) == click.core.ParameterSource.COMMANDLINE}
        merged = {**params, **recorded["params"], **{n: params[n] for n in given}}
        return replay, {name: merged[name] for name in params}
    if common.record:
        return RecordingSystem(Path(common.record), {"command": command, "params": params}), params
    return System(), params


def look_of(common: Common) -> Look:
    """Honours NO_COLOR, FORCE_COLOR, TERM=dumb, non-terminals and non-UTF-8 output."""
    tty = sys.stdout.isatty() and not common.output
    env = os.environ
    if common.color == "auto":
        color = bool(env.get("FORCE_COLOR")) or (
            tty and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        )
    else:
        color = common.color == "always"
    encoding = "utf-8" if common.output else (sys.stdout.encoding or locale.getpreferredencoding(False))
    return Look(
        verbose=common.verbose,
        quiet=common.quiet,
        width=shutil.get_terminal_size((100, 24)).columns if tty or "COLUMNS" in env else 100,
        color=color,
        unicode=encoding.lower().replace("-", "") in ("utf8", "utf16"),
    )


def emit(report: Report, common: Common) -> None:
    """Render to stdout, or atomically to ``--output``."""
    text = renderer(common.format)(report, look_of(common))
    if common.output:
        write_atomically(Path(common.output), text.encode())
    else:
        click.echo(text, nl=False, color=True)
