"""The recorded 2x H200, with something else about it: an edited recording that the real command line replays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvprobe.cli import main

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "samples" / "scenarios"
Entry = dict[str, Any]


def probe_of(entry: Entry) -> str | None:
    """``nvml``, ``raw_copy``, ``raw_ucx`` or ``nixl`` for a recorded run of workers."""
    return entry["key"].get("probe") if entry["kind"] == "workers" else None


def edited(
    folder: Path,
    edit: Callable[[list[Entry]], object] = lambda entries: None,
    scenario: str = "h200-x2-nvlink",
    **params: Any,
) -> Path:
    """A copy of the scenario in ``folder``: ``edit`` changes its recorded inputs in place, ``params`` its request."""
    shutil.copytree(SCENARIOS / scenario, folder)
    file = folder / "inputs.jsonl"
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    edit(entries)
    file.write_text("".join(json.dumps(e) + "\n" for e in entries), encoding="utf-8")
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    request["params"] |= params
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    return folder


def replay(folder: Path, *more: str, command: str = "preflight") -> tuple[int, dict[str, Any]]:
    """Exit code and JSON document of the replay."""
    out = folder.parent / f"{folder.name}.json"
    code = main(
        [command, "--replay", str(folder), "-f", "json", "-o", str(out), "--progress", "off", "-q", *more]
    )
    return code, json.loads(out.read_bytes())


def answers(entries: list[Entry], probe: str) -> list[dict[str, Any]]:
    """The recorded outcomes of a probe's workers."""
    found: list[dict[str, Any]] = next(e["value"] for e in entries if probe_of(e) == probe)
    return found


def finding(report: dict[str, Any], id_: str) -> dict[str, Any]:
    """The only finding of this id."""
    (found,) = [f for f in report["findings"] if f["id"] == id_]
    return dict(found)
