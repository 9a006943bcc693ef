from __future__ import annotations

import pytest

from kvprobe.formats.nvml import Gpu, NvLinks, PairFacts, Pcie
from kvprobe.models.link import link_ceiling, pcie_bytes_per_second


def gpu(index: int, *, width: int = 16, generation: int | None = 4, links: NvLinks | None = None) -> Gpu:
    pcie = Pcie(generation=1, generation_max=generation, width=width, width_max=16)
    return Gpu(index=index, cuda_index=index, name="L40S", uuid=f"GPU-{index}", pci_bus="", pcie=pcie, nvlinks=links or NvLinks())  # fmt: skip


@pytest.mark.parametrize(
    ("generation", "width", "expected"),
    [(3, 16, 15.75e9), (4, 16, 31.5e9), (5, 16, 63.0e9), (1, 1, 0.25e9)],
)
def test_pcie_payload_rate(generation: int, width: int, expected: float) -> None:
    assert pcie_bytes_per_second(generation, width) == pytest.approx(expected, rel=1e-3)


def test_unknown_generation_is_not_zero() -> None:
    assert pcie_bytes_per_second(None, 16) is None
    assert pcie_bytes_per_second(9, 16) is None
    told = link_ceiling(gpu(0, generation=None), PairFacts(a=0, b=1, read="OK", write="OK", nvlink="NS"))
    assert told.bytes_per_second is None
    assert "does not tell" in told.basis


def test_peer_to_peer_over_pcie_takes_the_narrower_side() -> None:
    pair = PairFacts(a=1, b=0, read="OK", write="OK", nvlink="NS")
    told = link_ceiling(gpu(1), pair, gpu(0, width=8))
    assert told.path == "pcie"
    assert told.bytes_per_second == pytest.approx(15.75e9, rel=1e-3)
    assert told.basis == "PCIe 4.0 x8, peer to peer"


def test_refused_p2p_goes_through_host_memory() -> None:
    pair = PairFacts(a=1, b=0, read="NS", write="OK", nvlink="NS")
    assert link_ceiling(gpu(1), pair).path == "host"
    assert "P2P NS" in link_ceiling(gpu(1), pair).basis
    assert link_ceiling(gpu(1), pair, access="write").path == "pcie"


def test_unknown_status_gives_no_ceiling() -> None:
    assert link_ceiling(gpu(0), None).bytes_per_second is None
    assert link_ceiling(gpu(0), PairFacts(a=0, b=1)).path == "unknown"


def test_nvlink_without_a_speed_is_nominal_and_says_so() -> None:
    pair = PairFacts(a=0, b=1, read="OK", nvlink="OK", nvlinks=12)
    told = link_ceiling(gpu(0, links=NvLinks(active=12, version="3.0")), pair)
    assert told.bytes_per_second == 12 * 25e9
    assert "nominal for NVLink 3.0" in told.basis
    unknown = link_ceiling(gpu(0, links=NvLinks(active=12)), pair)
    assert unknown.bytes_per_second is None
    uncounted = PairFacts(a=0, b=1, read="OK", nvlink="OK", nvlinks=None)
    assert link_ceiling(gpu(0, links=NvLinks(active=12, version="3.0")), uncounted).bytes_per_second is None
