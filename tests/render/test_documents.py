"""GitHub annotations, Markdown and the table: text from tools must not break out of its place."""

from __future__ import annotations

import datetime
import re

from kvprobe.cli.settings import load_profile
from kvprobe.evidence import Evidence, Origin
from kvprobe.finding import Remedy, Status, judge
from kvprobe.policy import apply_waivers, overlay
from kvprobe.render import Look, renderer
from tests.reports import finding, report

HOSTILE = "a\n::error::b | <script>alert(1)</script> **c** @org/team \x1b]0;title\x07 %25"


def text(form: str, *findings: object, **look: object) -> str:
    return renderer(form)(report(*findings), Look(**look))  # type: ignore[arg-type]


def test_github_has_one_command_a_problem_and_none_smuggled_in() -> None:
    lines = text(
        "github", finding(title=HOSTILE), finding(Status.WARN, id="KVP208"), finding(Status.PASS, id="KVP201")
    ).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::error"]
    assert "%0A::error::b" in lines[0]
    assert "%2525" in lines[0]


def test_markdown_keeps_its_table_and_says_what_is_not_proven() -> None:
    page = text("markdown", finding(title=HOSTILE), finding(Status.SKIP, id="KVP205", title="not asked"))
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 3  # head and two findings
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "<script>" not in page and "@org" not in page and "\x1b" not in page
    assert "**What this run does not prove**" in page
    assert "- Skipped: KVP205." in page


def test_a_fence_in_a_command_does_not_close_the_block() -> None:
    page = text("markdown", finding(remedy=Remedy(text="x", commands=("echo ```",))))
    assert "````sh\necho ```\n````" in page


def test_assumptions_are_named() -> None:
    assumed = Evidence(id="tax", kind="tax", origin=Origin.ASSUMED, source="vLLM 0.30 constants", facts={})
    page = renderer("markdown")(report(finding(), evidence=(assumed,)), Look())
    assert "Assumed, not measured: vLLM 0.30 constants." in page


def test_the_table_moves_no_cursor_and_leaves_no_blanks_at_line_ends() -> None:
    page = text("table", finding(title=HOSTILE, notes=("x\x1b[2Jy",)))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page)
    assert not re.search(r" +$", page, re.MULTILINE)
    colored = text("table", finding(title=HOSTILE), color=True)
    assert "\x1b[" in colored and not re.search(r"\x1b(?!\[[0-9;]*m)", colored)


def test_a_command_is_never_wrapped() -> None:
    command = "vllm serve Qwen/Qwen2.5-7B-Instruct --kv-transfer-config '" + "x" * 200 + "'"
    page = text("table", finding(remedy=Remedy(text="word " * 40, commands=(command,))), width=80)
    assert f"$ {command}\n" in page
    prose = [line for line in page.splitlines() if "word" in line]
    assert len(prose) > 1 and max(map(len, prose)) <= 80


def test_a_result_of_another_version_still_shows_findings_and_verdict() -> None:
    page = renderer("table")(report(finding(), result={"ladder": [{"rung": "x"}], "tax": 3}), Look())
    assert "cannot draw the result" in page and "KVP203" in page and "NO-GO" in page


def test_ascii_only_where_utf8_is_not_available() -> None:
    page = text("table", finding(), finding(Status.WARN, id="KVP208"), unicode=False)
    assert page.isascii() and "x FAIL" in page and "! warn" in page


def test_the_table_says_why_where_no_finding_does() -> None:
    page = renderer("table")(report(finding(Status.PASS), required=("KVP204",)), Look())
    assert page.splitlines()[-2:] == [
        "KVP204 is required by the policy and did not run",
        "UNKNOWN  1 passed  (11.9 s)",
    ]
    warned = finding(Status.WARN)
    page = renderer("table")(report(warned, verdict=judge((warned,), fail_on="warn")), Look())
    assert page.splitlines()[-2] == "a warning is a NO-GO here (--fail-on warn)"


def test_a_waiver_is_seen_in_every_document_for_people() -> None:
    policy = overlay(
        load_profile("default"),
        {"waivers": [{"check": "KVP203", "reason": "new cable", "until": datetime.date(2030, 1, 1)}]},
        "our.toml",
    )
    (excused,) = apply_waivers((finding(),), policy, datetime.date(2029, 1, 1))
    document = report(excused)
    for form in ("table", "markdown", "html"):
        assert "waived until 2030-01-01 (our.toml): new cable" in renderer(form)(document, Look()), form
    assert renderer("table")(document, Look()).splitlines()[-1] == "GO  1 passed, 1 of them waived  (11.9 s)"
