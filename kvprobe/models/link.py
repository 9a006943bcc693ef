"""Rung 0: the most that the link between two GPUs can carry in one direction, from what the driver tells."""

from __future__ import annotations

import msgspec

from kvprobe.formats.nvml import Gpu, PairFacts, Pcie

# GT/s per lane and the share that is payload after line coding (8b/10b, 128b/130b, FLIT 236/256);
# PCI Express base specifications 1.1 to 6.0.
_PCIE = {
    1: (2.5e9, 8 / 10), 2: (5e9, 8 / 10), 3: (8e9, 128 / 130), 4: (16e9, 128 / 130), 5: (32e9, 128 / 130), 6: (64e9, 236 / 256),
}  # fmt: skip
# One direction of one link, NVIDIA's data sheets: P100, V100, A100, H100, B200. Used where NVML gives no speed.
_NVLINK = {"1.0": 20e9, "2.0": 25e9, "2.2": 25e9, "3.0": 25e9, "3.1": 25e9, "4.0": 25e9, "5.0": 50e9}


class LinkCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """One direction; None with a basis that says what is missing."""

    bytes_per_second: float | None
    basis: str
    """How it was computed, such as ``18 NVLinks x 26.562 GB/s``."""
    path: str
    """``nvlink``, ``pcie`` (peer to peer), ``host`` (through host memory) or ``unknown``."""


def pcie_bytes_per_second(generation: int | None, width: int | None) -> float | None:
    """One direction, after line coding, before packet headers."""
    if generation not in _PCIE or not width:
        return None
    rate, payload = _PCIE[generation]
    return rate * payload / 8 * width


def link_ceiling(
    gpu: Gpu, pair: PairFacts | None, peer: Gpu | None = None, *, access: str = "read"
) -> LinkCeiling:
    """The ceiling for ``gpu`` reading (or writing, ``access="write"``) the memory of its peer.

    NVLink where the pair has it, else PCIe, else the way through host memory. PCIe counts with its maximal
    generation (the current one drops at idle) and its current width (a lost lane stays lost).
    """
    status = "U" if pair is None else pair.access(access.upper())
    if pair is not None and status == "OK" and pair.nvlink == "OK" and gpu.nvlinks.active:
        return _nvlink(gpu, pair)
    sides = [g for g in (gpu, peer) if g is not None]
    rates = [pcie_bytes_per_second(g.pcie.generation_max, g.pcie.width) for g in sides]
    path = "pcie" if status == "OK" else "host" if status != "U" else "unknown"
    if path == "unknown" or not all(rates):
        missing = f"P2P {access} status" if path == "unknown" else "PCIe generation and width"
        return LinkCeiling(bytes_per_second=None, basis=f"the driver does not tell the {missing}", path=path)
    slowest = min(range(len(rates)), key=lambda i: rates[i] or 0)
    told = describe_pcie(sides[slowest].pcie)
    basis = f"{told}, peer to peer" if path == "pcie" else f"{told}, through host memory (P2P {status})"
    return LinkCeiling(bytes_per_second=rates[slowest], basis=basis, path=path)


def _nvlink(gpu: Gpu, pair: PairFacts) -> LinkCeiling:
    count = pair.nvlinks
    if count is None:
        basis = f"{gpu.nvlinks.active} NVLinks are up, how many lead to GPU{pair.b} is not told"
        return LinkCeiling(bytes_per_second=None, basis=basis, path="nvlink")
    speed, told = gpu.nvlinks.bytes_per_second_per_link, ""
    if speed is None:
        speed, told = (
            _NVLINK.get(gpu.nvlinks.version or ""),
            ", nominal for NVLink " + (gpu.nvlinks.version or "?"),
        )
    if speed is None:
        basis = f"{count} NVLinks of unknown speed"
        return LinkCeiling(bytes_per_second=None, basis=basis, path="nvlink")
    basis = f"{count} NVLinks x {speed / 1e9:.3f} GB/s{told}"
    return LinkCeiling(bytes_per_second=count * speed, basis=basis, path="nvlink")


def describe_pcie(pcie: Pcie) -> str:
    """``PCIe 5.0 x16``."""
    return f"PCIe {pcie.generation_max or '?'}.0 x{pcie.width or '?'}"
