"""`kvprobe gates`: the ready-made cron, systemd, CI, Kubernetes and monitoring files, for those who installed with pip."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import click

from kvprobe.errors import UsageError
from kvprobe.policy import did_you_mean


@click.group()
def command() -> None:
    """Ready-made gates: cron, systemd, CI jobs, Kubernetes, Prometheus, Nagios, gpud.

    \b
    kvprobe gates list
    kvprobe gates show systemd/kvprobe.timer > /etc/systemd/system/kvprobe.timer
    """


@command.command("list")
def list_() -> None:
    """The gates, each with what it is for."""
    from kvprobe.assets import gates

    found = gates()
    width = max(map(len, found), default=0)
    room = shutil.get_terminal_size().columns - width - 2 if sys.stdout and sys.stdout.isatty() else 1000
    for name, path in found.items():
        first, *more = textwrap.wrap(purpose(path), max(30, room)) or [""]
        click.echo(f"{name:<{width}}  {first}".rstrip())
        for row in more:
            click.echo(" " * (width + 2) + row)


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print one gate, ready to be redirected into its place."""
    from kvprobe.assets import gates

    found = gates()
    matches = [n for n in found if name in (n, Path(n).name, Path(n).stem)]
    if len(matches) > 1:
        raise UsageError(f"{name!r} names more than one gate.", f"One of: {', '.join(matches)}.")
    if not matches:
        raise UsageError(f"There is no gate {name!r}.", did_you_mean(name, found) or "`kvprobe gates list` lists them.")  # fmt: skip
    click.echo(found[matches[0]].read_text(encoding="utf-8"), nl=False)


def purpose(path: Path) -> str:
    """The first comment line of a gate says what it is for; JSON has no comments."""
    with path.open(encoding="utf-8") as stream:
        first = stream.readline().strip()
    return first.lstrip("#").strip() if first.startswith("#") else _JSON_PURPOSE.get(path.name, "")


_JSON_PURPOSE = {
    "node-problem-detector.json": "node-problem-detector custom plugin: a node condition from the last run.",
}
