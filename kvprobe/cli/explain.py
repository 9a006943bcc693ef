"""`kvprobe explain`: what a check checks, why it matters, what to do, and its source."""

from __future__ import annotations

import re
import sys

import click

from kvprobe.assets import docs_dir
from kvprobe.errors import UsageError
from kvprobe.policy import did_you_mean


@click.command()
@click.argument("check", required=False, metavar="[KVPnnn]")
def command(check: str | None) -> None:
    """Explain a check by its id or name; without one, list them all.

    \b
    kvprobe explain KVP203
    kvprobe explain nixl-read-scattered
    """
    if check is None:
        _list()
        return
    click.echo(_drawn(_page(check)))


def _page(check: str) -> str:
    """The text of the page. Raises UsageError with the nearest id or name."""
    from kvprobe.rules import all_rules

    rules = all_rules()
    wanted = check.strip().upper().removesuffix(".MD")
    by_name = {rule.name: rule.id for rule in rules}
    wanted = by_name.get(check.strip().lower(), wanted)
    path = docs_dir() / f"{wanted}.md"
    if re.fullmatch(r"KVP\d{3}", wanted) and path.is_file():
        return path.read_text(encoding="utf-8")
    known = {rule.id: rule for rule in rules}
    if wanted in known:
        return f"# {wanted} {known[wanted].name}\n\n{known[wanted].claim}\n"
    hint = did_you_mean(wanted, known) or did_you_mean(check.lower(), by_name)
    raise UsageError(f"There is no check {check!r}.", f"{hint} `kvprobe explain` lists them all.".strip())


def _list() -> None:
    from kvprobe.rules import all_rules

    for rule in all_rules():
        claim = rule.claim.removeprefix(f"{rule.id}: ").rstrip(".")
        click.echo(f"{rule.id}  {rule.name:<28}  {claim}")


def _drawn(page: str) -> str:
    """Markdown drawn for a terminal; as it is into a pipe or a file."""
    if not (sys.stdout and sys.stdout.isatty()):
        return page.rstrip()
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=min(100, Console().width))
    console.print(Markdown(page))
    return out.getvalue().rstrip()
