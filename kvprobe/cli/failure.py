"""A wrong call, told in the format that was asked for: a monitor reads stdout, not click's text on stderr.

The options could not be parsed, so format and outputs are looked for in the words themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kvprobe.errors import ExitCode, KvprobeError, UsageError


def report_usage_error(error: click.ClickException, arguments: Sequence[str]) -> int:
    """Write the UNKNOWN report of a call that click refused; returns the exit code (3 for nagios, else 2)."""
    command = _command(error)
    form = _asked(arguments, "--format", "-f") or os.environ.get(f"KVPROBE_{command.upper()}_FORMAT")
    writes = tuple(_all(arguments, "--write"))
    target = _asked(arguments, "--output", "-o")
    if form in (None, "table") and not target and not writes:
        return ExitCode.USAGE
    from kvprobe.cli import output
    from kvprobe.cli.common import failed_report
    from kvprobe.render import RENDERERS

    form = form if form in RENDERERS else "table"
    report = failed_report(command, UsageError(error.format_message()), told=True)
    look = output.look_of("never", verbose=False, quiet=False, to_file=bool(target))
    try:
        if form != "table" or target:
            output.emit(report, form, target, look)
        for kind, file in output.parse_writes(writes):
            output.write_report(report, kind, file, look)
    except KvprobeError as failure:
        click.echo(f"kvprobe: {failure}", err=True)
    return output.exit_code(report, form)


def _command(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return str(ctx.info_name) if ctx is not None and ctx.info_name else "kvprobe"


def _asked(arguments: Sequence[str], *names: str) -> str | None:
    """The last value of an option."""
    return next(iter(reversed([value for name in names for value in _all(arguments, name)])), None)


def _all(arguments: Sequence[str], name: str) -> list[str]:
    found = []
    for index, word in enumerate(arguments):
        if word == "--":
            break
        if word == name and index + 1 < len(arguments):
            found.append(arguments[index + 1])
        elif name.startswith("--") and word.startswith(f"{name}="):
            found.append(word.partition("=")[2])
        elif not name.startswith("--") and word.startswith(name) and len(word) > 2:
            found.append(word[2:])
    return found
