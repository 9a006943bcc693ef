"""The page in headless Chromium: nothing wider than a phone or a desktop, in both themes, and no error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvprobe.finding import Status
from kvprobe.render import Look
from kvprobe.render.html import render
from tests.reports import finding, report, result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# Chromium's windows are at least 500 px wide: the phone is a frame of 390 px inside one.
FRAME = """<!DOCTYPE html><title></title><iframe id="f" style="width:{width}px;height:900px;border:0"></iframe><script>
const frame = document.getElementById("f");
frame.onload = () => {{
  const page = frame.contentDocument.documentElement;
  const wide = [...frame.contentDocument.querySelectorAll("main *")].filter(
    e => e.getBoundingClientRect().right > {width} + 1 && !e.closest("svg") && !e.closest("pre"));
  const body = getComputedStyle(frame.contentDocument.body);
  document.title = `scroll=${{page.scrollWidth}} wide=${{wide.length}} back=${{body.backgroundColor}} charts=${{frame.contentDocument.querySelectorAll("figure svg").length}}`;
}};
frame.src = "page.html";
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("theme", "back"), [("light", "rgb(246, 247, 249)"), ("dark", "rgb(16, 20, 24)")])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, width: int, theme: str, back: str) -> None:
    long = "x" * 300
    commands = finding(title=f"a title without any blank {long}", where=f"/very/long/{long}")
    document = report(
        commands,
        finding(Status.WARN, id="KVP208"),
        result={**result(), "ttft_slo_seconds": 0.5, "base_ttft_seconds": 0.1},
    )
    (tmp_path / "page.html").write_text(render(document, Look()), encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    scheme = "1" if theme == "light" else "0"
    done = subprocess.run(
        [
            str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--allow-file-access-from-files", "--window-size=1400,1000",
            f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'frame.html'}",
        ],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stderr[-2000:]
    assert found[1] == f"scroll={width} wide=0 back={back} charts=3"
