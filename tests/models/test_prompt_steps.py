"""Which series are measured, in which order, and what memory leaves out."""

from __future__ import annotations

import pytest

from kvprobe.models.kv_layout import KvLayout, LayoutOptions, resolve
from kvprobe.models.prompt_steps import JUDGED_TOKENS, pool_bytes, select
from tests.ladders import BYTES, model

GIB = 1024**3


@pytest.fixture
def layout() -> KvLayout:
    return resolve(model(), LayoutOptions(gpu_arch="sm90"))


def test_the_first_takes_the_wire_up_and_the_judged_length_follows(layout: KvLayout) -> None:
    found = select(layout, (), memory_bytes=8 * GIB)
    ids = [step.id for step in found.steps]
    assert ids[:3] == ["read-shuffled-512", "read-shuffled-8192", "read-contiguous-8192"]
    assert "write-shuffled-8192" in ids and ids[-1].endswith("32768") and len(ids) == len(set(ids))
    assert found.left_out == () and found.plans[JUDGED_TOKENS].bytes == BYTES
    assert found.steps[1].bytes == BYTES and found.steps[1].descriptors == 14336


def test_a_push_connector_writes_and_reads_for_comparison(layout: KvLayout) -> None:
    ids = [s.id for s in select(layout, (), memory_bytes=8 * GIB, operation="WRITE").steps]
    assert ids[1] == "write-shuffled-8192" and "read-shuffled-8192" in ids


def test_what_does_not_fit_is_named_and_the_longest_that_fits_stands_in(layout: KvLayout) -> None:
    found = select(layout, (), memory_bytes=BYTES)
    assert found.left_out == (8192, 32768) and {s.prompt_tokens for s in found.steps} == {512, 2048}
    assert found.steps[1].id == "read-shuffled-2048" and 8192 in found.plans
    assert found.needed_bytes == pool_bytes(found.plans[2048]) <= BYTES


def test_no_memory_no_steps(layout: KvLayout) -> None:
    found = select(layout, (), memory_bytes=0)
    assert found.steps == () and found.left_out == (512, 2048, 8192, 32768) and found.needed_bytes == 0


def test_further_lengths_are_measured_once(layout: KvLayout) -> None:
    found = select(layout, (4096, 8192), memory_bytes=8 * GIB)
    ids = [s.id for s in found.steps]
    assert "read-shuffled-4096" in ids and ids.count("read-shuffled-8192") == 1
