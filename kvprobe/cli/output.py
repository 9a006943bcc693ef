"""The way of a Report to stdout, files and the exit code."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from pathlib import Path

import click

from kvprobe.errors import ExitCode, KvprobeError, UsageError
from kvprobe.render import EXTENSIONS, RENDERERS, Look, renderer
from kvprobe.report import Report
from kvprobe.system import write_atomically

SUMMARY_LIMIT_BYTES = 4096
"""What Kubernetes keeps of /dev/termination-log."""


def look_of(color: str, *, verbose: bool, quiet: bool, to_file: bool) -> Look:
    """Honours NO_COLOR, FORCE_COLOR, TERM=dumb, non-terminals and non-UTF-8 output."""
    # Python's stdout is None where the caller closed it (>&-).
    tty = sys.stdout is not None and sys.stdout.isatty() and not to_file
    env = os.environ
    if color == "auto":
        colored = bool(env.get("FORCE_COLOR")) or (
            tty and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        )
    else:
        colored = color == "always"
    encoding = (
        "utf-8" if to_file else (getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(False))
    )
    return Look(
        verbose=verbose,
        quiet=quiet,
        width=shutil.get_terminal_size((100, 24)).columns if tty or "COLUMNS" in env else 100,
        color=colored,
        unicode=encoding.lower().replace("-", "") in ("utf8", "utf16"),
    )


def parse_writes(values: tuple[str, ...]) -> list[tuple[str, str]]:
    """``FORMAT=FILE`` of each ``--write``. Raises UsageError."""
    found = []
    for value in values:
        form, _, file = value.partition("=")
        if form not in RENDERERS or not file:
            raise UsageError(f"--write {value}: write FORMAT=FILE, with one of {', '.join(RENDERERS)}.")
        found.append((form, file))
    return found


def write_report(report: Report, form: str, file: str, look: Look) -> None:
    """Render to ``file``, replaced as a whole; a directory gets ``kvprobe-COMMAND.EXT``. Raises UsageError."""
    path = Path(file)
    if file.endswith("/") or path.is_dir():
        path = path / f"kvprobe-{report.run.command}.{EXTENSIONS[form]}"
    write_atomically(path, renderer(form)(report, look).encode())


def write_summary(report: Report, file: str) -> None:
    """The verdict and what is wrong, at most 4,096 bytes, written in place: a bind-mounted termination log
    cannot be replaced. Raises UsageError."""
    from kvprobe.render.line import summary

    try:
        Path(file).write_bytes(summary(report, SUMMARY_LIMIT_BYTES).encode())
    except OSError as error:
        raise UsageError(f"--summary-file {file} cannot be written: {error.strerror}.") from None


def emit(report: Report, form: str, output: str | None, look: Look) -> None:
    """Render to stdout, or atomically to ``output``. Raises KvprobeError for a full disk behind stdout."""
    if output:
        write_report(report, form, output, look)
    else:
        text = renderer(form)(report, look)
        try:
            click.echo(text, nl=False, color=True)
        except BrokenPipeError:
            # The reader (head, grep -q) has enough; the exit code still tells the verdict.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        except OSError as error:
            raise KvprobeError(f"The report could not be written to stdout: {error.strerror}.") from None


def exit_code(report: Report, form: str) -> int:
    """The verdict's code, 130 for an interrupted run; Nagios has codes of its own."""
    if form == "nagios":
        from kvprobe.render.nagios import exit_code as nagios_code

        return nagios_code(report)
    return ExitCode.INTERRUPTED if report.run.interrupted else report.verdict.exit_code
