"""Make a scenario of a recorded `kvprobe live` run: smaller, replayed alike, nothing made up.

    .venv/bin/python scripts/live_sample.py gpu-live/nvlink-recording h200-x2-live-nvlink

Left out: metrics series that kvprobe does not read (the configuration after its first reading), findings and evidence of the preflight report inside (its tax and
ladder stay), the text of
answers under load, all but the first of each request's block ids after first contact; times are rounded to microseconds. Both recordings are replayed,
and must end in the same findings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvprobe.probes.pd_endpoint_drive import PATHS  # noqa: E402
from kvprobe.probes.pd_endpoint_facts import read_series  # noqa: E402

REPORT_KEYS = ("schema", "tool", "run", "subject", "policy", "verdict")
RESULT_KEYS = ("tax", "ladder")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recording", type=Path)
    parser.add_argument("name", help="of the folder under samples/scenarios")
    options = parser.parse_args()
    target = ROOT / "samples/scenarios" / options.name
    target.mkdir(exist_ok=True)
    lines = (options.recording / "inputs.jsonl").read_text(encoding="utf-8").splitlines()
    thin = [
        json.dumps(thinner(json.loads(line)), ensure_ascii=False, separators=(",", ":")) for line in lines
    ]
    (target / "inputs.jsonl").write_text("\n".join(thin) + "\n", encoding="utf-8")
    request = json.loads((options.recording / "request.json").read_text(encoding="utf-8"))
    request["params"].setdefault("settle", False)  # recorded before there was such an option
    (target / "request.json").write_text(json.dumps(request, indent=2) + "\n", encoding="utf-8")
    settle = "--settle" if request["params"]["settle"] else "--no-settle"
    before, after = (replay(folder, settle) for folder in (options.recording, target))
    if told(before) != told(after):
        print("live_sample: the thinned recording ends in other findings", file=sys.stderr)
        return 1
    shown = [f for f in after["findings"] if f["status"] not in ("pass", "skip")]
    expected = {
        "command": "live",
        "exit_code": after["verdict"]["exit_code"],
        "verdict": after["verdict"]["status"],
        "findings": [[f["id"], f["status"]] for f in shown],
    }
    (target / "expected.json").write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")
    size = sum(p.stat().st_size for p in target.iterdir())
    print(f"{target.relative_to(ROOT)}: {size / 1000:.0f} kB, {expected['verdict']}; say in samples/scenarios/README.md where it is from")  # fmt: skip
    return 0


def thinner(entry: dict[str, Any]) -> dict[str, Any]:
    kind, key, value = entry["kind"], entry["key"], entry.get("value")
    if kind == "file" and isinstance(value, str) and '"kvprobe.report/v1"' in value[:200]:
        report = json.loads(value)
        small = {k: report[k] for k in REPORT_KEYS} | {"findings": [], "evidence": []}
        small["result"] = {k: report["result"][k] for k in RESULT_KEYS if k in report["result"]}
        return entry | {"value": json.dumps(small, separators=(",", ":"))}
    if kind == "http" and isinstance(value, dict):
        if key["path"] == "/metrics":
            lines = read_series(value["body"]).splitlines(keepends=True)
            if key["label"] != "at start":  # the configuration is read once
                lines = [line for line in lines if not line.startswith("vllm:cache_config_info")]
            value["body"] = "".join(lines)
        if value.get("stream") and key["label"].startswith("load "):
            value["stream"]["tokens"] = [[token[0], "", []] for token in value["stream"]["tokens"]]
        if key["path"] in PATHS.values() and not key["label"].startswith("first contact"):
            value["body"] = without_blocks(value["body"])
    return dict(rounded(entry))


def without_blocks(body: str) -> str:
    """An answer of prefill with only the first block id of each group: nothing reads the others."""
    try:
        answer = json.loads(body)
        params = answer["kv_transfer_params"]
        params["remote_block_ids"] = [group[:1] for group in params["remote_block_ids"]]
    except (ValueError, KeyError, TypeError):
        return body
    return json.dumps(answer, separators=(",", ":"))


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def replay(folder: Path, settle: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvprobe", "live", "--replay", str(folder), settle, "-f", "json", "--progress", "off"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def told(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(f["id"], f["status"], f["title"]) for f in report["findings"]]


if __name__ == "__main__":
    sys.exit(main())
