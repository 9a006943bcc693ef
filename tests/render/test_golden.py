"""What each format prints of three reports, word for word. scripts/update-golden writes these files anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from kvprobe.finding import Quantity, Status
from kvprobe.render import EXTENSIONS, RENDERERS, Look, renderer
from kvprobe.report import Report, decode, json_schema
from tests.reports import finding, report

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
# pygal's drawing may move a pixel between versions: the page is tested by its parts in test_html.py.
FORMATS = [name for name in RENDERERS if name != "html"]
REPORTS = {
    "go": report(
        finding(
            Status.PASS,
            title="NIXL READ of 8,192 tokens as vLLM stores them: 50.5 ms",
            measured=Quantity(value=0.0505, unit="s", statistic="median", samples=7),
            notes=(),
            remedy=None,
        ),
        finding(Status.WARN, id="KVP207", name="read-against-write", title="READ takes 2.4 times as long as WRITE", where=None),
    ),
    "no-go": report(finding(), finding(Status.SKIP, id="KVP206", name="gpu-idle", title="not asked", measured=None)),
    "unknown": report(
        finding(Status.UNKNOWN, title="GPU0 is 97 % utilised", measured=Quantity(value=None, unit="s")),
        result={},
        required=("KVP203", "KVP204"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str, form: str) -> None:
    text = renderer(form)(REPORTS[name], Look(width=100))
    suffix = EXTENSIONS[form] if form in ("json", "junit", "prom", "markdown") else f"{form}.txt"
    file = GOLDEN / f"{name}.{suffix}"
    if os.environ.get("KVPROBE_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "scripts/update-golden writes it anew; look at the diff"


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda p: p.name)
def test_golden_reports_validate_and_read_back(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.validate(document, json_schema())
    assert isinstance(decode(file.read_bytes(), file.name), Report)
