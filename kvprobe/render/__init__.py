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
    "line": "kvprobe.render.line:render",
    "junit": "kvprobe.render.junit:render",
    "prom": "kvprobe.render.prometheus:render",
    "nagios": "kvprobe.render.nagios:render",
    "github": "kvprobe.render.github:render",
    "markdown": "kvprobe.render.markdown:render",
    "html": "kvprobe.render.html:render",
}

EXTENSIONS = {
    "table": "txt", "json": "json", "line": "txt", "junit": "xml", "prom": "prom",
    "nagios": "txt", "github": "txt", "markdown": "md", "html": "html",
}  # fmt: skip
"""How a file of each format is named when only its directory is given."""


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
