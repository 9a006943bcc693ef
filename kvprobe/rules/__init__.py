"""The registry: every rule kvprobe knows. A new rule is one function and one line in its topic's ``RULES``."""

from __future__ import annotations

import importlib
from typing import Any

from kvprobe.rules.base import Rule

TOPICS = (
    "kvprobe_itself",
    "lint_text",
    "lint_config",
    "lint_connector",
    "lint_hash",
    "lint_pair",
    "lint_network",
    "lint_gpus",
    "lint_transport",
    "lint_behaviour",
    "lint_around",
    "topology",
    "kv_size",
    "logs",
    "host",
    "compare",
    "compare_decoding",
    "compare_sweep",
    "compare_traps",
    "compare_workload",
    "baseline",
    "run",
    "transfer",
    "transfer_quality",
    "diagnosis",
    "concurrency",
    "two_nodes",
    "ranks",
    "tuning",
    "budget",
    "live",
    "live_outcome",
    "live_tax",
    "live_prediction",
    "live_paths",
    "calibration",
    "advice",
    "estimate",
    "template",
    "connectors",
)  # fmt: skip


def all_rules() -> tuple[Rule[Any], ...]:
    """Every rule of every topic, ordered by id."""
    found: list[Rule[Any]] = []
    for topic in TOPICS:
        found += importlib.import_module(f"kvprobe.rules.{topic}").RULES
    return tuple(sorted(found, key=lambda r: r.id))
