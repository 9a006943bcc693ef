"""The worker without vLLM says so; what it reads of a spec is unpadded and knows its window."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import pytest

from kvprobe.errors import WorkerError
from kvprobe.models.kv_layout import LayoutOptions, ModelConfig
from kvprobe.probes.vllm_specs import ask_vllm
from kvprobe.system import System
from kvprobe.workers.vllm_specs import _plain


@dataclass
class SlidingWindowSpec:
    page_size_bytes: int = 4096
    real_page_size_bytes: int = 4000
    block_size: int = 16
    sliding_window: int | None = 128


@dataclass
class FullAttentionSpec(SlidingWindowSpec):
    """vLLM notes the window of a promoted layer here, but keeps every token."""


@dataclass
class MambaSpec:
    page_size_bytes: int = 1 << 20
    block_size: int = 832


def test_the_page_is_without_padding_and_the_window_only_where_it_frees_blocks() -> None:
    assert _plain("a", SlidingWindowSpec()) == {
        "layer": "a", "kind": "SlidingWindowSpec", "page_bytes": 4000, "block_size": 16, "window": 128,
    }  # fmt: skip
    assert _plain("b", FullAttentionSpec())["window"] is None
    assert _plain("c", MambaSpec())["page_bytes"] == 1 << 20


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_no_vllm_is_a_reason_with_the_next_step() -> None:
    with pytest.raises(WorkerError, match="vLLM cannot be imported") as caught:
        ask_vllm(System(), ModelConfig(name="m", config={}), LayoutOptions())
    assert "environment or image of vLLM" in caught.value.remedy
