"""Pure functions of the Report, one module a format, loaded when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from kvprobe.report import Report

RENDERERS = {
    "table": "kvprobe.render.table:render",
    "json": "kvprobe.render.json:render",
}


@dataclass(frozen=True)
class Look:
    """How the text should look; decided by the CLI from options, environment and terminal."""

    verbose: bool = False
    quiet: bool = False
    width: int = 100
    color: bool = False
    unicode: bool = True


Renderer = Callable[[Report, Look], str]


def renderer(name: str) -> Renderer:
    """The renderer of a format in :data:`RENDERERS`."""
    module, function = RENDERERS[name].split(":")
    return cast(Renderer, getattr(importlib.import_module(module), function))
