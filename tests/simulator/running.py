"""Starts the simulator for a test, and runs kvprobe live against it as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


class Deployment:
    """A running simulator."""

    def __init__(self, ports: dict[str, int], scheme: str = "http") -> None:
        self.ports, self.scheme = ports, scheme

    def url(self, role: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.ports[role]}"

    def told(self) -> dict[str, Any]:
        """The simulator's own log, counters, and every byte that came to its side channel."""
        with urllib.request.urlopen(f"{self.url('decode')}/simulator/log") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def live(self, *more: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Exit code and report of ``kvprobe live``; no load unless asked for."""
        argv = ["live", "--prefill", self.url("prefill"), "--decode", self.url("decode")]
        return kvprobe(*argv, "--load", "0s", *more, env=env)


def kvprobe(*argv: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run the command line in a process of its own; the JSON report must be there whatever happens."""

    done = subprocess.run(
        [sys.executable, "-m", "kvprobe", *argv, "--format", "json", "--progress", "off"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@contextlib.contextmanager
def deployment(folder: Path, **plan: Any) -> Iterator[Deployment]:
    """The simulator as :class:`tests.simulator.state.Plan` says, ended with the block."""
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/simulator/server.py"), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        yield Deployment(ports, "https" if plan.get("certificate") else "http")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def codes(report: dict[str, Any]) -> set[str]:
    """The labels of everything that is not fine."""
    return {f["code"] for f in report["findings"] if f["status"] in ("warn", "fail", "unknown") and f["code"]}


def finding(report: dict[str, Any], check: str) -> dict[str, Any]:
    """The one finding with this id."""
    (found,) = [f for f in report["findings"] if f["id"] == check]
    return dict(found)
