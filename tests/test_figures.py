"""Key figures: taken as they are, absent when absent, from any report."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvprobe.figures import figures
from tests.reports import SAMPLES, result

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["ladder", "tax", "seconds", "samples", "rung", "p50_seconds", "READ", "per_rank", "subject"]), inner, max_size=4
    ),
    max_leaves=12,
)  # fmt: skip


def test_raw_samples_come_with_their_median() -> None:
    found = {f.key: f for f in figures(result())}
    scattered = found[
        (
            "transfer_seconds",
            (("in_flight", "1"), ("op", "READ"), ("order", "shuffled"), ("prompt_tokens", "8192")),
        )
    ]
    assert scattered.samples == SAMPLES and scattered.value == 0.0505 and scattered.better == "lower"


def test_a_skipped_rung_has_no_figure() -> None:
    assert not [f for f in figures(result()) if f.labels.get("rung") == "2"]


def test_kvsize_results_have_the_same_names() -> None:
    found = figures(
        {"bytes_per_token": {"per_rank": 57344, "all_ranks": 114688}, "growth_bytes_per_token": None}
    )
    assert {(f.name, f.labels["ranks"], f.value) for f in found} == {
        ("kv_bytes_per_token", "per_rank", 57344),
        ("kv_bytes_per_token", "all_ranks", 114688),
    }


@given(
    st.dictionaries(
        st.sampled_from(["ladder", "tax", "transfers", "fit", "kv", "pairs", "bytes_per_token"]), JSON
    )
)
def test_any_json_gives_finite_figures_or_none(data: dict[str, Any]) -> None:
    for figure in figures(data):
        assert figure.value == figure.value and abs(figure.value) != float("inf")
        assert all(isinstance(v, str) for v in figure.labels.values())
