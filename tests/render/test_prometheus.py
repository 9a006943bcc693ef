"""The textfile: parsed as node_exporter's collector parses it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvprobe.finding import Quantity, Status
from kvprobe.render import Look
from kvprobe.render.prometheus import render
from tests.reports import finding, report, result


def series(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.timestamp is None  # a file with timestamps is dropped as a whole
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> list[float]:
    return [
        v for (n, pairs), v in series(text).items() if n == name and labels.items() <= dict(pairs).items()
    ]


def test_figures_are_there_in_base_units() -> None:
    text = render(report(finding()), Look())
    assert value(text, "kvprobe_kv_bytes_per_token", ranks="all_ranks") == [57344]
    assert value(text, "kvprobe_ttft_tax_seconds", prompt_tokens="8192", statistic="p50") == [0.08192]
    assert value(text, "kvprobe_transfer_seconds", order="shuffled", prompt_tokens="8192") == [0.0505]
    assert value(text, "kvprobe_check_seconds", check="KVP203") == [1.29]
    assert value(text, "kvprobe_check_state", check="KVP203") == [2]
    assert value(text, "kvprobe_last_run_timestamp_seconds") == [1795976100 + 11.9]


def test_what_was_not_measured_is_absent_never_zero() -> None:
    text = render(report(finding(Status.UNKNOWN, measured=Quantity(value=None, unit="s"))), Look())
    assert value(text, "kvprobe_check_seconds") == []
    assert value(text, "kvprobe_rung_seconds", rung="2") == []
    bare = render(report(finding(Status.UNKNOWN, measured=None), result={}), Look())
    assert {n for n, _ in series(bare)} == {
        "kvprobe_verdict",
        "kvprobe_check_state",
        "kvprobe_last_run_timestamp_seconds",
        "kvprobe_last_run_duration_seconds",
        "kvprobe_build_info",
    }


def test_all_pairs_and_repeated_findings_give_no_series_twice() -> None:
    pairs = [{**result(), "subject": f"GPU{a} -> GPU{b}"} for a, b in ((0, 1), (1, 0))]
    text = render(report(finding(), finding(Status.PASS), result={**result(), "pairs": pairs}), Look())
    assert value(text, "kvprobe_transfer_seconds", pair="GPU1 -> GPU0", order="contiguous")
    assert value(text, "kvprobe_check_state", check="KVP203") == [2]  # the worse of the two


def test_two_commands_share_no_series() -> None:
    one = series(render(report(finding()), Look()))
    other = series(render(report(finding(), command="topo"), Look()))
    assert not one.keys() & other.keys()


def test_hostile_labels_are_escaped() -> None:
    text = render(report(finding(where='a"b\\c\nd}'), subject={"model": 'x"} 1\n'}), Look())
    assert value(text, "kvprobe_check_state", where='a"b\\c\nd}') == [2]


def test_a_run_without_a_time_has_no_timestamp() -> None:
    document = report(finding())
    run = msgspec.structs.replace(document.run, started_at="yesterday")
    assert (
        value(
            render(msgspec.structs.replace(document, run=run), Look()), "kvprobe_last_run_timestamp_seconds"
        )
        == []
    )


def test_promtool_accepts_it() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    text = render(report(finding(), finding(Status.WARN, id="KVP208", where=None)), Look())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    # 3: only style advice (label names); 1: the text does not parse.
    assert done.returncode in (0, 3), done.stderr


def test_a_real_node_exporter_serves_it(tmp_path: Path) -> None:
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        pytest.skip("node_exporter is not installed (Debian: apt-get install prometheus-node-exporter)")
    (tmp_path / "kvprobe-preflight.prom").write_text(render(report(finding()), Look()))
    (tmp_path / "kvprobe-topo.prom").write_text(render(report(finding(), command="topo"), Look()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={tmp_path}",
        f"--web.listen-address={address}",
    ]
    with subprocess.Popen([program, *options], stderr=subprocess.DEVNULL) as exporter:
        try:
            page = scrape(f"http://{address}/metrics", exporter)
        finally:
            exporter.kill()
    assert value(page, "node_textfile_scrape_error") == [0]
    assert value(page, "kvprobe_verdict", command="preflight", verdict="no_go") == [1]
    assert value(page, "kvprobe_verdict", command="topo", verdict="no_go") == [1]


def scrape(url: str, exporter: subprocess.Popen[bytes]) -> str:
    """The page, once the exporter listens."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            assert exporter.poll() is None, "node_exporter ended early"
            time.sleep(0.05)
