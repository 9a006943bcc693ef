"""Links by name: what is sold, and what was measured or published; one direction, bytes per second, each with its source.

A nominal rate is a ceiling that no transfer reaches. A measured one holds for the pieces it was measured with.
"""

from __future__ import annotations

import msgspec

NOMINAL, MEASURED, PUBLISHED = "nominal", "measured", "published"


class NamedLink(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one link of one GPU."""

    name: str
    bytes_per_second: float
    basis: str
    """``nominal`` (sold), ``measured`` (recorded with kvprobe's own tools) or ``published`` (by others)."""
    source: str
    includes_descriptors: bool = False
    """The rate was measured on vLLM's own descriptor lists and the bytes dominate: no further descriptor term."""


_NVIDIA = "NVIDIA data sheet, half of the bidirectional figure"
_H200 = "2x H200, NIXL 1.5.1, driver 580 (recorded 2026-11-29)"
_GITHUB = "https://github.com"
_ROWS = (
    ("nvlink3-a100", 300e9, NOMINAL, f"{_NVIDIA} (600 GB/s)"),
    ("nvlink4-h100", 450e9, NOMINAL, f"{_NVIDIA} (900 GB/s)"),
    ("nvlink5-b200", 900e9, NOMINAL, f"{_NVIDIA} (1.8 TB/s)"),
    ("nvlink4-h100-copy", 378e9, PUBLISHED, f"raw peer copy, 376 to 380 GB/s: {_GITHUB}/NVIDIA/nccl/issues/1264"),
    ("nvlink4-h200-copy", 385e9, MEASURED, f"raw peer copy on {_H200}"),
    ("pcie4-x16", 31.5e9, NOMINAL, "PCIe 4.0: 16 GT/s x 16, 128b/130b"),
    ("pcie5-x16", 63.0e9, NOMINAL, "PCIe 5.0: 32 GT/s x 16, 128b/130b"),
    ("pcie5-x16-copy", 49e9, PUBLISHED, f"peer copy, 49 to 50 GB/s: {_GITHUB}/vllm-project/vllm/issues/52607"),
    ("xdr-800g", 100e9, NOMINAL, "InfiniBand XDR, 800 Gb/s"),
    ("ndr-400g", 50e9, NOMINAL, "InfiniBand NDR, 400 Gb/s"),
    ("ndr-400g-nixl", 47.2e9, PUBLISHED, f"NIXL in pieces of 16 MiB (64 KiB: 4.9 GB/s): {_GITHUB}/NVIDIA/cloudai/pull/550"),
    ("hdr-200g", 25e9, NOMINAL, "InfiniBand HDR, 200 Gb/s"),
    ("roce-400g", 50e9, NOMINAL, "400 Gb/s Ethernet"),
    ("roce-400g-nixl", 42.6e9, PUBLISHED, f"NIXL in pieces of 16 MiB, host memory: {_GITHUB}/ai-dynamo/nixl/issues/1647"),
    ("roce-200g", 25e9, NOMINAL, "200 Gb/s Ethernet"),
    ("roce-100g", 12.5e9, NOMINAL, "100 Gb/s Ethernet"),
    ("ethernet-25g", 3.125e9, NOMINAL, "25 Gb/s Ethernet"),
    ("ethernet-10g", 1.25e9, NOMINAL, "10 Gb/s Ethernet"),
    ("gcp-a3-mega-tcpxo", 22.96e9, PUBLISHED, f"READ in pieces of 64 MiB: {_GITHUB}/ai-dynamo/nixl/issues/2276"),
)  # fmt: skip
_EMULATION = NamedLink(
    name="ucx-emulation",
    bytes_per_second=0.36e9,
    basis=MEASURED,
    source=f"UCX software emulation over TCP without cuda_ipc, 0.36 to 0.43 GB/s whatever the descriptors, on {_H200}",
    includes_descriptors=True,
)
LINKS = {
    link.name: link
    for link in (
        *(NamedLink(name=n, bytes_per_second=r, basis=b, source=s) for n, r, b, s in _ROWS),
        _EMULATION,
    )
}
