"""What the table shows of each command's ``result``: one module a command with ``blocks(report, look)``."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.report import Report


@dataclass(frozen=True)
class Block:
    """A titled part of the screen, drawn above the findings unless ``below``."""

    title: str
    body: tuple[RenderableType, ...]
    below: bool = False


def sentences(*lines: Text) -> Table:
    """Lines of prose, broken at words: the console itself leaves long lines to the terminal."""
    table = Table(box=None, padding=0, show_header=False, pad_edge=False)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(line)
    return table


def labelled(*rows: tuple[str, str], style: str = "") -> Table:
    """``label  text`` lines; a long text goes on under itself."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, min_width=8)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label, style=style), Text(text, style=style))
    return table


def blocks(report: Report, look: Look) -> list[Block]:
    """The blocks of the report's command; none if the command has no screen of its own or nothing to show."""
    name = f"kvprobe.render.screens.{report.run.command.replace('-', '_')}"
    if not report.result or importlib.util.find_spec(name) is None:
        return []
    try:
        found: list[Block] = importlib.import_module(name).blocks(report, look)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        # A stored report of another version, or edited by hand: its findings and verdict still hold.
        told = f"this kvprobe cannot draw the result of this report ({type(error).__name__}: {error})"
        return [Block("result", (Text(told, style="magenta"),))]
    return found
