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
_ALL = (
    NamedLink(name="nvlink3-a100", bytes_per_second=300e9, basis=NOMINAL, source=f"{_NVIDIA} (600 GB/s)"),
    NamedLink(name="nvlink4-h100", bytes_per_second=450e9, basis=NOMINAL, source=f"{_NVIDIA} (900 GB/s)"),
    NamedLink(name="nvlink5-b200", bytes_per_second=900e9, basis=NOMINAL, source=f"{_NVIDIA} (1.8 TB/s)"),
    NamedLink(
        name="nvlink4-h100-copy",
        bytes_per_second=378e9,
        basis=PUBLISHED,
        source="raw peer copy, 376 to 380 GB/s: https://github.com/NVIDIA/nccl/issues/1264",
    ),
    NamedLink(
        name="nvlink4-h200-copy",
        bytes_per_second=385e9,
        basis=MEASURED,
        source="raw peer copy on 2x H200, driver 580 (recorded 2026-11-29)",
    ),
    NamedLink(
        name="pcie4-x16", bytes_per_second=31.5e9, basis=NOMINAL, source="PCIe 4.0: 16 GT/s x 16, 128b/130b"
    ),
    NamedLink(
        name="pcie5-x16", bytes_per_second=63.0e9, basis=NOMINAL, source="PCIe 5.0: 32 GT/s x 16, 128b/130b"
    ),
    NamedLink(
        name="pcie5-x16-copy",
        bytes_per_second=49e9,
        basis=PUBLISHED,
        source="peer copy, 49 to 50 GB/s: https://github.com/vllm-project/vllm/issues/52607",
    ),
    NamedLink(name="xdr-800g", bytes_per_second=100e9, basis=NOMINAL, source="InfiniBand XDR, 800 Gb/s"),
    NamedLink(name="ndr-400g", bytes_per_second=50e9, basis=NOMINAL, source="InfiniBand NDR, 400 Gb/s"),
    NamedLink(name="hdr-200g", bytes_per_second=25e9, basis=NOMINAL, source="InfiniBand HDR, 200 Gb/s"),
    NamedLink(
        name="ndr-400g-nixl",
        bytes_per_second=47.2e9,
        basis=PUBLISHED,
        source="NIXL in pieces of 16 MiB (4.9 GB/s in pieces of 64 KiB): https://github.com/NVIDIA/cloudai/pull/550",
    ),
    NamedLink(name="roce-400g", bytes_per_second=50e9, basis=NOMINAL, source="400 Gb/s Ethernet"),
    NamedLink(name="roce-200g", bytes_per_second=25e9, basis=NOMINAL, source="200 Gb/s Ethernet"),
    NamedLink(name="roce-100g", bytes_per_second=12.5e9, basis=NOMINAL, source="100 Gb/s Ethernet"),
    NamedLink(
        name="roce-400g-nixl",
        bytes_per_second=42.6e9,
        basis=PUBLISHED,
        source="NIXL in pieces of 16 MiB, host memory: https://github.com/ai-dynamo/nixl/issues/1647",
    ),
    NamedLink(name="ethernet-25g", bytes_per_second=3.125e9, basis=NOMINAL, source="25 Gb/s Ethernet"),
    NamedLink(name="ethernet-10g", bytes_per_second=1.25e9, basis=NOMINAL, source="10 Gb/s Ethernet"),
    NamedLink(
        name="gcp-a3-mega-tcpxo",
        bytes_per_second=22.96e9,
        basis=PUBLISHED,
        source="READ in pieces of 64 MiB: https://github.com/ai-dynamo/nixl/issues/2276",
    ),
    NamedLink(
        name="ucx-emulation",
        bytes_per_second=0.36e9,
        basis=MEASURED,
        source="UCX software emulation over TCP without cuda_ipc, 0.36 to 0.43 GB/s whatever the descriptors, on 2x "
        "H200 (recorded 2026-11-29)",
        includes_descriptors=True,
    ),
)  # fmt: skip
LINKS = {link.name: link for link in _ALL}
