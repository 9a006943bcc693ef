"""MooncakeStoreConnector's file, as vLLM 0.33 checks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvprobe.formats.mooncake_config import problem_of, size_of

FINE = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "192.0.2.1:50051", "protocol": "rdma"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, None),
        ({"global_segment_size": "4GB", "local_buffer_size": 2**30}, None),
        ({"mode": "standalone-store", "global_segment_size": 0}, None),
        ({"mode": "standalone-store"}, "needs global_segment_size 0"),
        ({"mode": "embedded", "global_segment_size": 0}, "above 0"),
        ({"mode": "shared"}, "embedded or standalone-store"),
        ({"global_segment_size": "much"}, "not a size"),
        ({"local_buffer_size": True}, "not a size"),
        ({"master_server_address": ""}, "master_server_address is missing"),
        ({"protocoll": "tcp"}, "unknown key 'protocoll'"),
    ],
)
def test_problems(change: dict[str, Any], word: str | None) -> None:
    found = problem_of(json.dumps({**FINE, **change}), "m.json")
    assert found is None if word is None else found is not None and word in found


@pytest.mark.parametrize("text", ["{", "[]", "\x00", "[" * 100000, ""])
def test_damaged_files(text: str) -> None:
    assert problem_of(text, "m.json")


def test_sizes() -> None:
    assert (
        size_of("4GB") == 4 * 2**30
        and size_of("512 MiB") == 512 * 2**20
        and size_of(7) == 7
        and size_of("9b") == 9
    )
    for wrong in (float("nan"), float("inf"), None, [], "4 XB"):
        with pytest.raises(ValueError, match="not a size"):
            size_of(wrong)
