"""The ready-made gates: each parses, each kvprobe call in them is one that kvprobe knows, each unit and cron line runs."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvprobe.assets import checks_dir, gates
from tests.calls import calls, parse

CHECKS = checks_dir()
KUBERNETES = ("kubernetes/init-container.yaml", "kubernetes/job.yaml", "kubernetes/daemonset.yaml")


def load(name: str) -> Any:
    return yaml.safe_load((CHECKS / name).read_text(encoding="utf-8"))


def commands_of(name: str) -> list[list[str]]:
    """The kvprobe calls of one gate, taken out of the place where its reader takes them from."""
    text = (CHECKS / name).read_text(encoding="utf-8")
    if name.endswith("node-problem-detector.json"):
        return [rule["args"] for rule in json.loads(text)["rules"]]
    if name in KUBERNETES:
        found = []
        for container in containers(load(name)):
            words = [*container.get("command", []), *container.get("args", [])]
            if words[:1] == ["kvprobe"]:
                found.append(words[1:])
            elif words:
                found += calls(words[-1])
        return found
    if name.startswith("ci/"):
        return [c for script in scripts(load(name)) for c in calls(script)]
    if name.endswith("prometheus-rules.yaml"):
        return [c for quoted in re.findall(r"`(kvprobe [^`]*)`", text) for c in calls(quoted)]
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    if name.startswith("systemd/"):
        lines = [line for line in lines if line.startswith("ExecStart=")]
    return [c for line in lines for c in calls(line)]


def scripts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run" and isinstance(value, str):
                yield value
            elif key == "script":
                yield from value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts(item)


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


CALLS = [(name, words) for name in gates() for words in commands_of(name)]


def test_the_gates_of_the_issue_are_there_and_call_kvprobe() -> None:
    calling = {name for name, _ in CALLS}
    assert calling >= {
        "cron/kvprobe.cron",
        "systemd/kvprobe.service",
        "ci/github-actions.yml",
        "ci/gitlab-ci.yml",
        *KUBERNETES,
        "kubernetes/node-problem-detector.json",
        "monitoring/nagios.cfg",
        "monitoring/gpud-plugin.yaml",
    }
    assert {"monitoring/prometheus-rules.yaml", "kubernetes/Dockerfile", "systemd/kvprobe.timer"} <= set(
        gates()
    )


@pytest.mark.parametrize(("name", "words"), CALLS, ids=[f"{n}: {' '.join(w[:2])}" for n, w in CALLS])
def test_every_call_parses_against_the_real_command_line(name: str, words: list[str]) -> None:
    parse(words)


def call_with_sh(line: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The line as cron or systemd would run it, its absolute places moved under ``tmp_path`` and its budget cut."""
    program = str(Path(sys.executable).parent)
    for place in ("/var/lib", "/run"):
        (tmp_path / place.strip("/")).mkdir(parents=True, exist_ok=True)
        line = line.replace(f"{place}/", f"{tmp_path}{place}/")
    (tmp_path / "var/lib/node_exporter/textfile").mkdir(parents=True)
    line = line.replace("/usr/local/bin/kvprobe", f"{program}/kvprobe").replace("--budget 10s", "--budget 1s")
    line = line.replace("--max-memory 1GiB", "--max-memory 128MiB")
    env = {
        **os.environ,
        "PATH": f"{program}:{os.environ['PATH']}",
        "KVPROBE_STATE_DIR": f"{tmp_path}/var/lib/kvprobe",
    }
    return subprocess.run(
        ["sh", "-c", line], env=env, capture_output=True, text=True, timeout=380, check=False, cwd=tmp_path
    )


def cron_lines() -> list[str]:
    lines = (CHECKS / "cron/kvprobe.cron").read_text().splitlines()
    return [line.split(None, 6)[6] for line in lines if re.match(r"[\d*]", line)]


def exec_start() -> str:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(CHECKS / "systemd/kvprobe.service")
    return parser["Service"]["ExecStart"]


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("flock") is None, reason="flock (util-linux) is not installed")
def test_the_cron_line_runs_once(tmp_path: Path) -> None:
    (line,) = cron_lines()
    done = call_with_sh(line, tmp_path)
    assert done.returncode == 0, done.stderr
    textfile = (tmp_path / "var/lib/node_exporter/textfile/kvprobe.prom").read_text()
    go = 'verdict="go"} 1.0' in textfile
    # cron mails what is printed: nothing for a GO, the verdict and why for everything else.
    assert (done.stdout == "") == go
    assert done.stderr == ""
    assert (tmp_path / "var/lib/kvprobe/last/preflight.json").exists()


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("flock") is None, reason="flock (util-linux) is not installed")
def test_the_systemd_command_runs_once(tmp_path: Path) -> None:
    line = exec_start().replace("/usr/bin/flock", str(shutil.which("flock")))
    done = call_with_sh(line, tmp_path)
    assert done.returncode in (0, 1, 3), done.stderr
    assert done.stdout.split()[0] in ("GO", "NO-GO", "UNKNOWN")
    assert (
        'kvprobe_verdict{command="preflight"'
        in (tmp_path / "var/lib/node_exporter/textfile/kvprobe.prom").read_text()
    )


def test_a_second_check_at_the_same_time_is_left_out(tmp_path: Path) -> None:
    if shutil.which("flock") is None:
        pytest.skip("flock (util-linux) is not installed")
    (tmp_path / "run").mkdir()
    (line,) = cron_lines()
    lock = tmp_path / "run" / "kvprobe.lock"
    with subprocess.Popen(["flock", str(lock), "sleep", "60"]) as holder:
        try:
            for _ in range(200):
                if subprocess.run(["flock", "-n", str(lock), "true"], check=False).returncode:
                    break
            done = call_with_sh(line, tmp_path)
        finally:
            holder.kill()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "var/lib/node_exporter/textfile/kvprobe.prom").exists()


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        [program, "verify", *map(str, (CHECKS / "systemd").iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to" in done.stderr and "kvprobe" not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.splitlines()[0]}")
    assert [line for line in done.stderr.splitlines() if "kvprobe" in line] == []


def test_prometheus_accepts_and_fires_the_alerts(tmp_path: Path) -> None:
    document = load("monitoring/prometheus-rules.yaml")
    names = [rule["alert"] for group in document["groups"] for rule in group["rules"]]
    assert names == [
        "KVTransferNoGo",
        "KVTransferUnknown",
        "KVTransferCheckStale",
        "KVTransferSlowerThanBaseline",
    ]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    labels = 'command="preflight",instance="node-a",model="m"'
    test = {
        "rule_files": [str(CHECKS / "monitoring/prometheus-rules.yaml")],
        "evaluation_interval": "10m",
        "tests": [
            {
                "interval": "10m",
                "input_series": [
                    {"series": f'kvprobe_verdict{{{labels},verdict="no_go"}}', "values": "1x30"},
                    {"series": f"kvprobe_last_run_timestamp_seconds{{{labels}}}", "values": "0x30"},
                ],
                "alert_rule_test": [
                    {
                        "eval_time": time,
                        "alertname": name,
                        "exp_alerts": [{"exp_labels": fired, "exp_annotations": annotations}]
                        if fired
                        else [],
                    }
                    for time, name, fired, annotations in _expected_alerts()
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    for arguments in (
        ["check", "rules", str(CHECKS / "monitoring/prometheus-rules.yaml")],
        ["test", "rules", str(file)],
    ):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _expected_alerts() -> Iterator[tuple[str, str, dict[str, str], dict[str, str]]]:
    about = {"command": "preflight", "instance": "node-a", "model": "m"}
    yield (
        "10m",
        "KVTransferNoGo",
        {**about, "verdict": "no_go", "severity": "critical"},
        {
            "summary": "kvprobe says NO-GO on node-a (preflight m)",
            "description": "Run `kvprobe last` there; `kvprobe explain` tells what the failed check means.",
        },
    )
    yield "1h", "KVTransferCheckStale", {}, {}
    yield (
        "3h",
        "KVTransferCheckStale",
        {**about, "severity": "warning"},
        {"summary": "the last kvprobe run on node-a is 3h 0m 0s old"},
    )
    yield "3h", "KVTransferUnknown", {}, {}


@pytest.mark.parametrize("name", KUBERNETES)
def test_kubernetes_documents_have_what_the_api_requires(name: str) -> None:
    document = load(name)
    assert document["apiVersion"] in ("apps/v1", "batch/v1")
    assert document["kind"] in ("Deployment", "DaemonSet", "Job") and document["metadata"]["name"]
    pod = document["spec"]["template"]["spec"]
    if document["kind"] == "Job":
        assert pod["restartPolicy"] == "Never" and document["spec"]["backoffLimit"] == 0
        assert document["metadata"]["annotations"]["helm.sh/hook"]
    else:
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for container in containers(document):
        assert container["name"] and container["image"]
        mounts = {m["name"] for m in container.get("volumeMounts", [])}
        assert mounts <= {v["name"] for v in pod.get("volumes", [])}
    # cuda_ipc between two processes of the pod and the workload it stands for.
    assert pod["hostIPC"] is True


def test_the_folder_s_readme_names_every_gate_and_profile() -> None:
    text = (CHECKS / "README.md").read_text(encoding="utf-8")
    assert [name for name in gates() if f"`{name}`" not in text] == []
    assert [p.stem for p in (CHECKS / "profiles").glob("*.toml") if f"`{p.stem}`" not in text] == []


def test_no_gate_lets_unknown_through() -> None:
    assert not [name for name, words in CALLS if "--unknown-is" in words]


def test_node_problem_detector_keeps_within_its_limits() -> None:
    document = json.loads((CHECKS / "kubernetes/node-problem-detector.json").read_text())
    assert document["plugin"] == "custom" and document["pluginConfig"]["max_output_length"] == 80
    (condition,), (rule,) = document["conditions"], document["rules"]
    # NPD's condition is True when there is a problem: it is named for the problem.
    assert rule["condition"] == condition["type"] == "KVTransferProblem"
    assert rule["type"] == "permanent" and Path(rule["path"]).is_absolute()
    assert rule["args"][0] == "last" and "line" in rule["args"]


def test_the_gpud_plugin_has_the_documented_keys() -> None:
    (plugin,) = load("monitoring/gpud-plugin.yaml")
    assert plugin["type"] == "component" and plugin["plugin_name"] == "kvprobe"
    (step,) = plugin["health_state_plugin"]["steps"]
    assert step["run_bash_script"]["content_type"] == "plaintext" and step["name"]


def test_github_workflow_passes_actionlint() -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed (no Debian package; PyPI's fetches it from GitHub)")
    done = subprocess.run(
        [program, "-no-color", str(CHECKS / "ci/github-actions.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_ci_files_have_the_keys_their_readers_need() -> None:
    workflow = load("ci/github-actions.yml")
    assert workflow[True] and workflow["permissions"] == {"contents": "read"}  # YAML 1.1 reads "on" as true
    assert all("runs-on" in job and job["steps"] for job in workflow["jobs"].values())
    pipeline = load("ci/gitlab-ci.yml")
    jobs = {k: v for k, v in pipeline.items() if k not in ("stages", "variables")}
    assert all(
        job["stage"] in pipeline["stages"] and job["artifacts"]["reports"]["junit"] for job in jobs.values()
    )


def test_the_dockerfile_has_five_instructions_on_the_vllm_image() -> None:
    lines = [
        line
        for line in (CHECKS / "kubernetes/Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert [line.split()[0] for line in lines] == ["ARG", "FROM", "COPY", "RUN", "ENTRYPOINT"]
    assert "vllm/vllm-openai" in lines[0]
