"""The key figures of a report: what monitors plot and what a baseline is compared by.

One flat list out of the known keys of ``result``. What is absent, null or of
an unexpected type is absent here too: no figure is ever made up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

LOWER = "lower"
HIGHER = "higher"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number in its base unit that keeps its name and labels from run to run."""

    name: str
    """Snake case with the unit at the end, such as ``transfer_seconds``."""
    help: str
    value: float
    unit: str
    labels: dict[str, str] = {}
    statistic: str | None = None
    samples: tuple[float, ...] = ()
    """The raw samples where the report keeps them."""
    better: str | None = None
    """``lower``, ``higher``, or None where neither is better."""

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What identifies the figure across runs."""
        return self.name, tuple(sorted(self.labels.items()))


def figures(result: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Every key figure of a report's ``result``, in a stable order, each name and label set once."""
    found: dict[Any, Figure] = {}
    for figure in _all(result):
        found.setdefault(figure.key, figure)
    return tuple(found.values())


def number(value: Any) -> float | None:
    """A finite number, or None for everything else (null, text, booleans, NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects in a list (or in the tuple that a draft still holds); empty if it is not one."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list | tuple) else []


def _all(result: Mapping[str, Any]) -> Iterator[Figure]:
    yield from _pair(result)
    for pair in rows(result.get("pairs")):
        for figure in _pair(pair):
            labels = {**figure.labels, "pair": str(pair.get("subject"))[:80]}
            yield msgspec.structs.replace(figure, labels=labels)
    yield from _sizes(result)
    yield from _log(result.get("totals"))


def _pair(result: Mapping[str, Any]) -> Iterator[Figure]:
    yield from _transfers(rows(result.get("transfers")))
    yield from _ladder(rows(result.get("ladder")))
    yield from _tax(rows(result.get("tax")))
    yield from _fit(result.get("fit"))


def _transfers(transfers: list[dict[str, Any]]) -> Iterator[Figure]:
    for row in transfers:
        samples = _samples(row.get("seconds"))
        value = number(row.get("median_seconds"))
        if value is None and samples:
            value = statistics.median(samples)
        if value is None:
            continue
        yield Figure(
            name="transfer_seconds",
            help="Median of one warm NIXL transfer.",
            value=value,
            unit="s",
            labels=_labels(row, "op", "order", "prompt_tokens", "in_flight"),
            statistic="median",
            samples=samples,
            better=LOWER,
        )


def _ladder(ladder: list[dict[str, Any]]) -> Iterator[Figure]:
    for row in ladder:
        labels = _labels(row, "rung", "name")
        bandwidth, seconds = number(row.get("bandwidth_bytes_per_second")), number(row.get("seconds"))
        samples = _samples(row.get("samples"))
        if bandwidth is not None:
            yield Figure(
                name="rung_bandwidth_bytes_per_second",
                help="Bandwidth on one rung of the ladder.",
                value=bandwidth,
                unit="B/s",
                labels=labels,
                better=HIGHER,
            )
        if seconds is not None:
            yield Figure(
                name="rung_seconds",
                help="Median time of the reference prompt's bytes on one rung of the ladder.",
                value=seconds,
                unit="s",
                labels=labels,
                statistic="median",
                samples=samples,
                better=LOWER,
            )


def _tax(tax: list[dict[str, Any]]) -> Iterator[Figure]:
    for row in tax:
        for statistic in ("p50", "p90"):
            value = number(row.get(f"{statistic}_seconds"))
            if value is not None:
                yield Figure(
                    name="ttft_tax_seconds",
                    help="What P/D adds to the time to first token of a prompt.",
                    value=value,
                    unit="s",
                    labels={**_labels(row, "prompt_tokens"), "statistic": statistic},
                    statistic=statistic,
                    better=LOWER,
                )


_FIT = {
    "t0_seconds": ("s", LOWER, "Fitted fixed cost of a transfer."),
    "seconds_per_descriptor": ("s", LOWER, "Fitted cost of one descriptor."),
    "bandwidth_bytes_per_second": ("B/s", HIGHER, "Fitted bandwidth of a transfer."),
}


def _fit(fit: Any) -> Iterator[Figure]:
    if not isinstance(fit, dict):
        return
    for operation, row in fit.items():
        if not isinstance(row, dict):
            continue
        for key, (unit, better, text) in _FIT.items():
            value = number(row.get(key))
            if value is not None:
                yield Figure(
                    name=f"fit_{key}",
                    help=text,
                    value=value,
                    unit=unit,
                    labels={"operation": str(operation), **_labels(row, "transport")},
                    better=better,
                )


_LOG = {
    "xfer_seconds_mean": ("log_transfer_seconds", "s", LOWER, "Mean transfer time in the engine's own metrics."),
    "bytes_per_second_of_a_transfer": (
        "log_transfer_bytes_per_second", "B/s", HIGHER, "Mean rate of a transfer in the engine's own metrics.",
    ),
    "seconds_per_descriptor": ("log_seconds_per_descriptor", "s", LOWER, "Mean transfer time of one descriptor."),
    "num_successful_transfers": ("log_transfers", "", None, "Transfers that the log reports as done."),
    "num_failed_transfers": ("log_failed_transfers", "", None, "Transfers that the log reports as failed."),
    "num_kv_expired_reqs": ("log_expired_requests", "", None, "Requests whose KV lease ran out."),
}  # fmt: skip


def _log(totals: Any) -> Iterator[Figure]:
    if not isinstance(totals, dict):
        return
    for key, (name, unit, better, text) in _LOG.items():
        value = number(totals.get(key))
        if value is not None:
            yield Figure(name=name, help=text, value=value, unit=unit, better=better)


_SIZES = {
    "bytes_per_token": ("kv_bytes_per_token", "KV cache bytes of one token inside every window."),
    "growth_bytes_per_token": (
        "kv_growth_bytes_per_token",
        "KV cache bytes that each further token keeps adding.",
    ),
    "state_bytes_per_sequence": (
        "kv_state_bytes_per_sequence",
        "Constant state bytes of one sequence.",
    ),
}


def _sizes(result: Mapping[str, Any]) -> Iterator[Figure]:
    kv = result.get("kv")
    place: Mapping[str, Any] = kv if isinstance(kv, dict) else result
    for key, (name, text) in _SIZES.items():
        value = place.get(key)
        parts = value if isinstance(value, dict) else {"all_ranks": value}
        for ranks in ("all_ranks", "per_rank"):
            size = number(parts.get(ranks))
            if size is not None:
                yield Figure(name=name, help=text, value=size, unit="B", labels={"ranks": ranks})


def _labels(row: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Those of the named keys that hold a short word or a whole number."""
    found = {}
    for name in names:
        value = row.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            found[name] = str(value)[:80]
    return found


def _samples(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(v for v in map(number, value) if v is not None)
