"""`kvprobe lint` as a user calls it: exit codes, documents, terminal, recording."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvprobe.cli import main

CASES = Path(__file__).parent.parent / "cases" / "config"
SAMPLES = Path(__file__).parent.parent.parent / "samples" / "launch"
BAD = CASES / "C13-block-size-prefill-larger"
GOOD = CASES / "C36-mooncake-fine"
HOSTS = ["--host", "prefill=node-a", "--host", "decode=node-a"]


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["lint", *args, "--progress", "off"])
    out, err = capsys.readouterr()
    return int(code), out, err


def files(case: Path) -> list[str]:
    return [str(case / "prefill.sh"), str(case / "decode.sh")]


def test_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call(capsys, *files(GOOD), *HOSTS)[0] == 0
    assert call(capsys, *files(BAD), *HOSTS)[0] == 1
    lease = files(CASES / "C17-lease-too-short")
    assert call(capsys, *lease, *HOSTS)[0] == 0
    assert call(capsys, *lease, *HOSTS, "--fail-on", "warn")[0] == 1
    assert call(capsys)[0] == 2
    (tmp_path / "x.sh").write_bytes(bytes(range(256)) * 50)
    code, out, err = call(capsys, str(tmp_path / "x.sh"))
    assert code == 3 and "is not text" in out and "Traceback" not in out + err


def test_the_table_shows_what_was_read_and_ends_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, *files(BAD), *HOSTS)
    lines = out.strip().splitlines()
    assert lines[-1].startswith("NO-GO")
    assert any("prefill" in line and "5600" in line and "node-a" in line for line in lines)
    assert any("KVP515" in line and "64" in line and "16" in line for line in lines)
    assert "explain KVP515" in out and "will fail at handshake" in out


def test_ascii_terminals_get_ascii(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvprobe.finding import Verdict, VerdictStatus
    from kvprobe.render import Look
    from kvprobe.render.screens.lint import blocks
    from kvprobe.report import Report, Run

    report = Report(
        run=Run(command="lint"), verdict=Verdict(status=VerdictStatus.GO, exit_code=0),
        result={"verdict": "ok", "vllm_version": "0.33.0", "instances": [{
            "role": None, "where": "a.sh line 1", "host": None, "connector": None, "kv_role": None,
            "tensor_parallel_size": None, "data_parallel_size": 1, "http_port": None, "side_channel_ports": None, "devices": None,
        }]},
    )  # fmt: skip
    assert [b.title for b in blocks(report, Look(width=80, unicode=False))] == [
        "instances, as read",
        "what this leads to",
    ]


def test_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *files(BAD), *HOSTS, "--format", "json")
    report = json.loads(out)
    assert report["verdict"]["exit_code"] == code == 1
    result = report["result"]
    assert result["verdict"] == "will_fail_at_handshake"
    (finding,) = result["findings"]
    assert (finding["code"], finding["severity"], finding["id"]) == ("block_size_mismatch", "error", "KVP515")
    assert report["evidence"][0]["origin"] == "read"


def test_a_recorded_run_is_judged_again_without_the_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(CASES / "C22-ucx-tls-pin-excludes-rdma", work)
    recording = str(tmp_path / "recording")
    first = call(capsys, *files(work), "--format", "json", "--record", recording)
    shutil.rmtree(work)
    again = call(capsys, "--format", "json", "--replay", recording)
    assert json.loads(first[1])["result"]["findings"] == json.loads(again[1])["result"]["findings"] != []
    assert json.loads(again[1])["run"]["replayed_from"] == recording


@pytest.mark.parametrize(("name", "verdict"), [("xpyd.sh", "ok_with_notes"), ("compose.yaml", "silently_slow"), ("kubernetes.yaml", "will_fail_at_handshake")])  # fmt: skip
def test_samples(capsys: pytest.CaptureFixture[str], name: str, verdict: str) -> None:
    _, out, _ = call(capsys, str(SAMPLES / name), "--format", "json")
    assert json.loads(out)["result"]["verdict"] == verdict
