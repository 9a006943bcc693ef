"""What a transfer run says of itself: series, sent descriptors, transport, fit, the name of a set-up."""

from __future__ import annotations

import msgspec
import pytest

from kvprobe.models.transfer import Setup, Step, StepGroup
from tests.ladders import CUDA_IPC, EMULATED, series, transfer


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (Setup(), "vram 0->1"),
        (Setup(prefill_gpu=2, decode_gpu=3, visibility="both"), "vram 2->3, both GPUs visible"),
        (Setup(memory="dram", visibility="both"), "dram"),
        (Setup(env={"UCX_TLS": None, "A": "b"}), "vram 0->1, A=b, without UCX_TLS"),
        (Setup(backend={"num_threads": "8"}, processes=1), "vram 0->1, num_threads=8, one process"),
        (Setup(backend={}), "vram 0->1, backend defaults"),
        (Setup(kv_buffer_device="cpu"), "vram 0->1, kv_buffer_device=cpu"),
    ],
)
def test_a_setup_is_named_by_what_differs_from_vllm(setup: Setup, name: str) -> None:
    assert setup.name == name


def test_a_step_counts_what_it_moves() -> None:
    groups = (StepGroup(regions=28, descriptor_bytes=32768, blocks=512), StepGroup(regions=2, descriptor_bytes=10, blocks=3))  # fmt: skip
    step = Step(id="x", op="READ", order="shuffled", prompt_tokens=8192, groups=groups, in_flight=2)
    assert step.bytes == 2 * (469762048 + 60) and step.descriptors == 2 * (14336 + 6)
    assert step.shape == ((28, 32768), (2, 10))


def test_series_are_found_by_what_they_are() -> None:
    run = transfer(series(), series(tokens=512), series((), tokens=2048), series(op="WRITE", in_flight=2))
    found = run.find("READ", "shuffled")
    assert found is not None and found.prompt_tokens == 8192
    assert run.find("READ", "shuffled", 512) is not None
    assert run.find("READ", "shuffled", 2048) is None, "no warm sample is no series"
    assert run.find("WRITE", "shuffled", 8192) is None and run.find("WRITE", "shuffled", 8192, 2) is not None


def test_sent_descriptors_are_those_after_the_merge() -> None:
    assert series(order="contiguous").sent_descriptors == 28
    assert series(nixl_descriptors=None).sent_descriptors == 14336
    assert series(in_flight=3).sent_descriptors == 3 * 14336


def test_whole_seconds_add_the_copies_sample_by_sample() -> None:
    staged = series((0.02, 0.03, 0.04), stage_out_seconds=(0.1, 0.2, 0.1), stage_in_seconds=(0.1, 0.1, 0.1))
    assert staged.whole_seconds == pytest.approx(0.24)
    assert series((0.02,)).whole_seconds == 0.02 and series(()).whole_seconds is None


def test_the_transport_is_none_without_tables() -> None:
    assert transfer(series(), protocols=()).transport("READ") is None
    seen = transfer(series(), protocols=(CUDA_IPC, msgspec.structs.replace(EMULATED, count=20))).transport("READ")  # fmt: skip
    assert seen is not None and seen.emulated, "a fifth of the messages is enough"


def test_the_fit_takes_single_requests_of_one_operation() -> None:
    run = transfer(series(), series((0.0117,), tokens=2048), series((0.4,), op="WRITE"), series((0.2,), tokens=512, in_flight=4))  # fmt: skip
    fitted = run.fit("READ")
    assert fitted is not None and len(fitted.points) == 2
    assert transfer(series(())).fit("READ") is None


def test_one_transfer_is_no_fit() -> None:
    """Ctrl-C after the first series: 512 tokens must not tell how long 32,768 take."""
    assert transfer(series(tokens=512)).fit("READ") is None
    assert transfer(series(), series(op="WRITE")).fit("WRITE") is None
    assert transfer(series(tokens=512), series(tokens=512, order="contiguous")).fit("READ") is not None
