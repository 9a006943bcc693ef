"""execute(): whatever happens in a flow reaches every output and the store, with the right exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from kvprobe.cli import main
from kvprobe.cli.common import Common, common_options, execute
from kvprobe.errors import ProbeError, UsageError
from kvprobe.finding import Status
from kvprobe.flows import Door, Draft
from kvprobe.render import RENDERERS
from kvprobe.store import Store, state_dir
from tests.reports import finding, result

Flow = Callable[[Door, dict[str, Any]], Draft]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `kvprobe topo` with a flow of this test's own, through the real command line."""

    def call(flow: Flow, *arguments: str) -> int:
        @click.command()
        @click.option("--model")
        @common_options
        def command(ctx: click.Context, common: Common, **params: Any) -> None:
            execute(ctx, common, params, flow)

        monkeypatch.setattr("kvprobe.cli.topo.command", command)
        return main(["topo", *arguments])

    return call


def go(door: Door, params: dict[str, Any]) -> Draft:
    return Draft(subject={"model": "m"}, findings=(finding(Status.PASS),), result=result())


def no_go(door: Door, params: dict[str, Any]) -> Draft:
    return Draft(subject={"model": "m"}, findings=(finding(),), result=result())


def crash(door: Door, params: dict[str, Any]) -> Draft:
    raise ZeroDivisionError("by zero")


def interrupt(door: Door, params: dict[str, Any]) -> Draft:
    raise KeyboardInterrupt


def unreachable(door: Door, params: dict[str, Any]) -> Draft:
    raise ProbeError("The node did not answer.", "Is it up?")


def wrong(door: Door, params: dict[str, Any]) -> Draft:
    raise UsageError("--tp 0 is impossible.")


@pytest.mark.parametrize(
    ("flow", "code", "id_"),
    [(no_go, 1, "KVP203"), (crash, 3, "KVP921"), (interrupt, 130, "KVP922"), (unreachable, 3, "KVP901"), (wrong, 2, None)],
)  # fmt: skip
def test_a_failed_run_overwrites_the_last_go_everywhere(
    run: Callable[..., int], tmp_path: Path, flow: Flow, code: int, id_: str | None
) -> None:
    prom, report = tmp_path / "k.prom", tmp_path / "k.json"
    outputs = ("--write", f"prom={prom}", "-f", "json", "-o", str(report))
    assert run(go, *outputs) == 0
    assert 'verdict="go"} 1.0' in prom.read_text()
    assert run(flow, *outputs) == code
    assert 'verdict="go"} 0.0' in prom.read_text()
    document = json.loads(report.read_text())
    assert document["verdict"]["status"] != "go"
    assert [f["id"] for f in document["findings"]] == ([id_] if id_ else [])
    assert Store(state_dir()).last("topo").verdict.exit_code == document["verdict"]["exit_code"]


def test_a_policy_that_cannot_be_read_overwrites_too(run: Callable[..., int], tmp_path: Path) -> None:
    prom = tmp_path / "k.prom"
    run(go, "--write", f"prom={prom}")
    assert run(go, "--write", f"prom={prom}", "--policy", str(tmp_path / "absent.toml")) == 2
    assert 'verdict="unknown"} 1.0' in prom.read_text()


def test_a_wrong_option_overwrites_too(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prom = tmp_path / "k.prom"
    run(go, "--write", f"prom={prom}")
    assert run(go, "--modle", "x", "--write", f"prom={prom}", "-f", "json") == 2
    assert 'verdict="unknown"} 1.0' in prom.read_text()
    assert (
        json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(["{", ""]))["verdict"]["exit_code"] == 2
    )


def test_nagios_gets_3_and_a_line_for_a_wrong_option(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(go, "--modle", "x", "--format", "nagios") == 3
    assert capsys.readouterr().out.startswith("KVPROBE UNKNOWN - No such option")


@pytest.mark.parametrize("text", [b"a = [", b"\xff\xfe", b"nope = 1"])
def test_a_wrong_configuration_file_overwrites_too(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    config, prom = tmp_path / "c.toml", tmp_path / "k.prom"
    config.write_bytes(text)
    assert run(go, "--quiet", "--write", f"prom={prom}") == 0
    capsys.readouterr()
    call = ("--config", str(config), "--write", f"prom={prom}")
    assert run(go, *call, "--format", "json") == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["verdict"]["exit_code"] == 2
    assert told.err.startswith("kvprobe: ") and str(config) in told.err
    assert 'verdict="go"} 1' not in prom.read_text()
    assert run(go, *call, "--format", "nagios") == 3
    assert capsys.readouterr().out.startswith("KVPROBE UNKNOWN")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("form", ["table", "json", "line"])
def test_a_full_disk_behind_stdout_is_told_in_a_sentence(form: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = program("topo", "--file", os.devnull, "--progress", "off", "--format", form, stdout=full)
    assert done.returncode == 3
    assert "could not be written to stdout: No space left on device" in done.stderr
    assert "internal error" not in done.stderr


def test_a_closed_stdout_leaves_the_exit_code(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "kvprobe", "topo", "--file", os.devnull, "--progress", "off"]
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(call)} >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("form", RENDERERS)
def test_control_characters_of_a_file_name_reach_no_terminal(form: str, tmp_path: Path) -> None:
    log = tmp_path / "d\x1b[2J\x07.log"
    log.write_text("NIXL transfer failure: transfer_failed | Context: {}\n")
    done = program("logs", str(log), "--format", form, stdout=subprocess.PIPE)
    assert done.returncode in (1, 2), done.stderr
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}


def program(*arguments: str, stdout: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvprobe", *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )  # fmt: skip


def test_several_outputs_of_one_run_agree(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        no_go,
        "--write",
        f"junit={tmp_path}/",
        "--write",
        f"html={tmp_path / 'r.html'}",
        "--summary-file",
        str(tmp_path / "log"),
        "-q",
    )
    assert code == 1
    assert 'value="no_go"' in (tmp_path / "kvprobe-topo.xml").read_text()
    assert "NO-GO" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "log").read_text().startswith("NO-GO KVP203")
    assert capsys.readouterr().out.startswith("NO-GO")


@pytest.mark.parametrize("value", ["prom", "prom=", "pdf=x", "=x"])
def test_a_wrong_write_is_a_usage_error_before_anything_runs(run: Callable[..., int], value: str) -> None:
    ran = []
    assert run(lambda door, params: ran.append(1) or go(door, params), "--write", value) == 2  # type: ignore[func-returns-value]
    assert ran == []


def test_an_output_that_cannot_be_written_is_an_error(run: Callable[..., int], tmp_path: Path) -> None:
    assert run(go, "-f", "json", "-o", str(tmp_path / "absent" / "x.json")) == 2


def test_an_output_that_fails_keeps_no_other_from_being_written(
    run: Callable[..., int], tmp_path: Path
) -> None:
    good = tmp_path / "good.prom"
    assert run(go, "--write", f"json={tmp_path}/absent/x.json", "--write", f"prom={good}", "-f", "line") == 2
    assert 'verdict="go"} 1.0' in good.read_text()


def test_a_usage_error_of_parse_writes_is_told_once(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(go, "--write", "pdf=x", "-f", "json") == 2
    told = capsys.readouterr()
    assert told.err.count("--write pdf=x") == 1
    assert json.loads(told.out)["verdict"]["exit_code"] == 2


def test_unknown_is_go_only_when_typed_by_hand(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(unreachable, "--unknown-is", "go", "-f", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["verdict"]["status"] == "unknown"
        and document["verdict"]["reasons"][-1] == "let through by --unknown-is go"
    )
    assert run(no_go, "--unknown-is", "go") == 1
    assert run(wrong, "--unknown-is", "go") == 2
    monkeypatch.setenv("KVPROBE_TOPO_UNKNOWN_IS", "go")
    assert run(unreachable) == 2
    assert "only on the command line" in capsys.readouterr().err


def test_a_crash_shows_its_traceback_only_when_asked(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    run(crash)
    assert "Traceback" not in capsys.readouterr().err
    run(crash, "-v")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_state_directory_that_cannot_be_written_costs_a_line_not_the_run(
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVPROBE_STATE_DIR", str(tmp_path / "file" / "state"))
    assert run(go) == 0
    assert "not kept for `kvprobe last`" in capsys.readouterr().err


def test_a_baseline_from_a_file_and_a_stored_one(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(door: Door, params: dict[str, Any]) -> Draft:
        return Draft(
            subject={"model": "m"},
            findings=(finding(Status.PASS),),
            result=result((0.1, 0.101, 0.102, 0.103, 0.104)),
        )

    good = tmp_path / "good.json"
    assert run(go, "-f", "json", "-o", str(good)) == 0
    assert run(slow, "--baseline", str(good)) == 1
    assert "worse than the baseline" in capsys.readouterr().out
    assert run(go, "--baseline", "stored") == 3
    assert run(go) == 0
    assert main(["baseline", "set", "--command", "topo"]) == 0
    assert run(slow, "--baseline", "stored") == 1
    assert run(go, "--baseline", "stored") == 0
    assert run(go, "--baseline", str(tmp_path / "absent.json")) == 2
    good.write_text("{}")
    assert run(go, "--baseline", str(good)) == 3


def test_a_group_names_itself_in_a_failed_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROBE_STATE_DIR", str(tmp_path))
    assert main(["baseline", "show", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["run"]["command"] == "baseline"
