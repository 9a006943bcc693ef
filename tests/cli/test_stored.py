"""last, report, judge, baseline: what was measured before, told again."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import msgspec
import pytest

from kvprobe.cli import main
from kvprobe.finding import Expected, Quantity, Status
from kvprobe.report import Report, encode
from kvprobe.store import Store, state_dir
from tests.reports import finding, report


def keep(document: Report, *, age_seconds: float = 60.0) -> None:
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_seconds)
    run = msgspec.structs.replace(document.run, started_at=started.isoformat(timespec="seconds"))
    Store(state_dir()).keep(msgspec.structs.replace(document, run=run))


def stored(tmp_path: Path, document: Report) -> str:
    file = tmp_path / "report.json"
    file.write_bytes(encode(document))
    return str(file)


def test_last_answers_with_the_stored_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    keep(report(finding(Status.PASS)))
    assert main(["last", "--max-age", "2h", "--format", "line"]) == 0
    assert capsys.readouterr().out == "GO preflight Qwen/Qwen2.5-7B-Instruct\n"
    keep(report(finding()))
    assert main(["last", "--max-age", "2h"]) == 1
    assert main(["last", "--max-age", "2h", "--format", "nagios"]) == 2


def test_a_stale_go_is_unknown_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    keep(report(finding(Status.PASS)), age_seconds=3 * 3600)
    assert main(["last", "--max-age", "2h", "--format", "line"]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN stale: the stored result is 180 min old")
    assert main(["last", "--max-age", "4h"]) == 0
    assert main(["last"]) == 0
    assert main(["last", "--max-age", "2h", "--format", "nagios"]) == 3


def test_a_result_from_the_future_or_without_a_time_is_unknown() -> None:
    keep(report(finding(Status.PASS)), age_seconds=-7200)
    assert main(["last", "--max-age", "2h"]) == 3
    document = report(finding(Status.PASS))
    run = msgspec.structs.replace(document.run, started_at=None)
    Store(state_dir()).keep(msgspec.structs.replace(document, run=run))
    assert main(["last", "--max-age", "2h"]) == 3


def test_an_empty_store_is_unknown_with_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["last", "-f", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["status"] == "unknown" and "No run of" in document["error"]["reason"]


def test_last_reads_the_asked_directory(tmp_path: Path) -> None:
    Store(tmp_path).keep(report(finding(), command="topo"))
    assert main(["last", "topo", "--state-dir", str(tmp_path)]) == 1
    assert main(["last", "topo"]) == 3


@pytest.mark.parametrize("status", Status)
def test_report_exits_as_the_run_did(tmp_path: Path, status: Status) -> None:
    document = report(finding(status))
    assert main(["report", stored(tmp_path, document), "-f", "markdown"]) == document.verdict.exit_code


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 100,
        b"[" * 100_000,
        b'{"schema": "kvprobe.report/v2"}',
        b'{"verdict": NaN}',
        b"[]",
        b'"x"',
    ],
)
def test_hostile_reports_are_a_sentence_and_a_document(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    for command in ("report", "judge"):
        assert main([command, str(file), "-f", "json"]) == 3
        out = capsys.readouterr()
        assert "bad.json" in json.loads(out.out)["error"]["reason"]
        assert "Traceback" not in out.err


def test_a_directory_or_an_absent_file_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 3
    capsys.readouterr()
    assert main(["report", str(tmp_path / "absent.json"), "-f", "nagios"]) == 3
    assert "absent.json cannot be read" in capsys.readouterr().out


def test_judge_holds_the_figure_against_another_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "policy default: transfer_8k_seconds (vLLM P/D guide)"
    measured = finding(
        Status.PASS,
        measured=Quantity(value=0.05, unit="s"),
        expected=Expected(source=source, max=0.075, unit="s"),
    )
    file = stored(tmp_path, report(measured))
    policy = tmp_path / "tight.toml"
    policy.write_text(
        'name = "tight"\n[thresholds.transfer_8k_seconds]\nwarn_above = 0.01\nfail_above = 0.02\n'
    )
    assert main(["judge", file]) == 0
    assert main(["judge", file, "--policy", str(policy), "-f", "json"]) == 1
    out = capsys.readouterr()
    document = json.loads(out.out[out.out.index("{") :])
    assert document["policy"]["name"] == "tight" and document["findings"][0]["status"] == "fail"
    assert "1 of 1 findings name a threshold" in out.err
    policy.write_text('name = "more"\nrequired = ["KVP203", "KVP204"]\n')
    assert main(["judge", file, "--policy", str(policy)]) == 3
    assert main(["judge", file, "--policy", str(policy), "--unknown-is", "go"]) == 0


def test_an_expired_waiver_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "old.toml"
    policy.write_text(
        'name = "old"\n[[waivers]]\ncheck = "KVP203"\nreason = "new cable"\nuntil = 2020-01-01\n'
    )
    file = stored(tmp_path, report(finding(Status.PASS, measured=None)))
    assert main(["judge", file, "--policy", str(policy)]) == 0
    assert "KVP920" in capsys.readouterr().out
    assert main(["judge", file, "--policy", str(policy), "--fail-on", "warn"]) == 1


def test_a_baseline_must_be_go_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = stored(tmp_path, report(finding()))
    assert main(["baseline", "set", bad]) == 2
    assert main(["baseline", "set", bad, "--force"]) == 0
    assert "figures with samples" in capsys.readouterr().out
    assert main(["baseline", "show"]) == 1
    assert main(["baseline", "forget"]) == 0
    assert main(["baseline", "show", "-f", "json"]) == 3
    assert main(["baseline", "set"]) == 2  # nothing was measured yet
