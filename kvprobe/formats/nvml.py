"""NVML's numbers in words: GPUs, links and the P2P status of every ordered pair."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import FormatError

P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
"""nvmlGpuP2PStatus_t -> the word that ``nvidia-smi topo -p2p`` prints."""
ANCESTOR = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t -> the word of ``nvidia-smi topo -m``; INTERNAL is two GPUs on one board."""
NVLINK_VERSION = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
REMOTE = {0: "gpu", 1: "ibmnpu", 2: "switch"}


class Pcie(msgspec.Struct, frozen=True, kw_only=True):
    """PCIe generation and lanes; the current generation drops while the GPU idles."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


class NvLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The NVLinks of one GPU together."""

    active: int = 0
    inactive: int = 0
    version: str | None = None
    bytes_per_second_per_link: float | None = None
    """One direction; None where the driver does not tell."""
    remote: str | None = None
    """``switch``, ``gpu``, ``mixed``; None if unknown or no link."""
    remote_buses: tuple[str, ...] = ()
    """PCI bus of the GPU at the other end of each active link; only for links straight to a GPU."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the driver sees it, whatever CUDA_VISIBLE_DEVICES says."""

    index: int
    """As in nvidia-smi: order of the PCI bus."""
    cuda_index: int | None
    """Ordinal in a CUDA process started from here; None: hidden by CUDA_VISIBLE_DEVICES."""
    name: str
    uuid: str
    pci_bus: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilisation: float | None = None
    """0 to 1, over the driver's last sampling period."""
    compute_capability: str | None = None
    mig: bool | None = None
    pcie: Pcie = Pcie()
    nvlinks: NvLinks = NvLinks()

    @property
    def label(self) -> str:
        """``GPU2``, and ``GPU2 (cuda:0)`` where the two orders differ."""
        same = self.cuda_index is None or self.cuda_index == self.index
        return f"GPU{self.index}" if same else f"GPU{self.index} (cuda:{self.cuda_index})"


class PairFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What GPU ``a`` may do with the memory of GPU ``b``; words of ``nvidia-smi topo``, U = unknown."""

    a: int
    b: int
    read: str = "U"
    write: str = "U"
    nvlink: str = "U"
    atomics: str = "U"
    prop: str = "U"
    """P2P over PCIe (``-p2p p``); NS on NVSwitch machines whose read and write are OK."""
    ancestor: str | None = None
    nvlinks: int | None = None
    """Links between the two: all active ones through a switch; None if the driver does not name the other end."""

    def access(self, operation: str) -> str:
        """The word for ``a`` that READs, or WRITEs, the memory of ``b``."""
        return self.read if operation == "READ" else self.write


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs and all ordered pairs."""

    gpus: tuple[Gpu, ...]
    pairs: tuple[PairFacts, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    """Newest CUDA that the driver supports, such as ``13.0``."""
    nvml: str | None = None
    cuda_visible_devices: str | None = None
    cuda_order_certain: bool = True
    """False: different GPU models and no CUDA_DEVICE_ORDER=PCI_BUS_ID, so CUDA may count differently."""

    def pair(self, a: int, b: int) -> PairFacts | None:
        """What ``a`` may do with ``b``, by nvidia-smi index; None if there is no such pair."""
        return next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)

    def promises(self, prefill: int, decode: int, operation: str) -> bool | None:
        """Whether P2P is OK for the side that moves the bytes (READ: decode, WRITE: prefill); None: not known."""
        pair = self.pair(decode, prefill) if operation == "READ" else self.pair(prefill, decode)
        word = pair.access(operation) if pair else "U"
        return None if word == "U" else word == "OK"

    def gpu(self, index: int) -> Gpu | None:
        """By nvidia-smi index."""
        return next((g for g in self.gpus if g.index == index), None)

    def cuda_gpu(self, ordinal: int) -> Gpu | None:
        """By CUDA ordinal, the number that vLLM and torch use."""
        return next((g for g in self.gpus if g.cuda_index == ordinal), None)

    @property
    def visible(self) -> tuple[Gpu, ...]:
        """The GPUs that a CUDA process started from here sees, in its order."""
        seen = [g for g in self.gpus if g.cuda_index is not None]
        return tuple(sorted(seen, key=lambda g: g.cuda_index or 0))


def read_nvml(raw: dict[str, Any], environ: dict[str, str]) -> GpuFacts:
    """Facts from the answer of :mod:`kvprobe.workers.nvml`. Raises FormatError if it is not one."""
    try:
        return _read(raw, environ)
    except (LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise FormatError(f"The NVML worker's answer is damaged: {type(error).__name__} {error}.") from error


def _read(raw: dict[str, Any], environ: dict[str, str]) -> GpuFacts:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    order = cuda_order([str(g["uuid"]) for g in raw["gpus"]], visible)
    gpus = tuple(_gpu(g, order.get(g["index"])) for g in raw["gpus"])
    mixed = len({g.name for g in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    cuda = raw.get("cuda")
    return GpuFacts(
        gpus=gpus,
        pairs=tuple(_pair(p, gpus) for p in raw["pairs"]),
        driver=raw.get("driver"),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        nvml=raw.get("nvml"),
        cuda_visible_devices=visible,
        cuda_order_certain=not mixed,
    )


def cuda_order(uuids: list[str], visible: str | None) -> dict[int, int]:
    """nvidia-smi index -> CUDA ordinal under CUDA_VISIBLE_DEVICES (indices or UUID prefixes).

    As CUDA does it, the list ends at the first entry that names nothing.
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
    """
    if visible is None:
        return {i: i for i in range(len(uuids))}
    order: dict[int, int] = {}
    for text in (part.strip() for part in visible.split(",")):
        if text.isdecimal():
            hits = [int(text)] if int(text) < len(uuids) else []
        else:
            hits = [i for i, uuid in enumerate(uuids) if text.startswith("GPU-") and uuid.startswith(text)]
        if len(hits) != 1 or hits[0] in order:
            break
        order[hits[0]] = len(order)
    return order


def _gpu(raw: dict[str, Any], cuda_index: int | None) -> Gpu:
    total, used, free = raw.get("memory") or (None, None, None)
    generation, generation_max, width, width_max = raw.get("pcie") or (None,) * 4
    use, capability, mig = raw.get("utilisation"), raw.get("capability"), raw.get("mig")
    return Gpu(
        index=raw["index"],
        cuda_index=cuda_index,
        name=str(raw.get("name") or "unknown"),
        uuid=str(raw.get("uuid") or ""),
        pci_bus=str(raw.get("bus") or "").upper(),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=free,
        utilisation=None if use is None else use / 100,
        compute_capability=None if not capability else ".".join(str(part) for part in capability),
        mig=None if mig is None else bool(mig),
        pcie=Pcie(generation=generation, generation_max=generation_max, width=width, width_max=width_max),
        nvlinks=_nvlinks(raw.get("links") or []),
    )


def _nvlinks(raw: list[dict[str, Any]]) -> NvLinks:
    active = [link for link in raw if link["state"] == 1]
    kinds = {REMOTE.get(link.get("remote_type", -1)) for link in active}
    speeds = [link["mbps"] for link in active if link.get("mbps")]
    versions = {NVLINK_VERSION.get(link.get("version") or 0) for link in active} - {None}
    return NvLinks(
        active=len(active),
        inactive=len(raw) - len(active),
        version=max((v for v in versions if v), default=None),
        # The slowest link counts: stripes wait for each other.
        bytes_per_second_per_link=min(speeds) * 1e6 if speeds and len(speeds) == len(active) else None,
        remote=next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else None,
        remote_buses=tuple(
            link["remote_bus"].upper()
            for link in active
            if link.get("remote_type") == 0 and link.get("remote_bus")
        ),
    )


def _pair(raw: dict[str, Any], gpus: tuple[Gpu, ...]) -> PairFacts:
    a, b = gpus[raw["a"]], gpus[raw["b"]]
    words = {
        letter: "U" if code is None else P2P_STATUS.get(code, "U") for letter, code in raw["p2p"].items()
    }
    return PairFacts(
        a=a.index,
        b=b.index,
        read=words.get("r", "U"),
        write=words.get("w", "U"),
        nvlink=words.get("n", "U"),
        atomics=words.get("a", "U"),
        prop=words.get("p", "U"),
        ancestor=ANCESTOR.get(-1 if raw.get("ancestor") is None else raw["ancestor"]),
        nvlinks=_links_between(a, b, words.get("n", "U")),
    )


def _links_between(a: Gpu, b: Gpu, nvlink: str) -> int | None:
    """Behind an NVSwitch the far end never names the peer, so all active links count and the status decides."""
    if not a.nvlinks.active or nvlink in ("NS", "CNS", "GNS", "TNS", "DR"):
        return 0
    if a.nvlinks.remote == "switch":
        return min(a.nvlinks.active, b.nvlinks.active) if nvlink == "OK" else None
    direct = sum(bus == b.pci_bus for bus in a.nvlinks.remote_buses)
    return direct or None
