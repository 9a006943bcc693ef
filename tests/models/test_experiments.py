"""The short list of suspects for each set-up and environment, and what counts as an explanation."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.models.experiments import Experiment, Trial, explanations, suspects
from kvprobe.models.transfer import Setup


def names(setup: Setup | None = None, environ: dict[str, str] | None = None, op: str = "READ", **more: Any) -> list[str]:  # fmt: skip
    return [e.name for e in suspects(setup or Setup(), environ or {}, op, **more)]


def find(name: str, setup: Setup, environ: dict[str, str], op: str = "READ") -> Experiment:
    return next(e for e in suspects(setup, environ, op) if e.name == name)


def test_a_clean_environment_blames_no_variable() -> None:
    found = names()
    assert not [n for n in found if n.startswith("without")]
    assert "both GPUs visible per process" in found and "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on" in found
    assert found.index("WRITE instead of READ") > found.index("UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on")
    assert found[-1] == "8 NIXL threads"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_come_first(name: str) -> None:
    found = find(f"without {name}", Setup(), {name: "expandable_segments:True"})
    assert found.kind == "cause" and found.setup.env == {name: None} and found.settings == (f"unset {name}",)
    assert names(environ={name: "expandable_segments:True"})[0] == f"without {name}"


def test_both_allocator_names_are_taken_away_together() -> None:
    both = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
    found = find("without PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF", Setup(), both)
    assert set(found.setup.env) == set(both) and len(found.settings) == 2


def test_another_allocator_setting_is_no_suspect() -> None:
    assert not [n for n in names(environ={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}) if "PYTORCH" in n]


def test_each_ucx_variable_alone_and_all_together() -> None:
    environ = {"UCX_TLS": "^cuda_ipc", "UCX_NET_DEVICES": "eth0"}
    found = names(environ=environ)
    assert found[:3] == ["without UCX_TLS", "without UCX_NET_DEVICES", "without any UCX variable"]
    alone = find("without UCX_TLS", Setup(), environ)
    assert alone.setup.env == {"UCX_TLS": None} and "UCX_TLS=^cuda_ipc" in alone.explains
    together = find("without any UCX variable", Setup(), environ)
    assert together.setup.env == {"UCX_TLS": None, "UCX_NET_DEVICES": None}


def test_a_variable_given_to_the_measurement_counts_as_set() -> None:
    setup = Setup(env={"UCX_TLS": "tcp"})
    assert find("without UCX_TLS", setup, {}).setup.env == {"UCX_TLS": None}
    taken = Setup(env={"UCX_TLS": None})
    assert "without UCX_TLS" not in names(taken, {"UCX_TLS": "tcp"})


@pytest.mark.parametrize("keep", [("UCX_TLS",), ("all",)])
def test_what_must_stay_is_not_taken_away(keep: tuple[str, ...]) -> None:
    assert "without UCX_TLS" not in names(environ={"UCX_TLS": "tcp"}, keep=keep)


def test_one_process_and_visibility() -> None:
    assert "a process per side" in names(Setup(processes=1)) and "a process per side" not in names()
    seen = find("one GPU visible per process", Setup(visibility="both"), {})
    assert seen.setup.visibility == "one" and seen.kind == "cause"
    assert seen.settings == (
        "prefill: export CUDA_VISIBLE_DEVICES=0",
        "decode: export CUDA_VISIBLE_DEVICES=1",
    )


def test_with_both_gpus_visible_each_side_lists_its_own_first() -> None:
    both = find("both GPUs visible per process", Setup(prefill_gpu=2, decode_gpu=5), {})
    assert both.settings == (
        "prefill: export CUDA_VISIBLE_DEVICES=2,5",
        "decode: export CUDA_VISIBLE_DEVICES=5,2",
    )


def test_nothing_is_proposed_that_is_so_already() -> None:
    environ = {"UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "on", "UCX_RMA_PPLN_ENABLE": "y"}
    found = names(environ=environ)
    assert "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on" not in found and "UCX_RMA_PPLN_ENABLE=y" not in found
    assert "kv_buffer_device=cpu" not in names(Setup(kv_buffer_device="cpu"))


def test_push_has_no_get_and_no_host_buffer() -> None:
    found = names(op="WRITE")
    assert "READ instead of WRITE" in found
    assert "UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on" not in found and "kv_buffer_device=cpu" not in found


def test_host_memory_has_no_gpu_suspects() -> None:
    found = names(Setup(memory="dram"), {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "UCX_TLS": "tcp"})
    assert found == ["without UCX_TLS", "WRITE instead of READ", "8 NIXL threads"]


def test_a_host_buffer_costs_the_prefill_side() -> None:
    found = suspects(Setup(), {}, "READ")
    assert [e.name for e in found if e.prefill_cost] == ["kv_buffer_device=cpu"]


def trial(kind: str, seconds: float | None, staging: float = 0.0) -> Trial:
    experiment = Experiment(name=f"{kind} {seconds}", kind=kind, setup=Setup(), explains="x", settings=())
    return Trial(experiment=experiment, seconds=seconds, samples=5, staging_seconds=staging)


def test_causes_come_before_faster_remedies() -> None:
    found = explanations(1.0, [trial("remedy", 0.1), trial("cause", 0.5), trial("cause", 0.2)])
    assert [t.experiment.name for t in found] == ["cause 0.2", "cause 0.5", "remedy 0.1"]


def test_staging_copies_count_and_a_failure_explains_nothing() -> None:
    assert explanations(0.5, [trial("remedy", 0.02, staging=0.48), trial("cause", None)]) == ()
    assert trial("cause", None).whole_seconds is None


def test_the_bar_is_half_as_fast_again() -> None:
    assert explanations(1.5, [trial("cause", 1.0)]) and not explanations(1.49, [trial("cause", 1.0)])
