"""Two H200 whose NIXL takes the time that a test says: real NVML facts, real UCX tables, a clock of its own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from kvprobe.flows import Door
from kvprobe.system import System
from tests.ladders import policy
from tests.machines import SCENARIOS, Entry, answers

Times = Callable[[str, str], float | str]
"""(name of the set-up, id of the step) -> warm seconds, or the sentence with which decode fails."""


def recorded(scenario: str) -> list[Entry]:
    text = (SCENARIOS / scenario / "inputs.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


class CannedNixl(System):
    """``slow(setup)`` says over which set-ups UCX emulates; every run of workers takes ``each`` seconds."""

    def __init__(
        self,
        times: Times,
        *,
        slow: Callable[[str], bool] = lambda setup: False,
        each: float = 10.0,
        env: dict[str, str] | None = None,
    ) -> None:
        healthy, emulated = recorded("h200-x2-nvlink"), recorded("h200-x2-no-cuda-ipc")
        self.nvml = answers(healthy, "nvml")
        self.logs = {False: [o["log"] for o in answers(healthy, "nixl")], True: [o["log"] for o in answers(emulated, "nixl")]}  # fmt: skip
        self.times, self.slow, self.each, self.env = times, slow, each, env or {}
        self.clock = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
        self.setups: list[str] = []
        self.steps: list[list[str]] = []

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        if kind == "clock":
            return self.clock.isoformat()
        if kind == "environ":
            return {name: value for name, value in self.env.items() if name in key}
        if kind != "workers":
            return look()
        if key["probe"] == "nvml":
            return self.nvml
        self.clock += datetime.timedelta(seconds=self.each)
        if key["probe"] != "nixl":
            absent = {"event": "absent", "package": "torch", "install": "pip install torch"}
            return [{"name": "copy", "result": {}, "events": [absent]}]
        self.setups.append(key["setup"])
        self.steps.append(key["steps"])
        return self._moved(key["setup"], key["steps"])

    def _moved(self, setup: str, steps: list[str]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        failure: str | None = None
        for step in steps:
            seconds = self.times(setup, step)
            if isinstance(seconds, str):
                failure = seconds
                break
            staged = ("stage_out_seconds", "stage_in_seconds") if "kv_buffer_device" in setup else ()
            sample = {
                "event": "sample", "step": step, "make_seconds": 1e-4, "release_seconds": 1e-5, "post_seconds": seconds / 2,
                "total_seconds": seconds, "request_seconds": [seconds], "nixl_descriptors": 14336, **dict.fromkeys(staged, seconds),
            }  # fmt: skip
            events += [{**sample, "cold": cold} for cold in (True, False, False, False)]
            events.append({"event": "verified", "step": step, "bad_words": 0})
        log = self.logs[self.slow(setup)]
        decode = {"name": "decode", "events": events, "log": log[1], "result": None if failure else {}, "error": failure, "error_kind": "died" if failure else None}  # fmt: skip
        return [{"name": "prefill", "result": {}, "events": [], "log": log[0]}, decode]


def door(system: System) -> Door:
    return Door(system=system, policy=policy())
