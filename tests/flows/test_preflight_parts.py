"""preflight's parts above the ladder: the tax from measured and from fitted transfers, rungs 5 and 6, topology beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.evidence import Origin
from kvprobe.finding import Status
from kvprobe.flows import Draft
from kvprobe.flows.preflight import preflight
from tests.canned_nixl import CannedNixl, door

QWEN = {"model": "Qwen/Qwen2.5-7B-Instruct", "ucx": False}


def interval(ms: float, mib: float) -> str:
    """A line of vLLM's decode engine: 4 transfers of ``mib`` MiB."""
    return (
        "(EngineCore pid=1) INFO 11-29 18:00:00 [metrics.py:103] KV Transfer metrics: Num successful transfers=4, "
        f"Avg xfer time (ms)={ms}, P90 xfer time (ms)={ms}, Avg post time (ms)=1.0, P90 post time (ms)=1.0, "
        f"Avg MB per transfer={mib}, Throughput (MB/s)={mib / ms * 1000:.3f}, Avg number of descriptors=14336.0"
    )


def fast(setup: str, step: str) -> float:
    """Over cuda_ipc on 2x H200: 3.5 us a descriptor."""
    return int(step.rpartition("-")[2]) * 28 / 16 * 3.5e-6 + 1e-4


def run(**params: Any) -> Draft:
    return preflight(door(CannedNixl(fast)), {**QWEN, **params})


def test_measured_lengths_carry_their_samples_and_others_the_fit() -> None:
    rows = {r["prompt_tokens"]: r for r in run(prompt_tokens=(100000,)).result["tax"]}
    assert rows[8192]["transfer_origin"] == "measured" and "median of 3" in rows[8192]["transfer_source"]
    assert rows[8192]["transfer_seconds"] == pytest.approx(fast("", "x-8192"))
    assert rows[100000]["transfer_origin"] == "measured", "5.5 GiB fit into the 8 GiB allowed"
    left = {r["prompt_tokens"]: r for r in run(max_memory=700 * 2**20).result["tax"]}
    assert left[32768]["transfer_origin"] == Origin.ASSUMED.value and "extrapolated" in left[32768]["transfer_source"]  # fmt: skip
    assert left[32768]["transfer_seconds"] == pytest.approx(fast("", "x-32768"), rel=0.1)


def test_max_memory_bounds_what_is_registered() -> None:
    draft = run(max_memory=200 * 2**20)
    assert {t["prompt_tokens"] for t in draft.result["transfers"]} == {512, 2048}
    told = {f.id: f for f in draft.findings}["KVP203"]
    assert told.status is Status.UNKNOWN and "200 MiB are allowed" in told.title


def log(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "decode.log"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def rung5(draft: Draft) -> dict[str, Any]:
    return next(dict(row) for row in draft.result["ladder"] if row["rung"] == 5)


def test_rung_5_from_intervals_of_the_judged_size(tmp_path: Path) -> None:
    path = log(tmp_path, interval(56.0, 448.0), "other text", interval(900.0, 28.0), interval(64.0, 450.0))  # fmt: skip
    row = rung5(run(decode_log=path))
    assert (
        row["status"] == "measured" and row["seconds"] == pytest.approx(0.060) and row["statistic"] == "mean"
    )
    assert "8 transfers in 2 intervals" in row["note"] and row["loss_below_rung"] == 4


@pytest.mark.parametrize(
    ("lines", "says"),
    [(["nothing here"], "it has no transfer line"), ([interval(9.0, 28.0)], "average 28 MiB, none about 448 MiB")],
)  # fmt: skip
def test_rung_5_is_unknown_without_such_transfers(lines: list[str], says: str, tmp_path: Path) -> None:
    row = rung5(run(decode_log=log(tmp_path, *lines)))
    assert row["status"] == "unknown" and row["seconds"] is None and says in row["note"]


def test_servers_that_do_not_answer_take_nothing_away() -> None:
    draft = run(prefill_url="http://127.0.0.1:9", decode_url="http://127.0.0.1:9")
    assert draft.result["ladder"][4]["status"] == "measured"
    assert [f for f in draft.findings if f.status is Status.UNKNOWN and "127.0.0.1:9" in f.title]


def test_one_url_is_a_wrong_call_before_anything_is_measured() -> None:
    system = CannedNixl(fast)
    with pytest.raises(UsageError, match="both --prefill-url and --decode-url"):
        preflight(door(system), {**QWEN, "decode_url": "http://127.0.0.1:9"})
    assert system.setups == []


def test_a_refused_p2p_is_a_warning_where_the_transfer_was_measured() -> None:
    system = CannedNixl(fast)
    for pair in system.nvml[0]["result"]["pairs"]:
        pair["p2p"] |= {"r": 5, "w": 5}
    draft = preflight(door(system), QWEN)
    told = {f.id: f for f in draft.findings}["KVP101"]
    assert told.status is Status.WARN and "the measured transfer decides (KVP203)" in told.notes


def test_advice_only_for_a_stated_case() -> None:
    assert run().result.get("advice") is None
    assert run(itl_slo=0.05, itl_p99=0.2).result["advice"] is not None
