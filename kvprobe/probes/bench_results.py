"""Reads the benchmark results of one side: a file, or a directory of a rate sweep."""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from kvprobe.errors import FormatError, ProbeError, UsageError
from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.bench_result import BenchResult, parse_bench_results
from kvprobe.models.bench_facts import Unreadable
from kvprobe.system import System

_DEPTH = 3
_FILES = 500
_LIMIT_BYTES = 256 * 1024 * 1024
"""A --save-detailed run of some thousand requests with their texts has tens of MiB."""
# Written beside the runs by `vllm bench sweep serve` and by SAVE_TO_PYTORCH_BENCHMARK_FORMAT: no runs themselves.
_NOT_RUNS = ("summary.json", "warmup.json", ".failure.json", ".pytorch.json")


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What was found for one side."""

    name: str
    path: str
    runs: tuple[BenchResult, ...]
    unreadable: tuple[Unreadable, ...] = ()


def read_side(system: System, name: str, path: str) -> Evidence[Side]:
    """The runs under ``path``. Raises UsageError for a path that is not there, ProbeError for an empty directory.

    A single file that is no result is kept as unreadable: what is wrong with it is the answer. In a directory such
    files are kept as unreadable only when no run is found at all.
    """
    kind = system.path_kind(path)
    if kind == "absent":
        raise UsageError(
            f"{path} does not exist.", "Give the JSON that `vllm bench serve --save-result` wrote."
        )
    files = [path] if kind == "file" else _files(system, path)
    if not files:
        raise ProbeError(
            f"{path} holds no .json file.", "Give a directory with the results of `vllm bench serve --save-result`."
        )  # fmt: skip
    runs: list[BenchResult] = []
    unreadable: list[Unreadable] = []
    for file in files:
        try:
            runs += parse_bench_results(system.read_text(file, limit_bytes=_LIMIT_BYTES), file)
        except FormatError as error:
            unreadable.append(Unreadable(side=name, source=file, reason=error.reason))
    side = Side(
        name=name, path=path, runs=tuple(runs), unreadable=() if runs else tuple(unreadable[:3])
    )  # fmt: skip
    return Evidence(id=f"bench-{name}", kind="bench_result", origin=Origin.PARSED, source=path, facts=side)


def _files(system: System, folder: str) -> list[str]:
    found: list[str] = []
    pending = [(folder, 0)]
    while pending:
        place, depth = pending.pop(0)
        for name in system.list_dir(place):
            path = str(PurePath(place, name))
            if name.endswith(".json"):
                if not name.endswith(_NOT_RUNS):
                    found.append(path)
            elif depth < _DEPTH and "." not in name and system.path_kind(path) == "dir":
                pending.append((path, depth + 1))
        if len(found) > _FILES:
            raise ProbeError(
                f"{folder} holds more than {_FILES} .json files.", "Give the directory of one sweep."
            )
    return found
