"""What the table shows of each command's ``result``: one module a command with ``blocks(report, look)``."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from kvprobe.render import Look
from kvprobe.report import Report


@dataclass(frozen=True)
class Block:
    """A titled part of the screen, drawn above the findings unless ``below``."""

    title: str
    body: tuple[RenderableType, ...]
    below: bool = False


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
