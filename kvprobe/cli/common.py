"""What all commands share: the common options, and the way from a flow's Draft to output and exit code."""

from __future__ import annotations

import contextlib
import datetime
import functools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from click.core import ParameterSource

from kvprobe.cli import options, output, settings
from kvprobe.cli.keeping import kept, with_baseline
from kvprobe.cli.options import Common, common_options
from kvprobe.errors import KvprobeError, UsageError
from kvprobe.finding import ExitCode, Finding, Verdict, VerdictStatus, judge
from kvprobe.flows import Door, Draft
from kvprobe.policy import Policy, apply_waivers
from kvprobe.render import Look
from kvprobe.render.line import harmless
from kvprobe.report import PolicyUsed, Report, Run
from kvprobe.rules.kvprobe_itself import not_measured
from kvprobe.rules.run import crashed, expired_waivers, interrupted
from kvprobe.store import Store, state_dir
from kvprobe.system import RecordingSystem, ReplaySystem, System, hide_passwords

__all__ = [
    "Common",
    "common_options",
    "execute",
    "finish",
    "judging_options",
    "let_through",
    "load_policy",
    "output_options",
    "present",
    "rolled_up",
]

F = TypeVar("F", bound=Callable[..., Any])
Flow = Callable[[Door, dict[str, Any]], Draft]


def output_options(function: F) -> F:
    """Only the options that say how a report is shown; for commands that print a stored one."""
    return options.output_options(_guarded(function))


def judging_options(function: F) -> F:
    """Options that say how a stored report is judged and shown."""
    return options.judging_options(_guarded(function))


def _guarded(function: F) -> F:
    """What goes wrong in the command becomes a report too, in the format that was asked for."""

    @functools.wraps(function)
    def wrapper(ctx: click.Context, common: Common, **params: Any) -> Any:
        try:
            return function(ctx, common, **params)
        except KvprobeError as error:
            # `kvprobe baseline show` is a call of baseline, not of show.
            command = ctx.command_path.split()[1:2]
            present(ctx, failed_report("".join(command), error), common)

    return wrapper  # type: ignore[return-value]


def failed_report(command: str, error: KvprobeError, *, told: bool = False) -> Report:
    """The document of a call that ended before there was anything to judge; ``told``: stderr has its sentence."""
    usage = isinstance(error, UsageError)
    if usage and not told:
        click.echo(f"kvprobe: {harmless(str(error))}", err=True)
    policy = Policy(name="none", source="not loaded")
    findings = () if usage else tuple(not_measured(error, policy))
    draft = _failed(error.reason, error.remedy, findings)
    now = datetime.datetime.now(datetime.UTC)
    run = Run(command=command, argv=_argv(), started_at=now.isoformat(timespec="seconds"))
    return finish(draft, run, policy, None, now.date(), ExitCode.USAGE if usage else None)


def execute(ctx: click.Context, common: Common, params: dict[str, Any], flow: Flow) -> NoReturn:
    """Run a command's flow, print its report in the asked format, and exit with the verdict's code.

    Under ``--replay`` the recorded parameters hold, except those given on this command line.
    Whatever goes wrong becomes a report too, so that no older GO is left standing in a file or the
    store: exit 2 for a UsageError, else UNKNOWN.
    """
    # `last`, which a monitor calls every minute, prints no progress and need not load rich for it.
    from kvprobe.cli.progress import TerminalProgress

    command = ctx.info_name or ""
    policy = Policy(name="none", source="not loaded")
    system: System = System()
    code: int | None = None
    progress = TerminalProgress(common.progress, quiet=common.quiet)
    store = Store(state_dir(settings.settings_of(ctx).state_dir))
    started = datetime.datetime.now(datetime.UTC)
    with kept(store, command, replayed=bool(common.replay)) as keep:
        try:
            _check_hand_typed(ctx, common)
            policy = load_policy(common, ctx)
            system, params = _open_system(ctx, common, command, params)
            started = system.now()
            with progress:
                draft = flow(Door(system=system, policy=policy, progress=progress), params)
            if common.baseline:
                draft = with_baseline(draft, command, common.baseline, store, policy)
        except UsageError as error:
            draft = Draft(error={"reason": error.reason, "remedy": error.remedy})
            code = ExitCode.USAGE
            click.echo(f"kvprobe: {harmless(str(error))}", err=True)
        except KvprobeError as error:
            draft = _failed(error.reason, error.remedy, not_measured(error, policy))
        except KeyboardInterrupt:
            system.interrupted = True
            draft = _failed("The run was interrupted.", "", interrupted(None, policy))
        except Exception as error:  # noqa: BLE001  a crash is "unknown", and it must reach every output
            if common.verbose:
                traceback.print_exc()
            findings = tuple(crashed(error, policy))
            draft = _failed(findings[0].title, "", findings)
        report = finish(draft, _run(command, system, started), policy, common.fail_on, started.date(), code)
        report = let_through(report, common)
        if not system.replayed_from:
            keep(report)
    present(ctx, report, common)


def present(ctx: click.Context, report: Report, common: Common) -> NoReturn:
    """Write every output that was asked for, then exit with the report's code.

    One that cannot be written keeps none of the others from being written; its error is raised in the end.
    """
    look, to_file = look_of(common), look_of(common, to_file=True)
    usage = report.verdict.exit_code == ExitCode.USAGE
    failures: list[Exception] = []
    jobs: list[Callable[[], None]] = []
    try:
        for form, file in output.parse_writes(common.write):
            jobs.append(functools.partial(output.write_report, report, form, file, to_file))
    except UsageError as error:
        # execute() looked before the run, and the report tells it already.
        failures += [] if usage else [error]
    if common.summary_file:
        jobs.append(functools.partial(output.write_summary, report, common.summary_file))
    # The sentence of a usage error is on stderr already; a person needs no empty table below it.
    if not usage or common.format != "table" or common.output:
        jobs.append(functools.partial(output.emit, report, common.format, common.output, look))
    for job in jobs:
        try:
            job()
        except Exception as error:  # noqa: BLE001  raised below, once the other outputs are there
            failures.append(error)
    if failures:
        raise failures[0]
    ctx.exit(output.exit_code(report, common.format))


def finish(
    draft: Draft, run: Run, policy: Policy, fail_on: str | None, today: datetime.date, code: int | None = None
) -> Report:
    """Waivers, roll-up, report: the last pure step of every command."""
    effective = fail_on or draft.fail_on or policy.fail_on
    report = Report(
        run=run,
        subject=draft.subject,
        verdict=Verdict(status=VerdictStatus.UNKNOWN, exit_code=ExitCode.UNKNOWN),
        findings=draft.findings,
        evidence=draft.evidence,
        result=draft.result,
        error=draft.error,
    )
    report = rolled_up(report, policy, required=draft.required, fail_on=effective, today=today)
    if code == ExitCode.USAGE:
        reason = (draft.error or {}).get("reason", "usage error")
        verdict = Verdict(status=VerdictStatus.UNKNOWN, exit_code=code, reasons=(reason,))
        report = msgspec.structs.replace(report, verdict=verdict)
    return report


def rolled_up(
    report: Report, policy: Policy, *, required: tuple[str, ...], fail_on: str, today: datetime.date
) -> Report:
    """The report with waivers applied, its verdict by ``policy``, and findings in order of id."""
    findings: tuple[Finding, ...] = (
        *apply_waivers(report.findings, policy, today),
        *expired_waivers(today, policy),
    )
    return msgspec.structs.replace(
        report,
        policy=PolicyUsed(name=policy.name, source=policy.source, fail_on=fail_on, required=required),
        verdict=judge(findings, required=required, fail_on=fail_on),
        findings=tuple(sorted(findings, key=lambda f: f.id)),
    )


def load_policy(common: Common, ctx: click.Context | None = None) -> Policy:
    """The policy of ``--policy FILE`` or ``--profile NAME``, configuration file on top. Raises UsageError."""
    found = settings.settings_of(ctx) if ctx else settings.Settings()
    name, file = common.profile, common.policy
    if ctx and name and file:
        # One typed by hand outranks one from the configuration file; two typed by hand exclude each other.
        from_file = {
            n for n in ("profile", "policy") if ctx.get_parameter_source(n) is ParameterSource.DEFAULT_MAP
        }
        name, file = None if "profile" in from_file else name, None if "policy" in from_file else file
    return settings.load_policy(name, file, found)


def look_of(common: Common, *, to_file: bool = False) -> Look:
    """How the text of this run should look."""
    return output.look_of(
        common.color, verbose=common.verbose, quiet=common.quiet, to_file=to_file or bool(common.output)
    )


def _check_hand_typed(ctx: click.Context, common: Common) -> None:
    output.parse_writes(common.write)
    if common.unknown_is and ctx.get_parameter_source("unknown_is") is not ParameterSource.COMMANDLINE:
        raise UsageError("--unknown-is works only on the command line, not from the environment or a file.")


def let_through(report: Report, common: Common) -> Report:
    """``--unknown-is go``: exit code 0, while the report goes on saying UNKNOWN and why it was let through."""
    verdict = report.verdict
    if (
        common.unknown_is != "go"
        or verdict.status is not VerdictStatus.UNKNOWN
        or verdict.exit_code != ExitCode.UNKNOWN
    ):
        return report
    reasons = (*verdict.reasons, "let through by --unknown-is go")
    return msgspec.structs.replace(
        report, verdict=msgspec.structs.replace(verdict, exit_code=ExitCode.GO, reasons=reasons)
    )


def _failed(reason: str, remedy: str, findings: Any) -> Draft:
    return Draft(findings=tuple(findings), error={"reason": reason, "remedy": remedy})


def _argv() -> tuple[str, ...]:
    """The call as typed; a report is handed on, so no password in an address stays in it."""
    return tuple(hide_passwords(word) for word in sys.argv[1:])


def _run(command: str, system: System, started: datetime.datetime) -> Run:
    host, ended = None, started
    # A recording of an older kvprobe may lack these two; the report then says less.
    with contextlib.suppress(KvprobeError):
        ended = system.now()
        host = system.hostname()
    system.close()
    return Run(
        command=command,
        argv=_argv(),
        id=started.strftime("%Y%m%dT%H%M%SZ"),
        started_at=started.isoformat(timespec="seconds"),
        duration_seconds=round((ended - started).total_seconds(), 3),
        host=host,
        replayed_from=system.replayed_from,
        interrupted=system.interrupted,
    )


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
        given = {n for n in params if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE}
        merged = {**params, **recorded["params"], **{n: params[n] for n in given}}
        return replay, {name: merged[name] for name in params}
    if common.record:
        return RecordingSystem(Path(common.record), {"command": command, "params": params}), params
    return System(), params
