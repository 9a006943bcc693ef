"""``--format table``: for people. Linkerd's layout: category, one line per check, remedy under a problem, verdict last."""

from __future__ import annotations

import io
import re
import textwrap
from itertools import groupby
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvprobe.finding import Finding, Status, VerdictStatus
from kvprobe.policy import waiver_note
from kvprobe.render import Look
from kvprobe.render.screens import Block, blocks
from kvprobe.render.words import CATEGORIES as CATEGORIES
from kvprobe.render.words import describe_expected as describe_expected
from kvprobe.render.words import describe_quantity as describe_quantity
from kvprobe.report import Report

_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_SYMBOL = {Status.PASS: "√", Status.WARN: "‼", Status.FAIL: "×", Status.UNKNOWN: "?", Status.SKIP: "-"}
_WORD = {
    Status.PASS: "ok",
    Status.WARN: "warn",
    Status.FAIL: "FAIL",
    Status.UNKNOWN: "unknown",
    Status.SKIP: "skip",
}
_STYLE = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "red",
    Status.UNKNOWN: "magenta",
    Status.SKIP: "dim",
}
_VERDICT = {VerdictStatus.GO: "GO", VerdictStatus.NO_GO: "NO-GO", VerdictStatus.UNKNOWN: "UNKNOWN"}
_VERDICT_STYLE = {
    VerdictStatus.GO: "bold green",
    VerdictStatus.NO_GO: "bold red",
    VerdictStatus.UNKNOWN: "bold magenta",
}
_COUNTED = {Status.FAIL: "failed", Status.UNKNOWN: "unknown", Status.WARN: "warnings", Status.PASS: "passed", Status.SKIP: "skipped"}  # fmt: skip


def render(report: Report, look: Look) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(40, look.width),
        force_terminal=look.color,
        no_color=not look.color,
        color_system="standard" if look.color else None,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=True,
        legacy_windows=False,
    )
    if not look.quiet:
        _draw(console, report, look)
    console.print(verdict_line(report, look))
    text = (_UNSAFE if look.color else _UNSAFE_OR_COLOR).sub("", out.getvalue())
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    if not look.unicode:
        text = text.translate(_ASCII).encode("ascii", "replace").decode()
    return text


# Text from logs, templates and other tools must not move the reader's cursor or retitle the terminal.
_UNSAFE_OR_COLOR = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSAFE = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")
_ASCII = str.maketrans({
    "√": "+", "‼": "!", "×": "x", "→": ">", "←": "<", "·": "-", "…": "~", "–": "-", "—": "-", "µ": "u",
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "#", "▎": "#", "▏": "#", "─": "-", "│": "|",
    "━": "=", "╸": "=", "≥": ">", "≤": "<", "≈": "~",
})  # fmt: skip


def _draw(console: Console, report: Report, look: Look) -> None:
    for line in textwrap.wrap(_headline(report), console.width, **_WHOLE_WORDS):
        console.print(Text(line, style="bold"))
    if report.run.replayed_from:
        told = f"replayed from {report.run.replayed_from}, recorded {report.run.started_at}"
        for line in textwrap.wrap(told, console.width, **_WHOLE_WORDS):
            console.print(Text(line, style="dim"))
    drawn = blocks(report, look)
    for block in (b for b in drawn if not b.below):
        _block(console, block)
    for key, group in groupby(sorted(report.findings, key=lambda f: f.id), key=lambda f: f.id[3:4]):
        _title(console, CATEGORIES.get(key, "other"))
        for finding in group:
            _finding(console, finding, look)
    for block in (b for b in drawn if b.below):
        _block(console, block)
    console.print()
    for reason in _unsaid(report):
        console.print(Text(reason, style=_VERDICT_STYLE[report.verdict.status]))


def _unsaid(report: Report) -> list[str]:
    """Reasons of the verdict that stand in no finding: a required check that did not run, a stale result."""
    said = {f"{f.id} {f.title}" for f in report.findings}
    found = [reason for reason in report.verdict.reasons if reason not in said]
    failed = any(f.status is Status.FAIL for f in report.findings)
    if report.verdict.status is VerdictStatus.NO_GO and not failed:
        found.append("a warning is a NO-GO here (--fail-on warn)")
    return found


def _headline(report: Report) -> str:
    parts = [f"kvprobe {report.tool.version}", report.run.command]
    subject = report.subject
    parts += [str(subject[key]) for key in ("model", "headline") if subject.get(key)]
    return "  ".join(parts)


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Text("-" * len(title), style="dim"))


def _block(console: Console, block: Block) -> None:
    _title(console, block.title)
    for item in block.body:
        before = console.width
        console.width = max(before, _needed(item))
        console.print(item)
        console.width = before


def _needed(item: RenderableType) -> int:
    """Columns that a table takes without cutting a figure: a line that runs over the edge is better than an ellipsis."""
    if not isinstance(item, Table):
        return 0
    total = 0
    for column in item.columns:
        cells = [Text.from_markup(c) if isinstance(c, str) else c for c in (column.header, *column.cells)]
        lengths = [cell.cell_len for cell in cells if isinstance(cell, Text)]
        fixed = column.no_wrap or column.justify == "right"
        total += (max(lengths, default=0) if fixed else 12) + sum(item.padding[1::2])
    return total


def _finding(console: Console, finding: Finding, look: Look) -> None:
    status = finding.status
    mark = _SYMBOL[status] if look.color and look.unicode else f"{_SYMBOL[status]} {_WORD[status]:<7}"
    line = Text(mark, style=_STYLE[status])
    line.append(f" {finding.id}  ", style="dim")
    # A long title goes on below itself; the terminal would break it inside a word.
    first, *more = textwrap.wrap(finding.title, max(30, console.width - len(line)), **_WHOLE_WORDS) or [""]
    style = "dim" if status is Status.SKIP else ""
    indent = " " * len(line)
    console.print(line.append(first, style=style))
    for rest in more:
        console.print(Text(indent + rest, style=style))
    if status is Status.PASS and not look.verbose:
        if waived := waiver_note(finding):
            for line in _indented("waived", waived, console.width):
                console.print(line)
        return
    for label, text in _details(finding, look):
        for row in _indented(label, text, console.width):
            console.print(row)


def _details(finding: Finding, look: Look) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if finding.where:
        rows.append(("where", finding.where))
    if finding.measured:
        rows.append(("measured", describe_quantity(finding.measured)))
    if finding.expected:
        rows.append(("expected", describe_expected(finding.expected)))
    if finding.status is not Status.SKIP or look.verbose:
        rows += [("note", note) for note in finding.notes]
    if finding.remedy:
        rows.append(("fix", finding.remedy.text))
        rows += [("", f"$ {command}") for command in finding.remedy.commands]
    if finding.status in (Status.WARN, Status.FAIL, Status.UNKNOWN):
        rows.append(("why", f"kvprobe explain {finding.id}"))
    if look.verbose:
        rows += [("see", link) for link in finding.links]
        if finding.evidence:
            rows.append(("evidence", ", ".join(finding.evidence)))
    return rows


def _indented(label: str, text: str, width: int) -> list[Text]:
    """Prose wraps under itself; a command stays on one line, so that it can be copied."""
    room = max(30, width - 13)
    rows = [text] if text.startswith("$ ") else textwrap.wrap(text, room, **_WHOLE_WORDS)
    return [
        Text.assemble("    ", (f"{label if index == 0 else '':<9}", "dim"), row)
        for index, row in enumerate(rows or [""])
    ]


def verdict_line(report: Report, look: Look) -> Text:
    counts = {s: sum(f.status is s for f in report.findings) for s in _COUNTED}
    told = ", ".join(
        f"{n} {_COUNTED[s] if n != 1 or s is not Status.WARN else 'warning'}" for s, n in counts.items() if n
    )
    waived = sum(waiver_note(f) is not None for f in report.findings)
    told += f", {waived} of them waived" if waived else ""
    line = Text(_VERDICT[report.verdict.status], style=_VERDICT_STYLE[report.verdict.status])
    if told:
        line.append(f"  {told}")
    if report.run.duration_seconds is not None:
        line.append(f"  ({report.run.duration_seconds:.1f} s)", style="dim")
    if look.quiet and report.verdict.reasons:
        line.append(f"  {escape(report.verdict.reasons[0])}")
    return line
