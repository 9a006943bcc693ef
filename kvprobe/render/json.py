"""``--format json``: the report itself."""

from __future__ import annotations

from kvprobe.render import Look
from kvprobe.report import Report, encode


def render(report: Report, look: Look) -> str:
    return encode(report).decode()
