"""Screens of preflight, transfer and tune at 80 columns: what a result holds is shown, what it lacks is not invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.finding import Status
from kvprobe.render import Look, renderer
from tests.reports import finding, report, result, rung

BASE = {
    "name": "blocks of 16 (now), READ as now", "block_size": 16, "descriptors": 14336, "seconds": 0.052, "whole_seconds": 0.052,
    "tax_p50_seconds": 0.109, "speedup": 1.0, "samples": 15, "transport": "cuda_ipc, zero-copy", "available": True, "why_not": None,
}  # fmt: skip
BEST = {**BASE, "name": "blocks of 128, READ as now", "seconds": 0.008, "whole_seconds": 0.008, "tax_p50_seconds": 0.065, "speedup": 6.5,
        "settings": ["--block-size 128", "prefill: --kv-transfer-config '" + "x" * 90 + "'"], "costs": ["larger blocks " * 12], "is_baseline": False}  # fmt: skip


def screen(command: str, shown: dict[str, Any], width: int = 80, **look: Any) -> str:
    return renderer("table")(report(finding(Status.PASS), command=command, result=shown), Look(width=width, **look))  # fmt: skip


def tuned(**more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 8192, "baseline": BASE, "candidates": [BEST, BASE], "winner": BEST, **more}


def test_tune_keeps_what_is_copied_on_one_line_and_wraps_prose() -> None:
    text = screen("tune", tuned())
    assert "set       --block-size 128\n" in text and "x" * 90 in text
    long = [line for line in text.splitlines() if len(line) > 80]
    assert [line[:3] for line in long] == ["set"]
    assert "52.0 ms -> 8.00 ms (6.50 times as fast, median of 15)" in text and "109 ms -> 65.0 ms" in text


def test_tune_marks_what_cannot_be_chosen() -> None:
    barred = {**BASE, "name": "blocks of 16, fp8 KV", "available": False, "why_not": "changes numerics"}
    text = screen("tune", tuned(candidates=[BEST, BASE, barred]), 100)
    assert "blocks of 16, fp8 KV *" in text and "* blocks of 16, fp8 KV: changes numerics" in text


def test_tune_shows_a_dozen_and_all_with_verbose() -> None:
    many = tuned(candidates=[{**BASE, "name": f"way {n:02}"} for n in range(20)])
    assert "8 more with -v" in screen("tune", many) and "way 15" not in screen("tune", many)
    assert "way 19" in screen("tune", many, verbose=True)


@pytest.mark.parametrize("change", [{"winner": None}, {"winner": {**BASE, "is_baseline": True}}])
def test_tune_without_a_gain_has_no_before_and_after(change: dict[str, Any]) -> None:
    assert "before and after" not in screen("tune", tuned(**change))
    assert "ranked by" not in screen("tune", {"prompt_tokens": 8192, "candidates": []})


def test_preflight_shows_an_unmeasured_rung_with_its_reason_and_no_bar() -> None:
    shown = result()
    shown["ladder"][3] = rung(3, "NIXL contiguous", None, None, status="unknown", note="not measured")
    row = next(line for line in screen("preflight", shown).splitlines() if line.startswith("3 NIXL"))
    assert "unknown" in row and "not measured" in row and "█" not in row and " 0" not in row


def test_preflight_names_the_largest_loss_and_its_transport() -> None:
    text = screen("preflight", result(), 100)
    assert "largest loss: rung 4 over rung 3, 48.8 ms (descriptor cost" in text
    assert "+48.8 ms  cuda_ipc; median of 7" in text


def test_preflight_of_host_memory_says_that_it_is_no_gpu_figure() -> None:
    assert "not a GPU figure" in screen("preflight", {**result(), "memory": "dram"})
    assert "not a GPU figure" not in screen("preflight", result())


def test_preflight_of_all_pairs_has_a_line_each() -> None:
    pair = {key: result()[key] for key in ("ladder", "transport")}
    unknown = {"ladder": [], "transport": None, "subject": "GPU1 -> GPU0"}
    text = screen("preflight", {**result(), "pairs": [{**pair, "subject": "GPU0 -> GPU1"}, unknown]}, 100)
    row = next(line for line in text.splitlines() if line.lstrip().startswith("GPU1 -> GPU0"))
    assert row.count("not measured") == 3 and "unknown" in row


def test_preflight_without_a_ladder_still_draws() -> None:
    text = screen("preflight", {"kv": None, "memory": None, "judged": {}})
    assert "ladder" not in text and "TTFT tax" not in text and text.splitlines()[-1].startswith("GO")


def test_transfer_shows_series_transport_and_levels() -> None:
    row = {**result()["transfers"][0], "id": "read-shuffled-8192"}
    empty = {
        **row,
        "id": "write-shuffled-8192",
        "op": "WRITE",
        "seconds": [],
        "median_seconds": None,
        "transport": None,
    }
    level = {"in_flight": 2, "seconds": 0.1, "bandwidth_bytes_per_second": 9e9, "fairness": 0.5, "samples": 7}
    text = screen("transfer", {"transfers": [row, empty], "concurrency": [level]})
    assert "READ over cuda_ipc; WRITE over unknown transport" in text and "not measured" in text
    assert "14,336" in text and "0.50" in text and "transfers in flight" in text


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    "call",
    [
        ("logs", "samples/logs/h200-nvlink-decode.log.gz"),
        ("lint", "samples/launch"),
        ("template", "samples/templates/thinking-dropped.jinja"),
        ("kvsize", "--model", "Qwen/Qwen2.5-7B-Instruct", "--explain"),
        ("connectors", "--measure", "off"),
    ],
    ids=lambda call: call[0],
)
def test_prose_breaks_at_words_within_the_screen(
    call: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("COLUMNS", str(width))
    main([*call, "--progress", "off"])
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > width] == []
    if call[0] == "logs":  # it was cut at the edge
        assert "3.3 to 9 us were measured" in " ".join(shown.split())
