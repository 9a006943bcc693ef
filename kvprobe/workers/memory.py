"""Registered memory of a transfer worker: regions in DRAM (numpy) or VRAM (torch), filled so that bytes can be verified.

Word ``i`` of region ``r`` holds ``r * 1000003 + i`` (mod 2**32), so a block that lands in the wrong place, or not at
all, cannot look right.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kvprobe.workers.base import WorkerFailure

_REGION_SALT = 1_000_003
_CHUNK_WORDS = 4 << 20


class Piece(NamedTuple):
    """The part of a block that moved, where the two sides' blocks differ; bytes."""

    size: int
    my_offset: int
    their_stride: int
    their_offset: int
    pattern: int
    """What the peer filled its regions with; see :meth:`Memory.fill`."""


class Memory(Protocol):
    """Equal regions; addresses in bytes."""

    segment: str
    """NIXL's name: ``DRAM`` or ``VRAM``."""
    device: int
    staged: bool
    """True: what is registered is a copy in host memory (``kv_buffer_device=cpu``)."""

    def allocate(self, size_bytes: int) -> None:
        """Add one region."""

    def addresses(self) -> list[int]: ...

    def fill(self, pattern: int = 0) -> None:
        """Write the pattern into every region; ``pattern`` is added to each word, to tell several peers apart."""

    def clear(self) -> None:
        """Zero every region."""

    def mismatches(
        self, region: int, block_bytes: int, mine: list[int], theirs: list[int], piece: Piece | None = None
    ) -> int:
        """Words of this side's blocks ``mine`` that differ from the peer's pattern in blocks ``theirs``.

        ``piece``: only that part of each block is looked at.
        """

    def facts(self) -> dict[str, Any]: ...


class DramMemory:
    """Host memory, touched before it is registered."""

    segment = "DRAM"
    device = 0
    staged = False

    def __init__(self) -> None:
        import numpy

        self._np = numpy
        self._regions: list[Any] = []

    def allocate(self, size_bytes: int) -> None:
        self._regions.append(self._np.empty(size_bytes // 4, dtype=self._np.uint32))

    def addresses(self) -> list[int]:
        return [region.ctypes.data for region in self._regions]

    def fill(self, pattern: int = 0) -> None:
        np = self._np
        for number, region in enumerate(self._regions):
            for start in range(0, len(region), _CHUNK_WORDS):
                end = min(len(region), start + _CHUNK_WORDS)
                first = number * _REGION_SALT + pattern
                region[start:end] = np.arange(first + start, first + end, dtype=np.int64).astype(np.uint32)

    def clear(self) -> None:
        for region in self._regions:
            region.fill(0)

    def mismatches(
        self, region: int, block_bytes: int, mine: list[int], theirs: list[int], piece: Piece | None = None
    ) -> int:
        np = self._np
        words = block_bytes // 4
        part = piece or Piece(block_bytes, 0, block_bytes, 0, 0)
        view = self._regions[region]
        view = view[: len(view) // words * words].reshape(-1, words)
        view = view[:, part.my_offset // 4 : (part.my_offset + part.size) // 4]
        ramp = np.arange(part.size // 4, dtype=np.uint32)
        start_word = part.their_offset // 4 + region * _REGION_SALT + part.pattern
        bad = 0
        step = max(1, _CHUNK_WORDS // words)
        for start in range(0, len(mine), step):
            got = view[np.asarray(mine[start : start + step])]
            first = (
                np.asarray(theirs[start : start + step], dtype=np.int64) * (part.their_stride // 4)
                + start_word
            )
            bad += int((got != first.astype(np.uint32)[:, None] + ramp).sum())
        return bad

    def facts(self) -> dict[str, Any]:
        return {"memory": "dram"}


class VramMemory:
    """GPU memory from torch's allocator, one tensor a region, as vLLM allocates its caches."""

    segment = "VRAM"
    staged = False

    def __init__(self, device: int) -> None:
        try:
            import torch
        except ImportError:
            raise WorkerFailure(
                "torch is not installed in this environment.", "pip install 'kvprobe[gpu]'"
            ) from None
        if not torch.cuda.is_available() or device >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise WorkerFailure(f"torch sees {count} CUDA device(s); device {device} is not among them.")
        self._torch = torch
        self.device = device
        torch.cuda.set_device(device)
        # A current primary context must exist before the agent: UCX looks for it when it registers.
        self._target = torch.device("cuda", device)
        torch.zeros(1, device=self._target)
        self._regions: list[Any] = []

    def allocate(self, size_bytes: int) -> None:
        torch = self._torch
        try:
            self._regions.append(torch.zeros(size_bytes // 4, dtype=torch.int32, device=self._target))
        except torch.cuda.OutOfMemoryError:
            free = torch.cuda.mem_get_info(self._target)[0]
            raise WorkerFailure(
                f"GPU memory ran out after {len(self._regions)} regions; {free / 2**20:,.0f} MiB are free.",
                "Free the GPU, or use --max-memory to measure with less.",
            ) from None

    def addresses(self) -> list[int]:
        return [region.data_ptr() for region in self._regions]

    def fill(self, pattern: int = 0) -> None:
        torch = self._torch
        for number, region in enumerate(self._regions):
            first = _wrap(number * _REGION_SALT + pattern)
            region.copy_(torch.arange(region.numel(), dtype=torch.int32, device=self._target) + first)
        torch.cuda.synchronize(self._target)

    def clear(self) -> None:
        for region in self._regions:
            region.zero_()
        self._torch.cuda.synchronize(self._target)

    def mismatches(
        self, region: int, block_bytes: int, mine: list[int], theirs: list[int], piece: Piece | None = None
    ) -> int:
        torch = self._torch
        words = block_bytes // 4
        part = piece or Piece(block_bytes, 0, block_bytes, 0, 0)
        flat = self._regions[region]
        view = flat[: flat.numel() // words * words].view(-1, words)
        view = view[:, part.my_offset // 4 : (part.my_offset + part.size) // 4]
        ramp = torch.arange(part.size // 4, dtype=torch.int32, device=self._target)
        start_word = part.their_offset // 4 + region * _REGION_SALT + part.pattern
        bad = 0
        step = max(1, 8 * _CHUNK_WORDS // words)
        for start in range(0, len(mine), step):
            got = view[torch.as_tensor(mine[start : start + step], device=self._target)]
            index = torch.as_tensor(theirs[start : start + step], dtype=torch.int64, device=self._target)
            first = (index * (part.their_stride // 4) + start_word).to(torch.int32)
            bad += int((got != first[:, None] + ramp[None, :]).sum().item())
        return bad

    def facts(self) -> dict[str, Any]:
        torch = self._torch
        return {
            "memory": "vram",
            "gpu_name": torch.cuda.get_device_name(self._target),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "allocator": torch.cuda.get_allocator_backend(),
        }


class StagedMemory(VramMemory):
    """GPU regions with a host buffer each: NIXL moves the buffers, as with vLLM's ``kv_buffer_device=cpu``.

    The copies are vLLM's own way of doing it: gather on the device, one pageable copy, scatter on the host, a
    region at a time (vllm/platforms/cuda.py swap_out_blocks_to_host, insert_blocks_to_device).
    """

    segment = "DRAM"
    staged = True

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.device = 0
        # 8 threads scatter 448 MiB in 65 ms on a 32-core host; with all 32, beside NIXL's spinning threads, in 230 ms.
        self._torch.set_num_threads(min(8, max(1, self._torch.get_num_threads() // 2)))
        self._buffers: list[Any] = []

    def allocate(self, size_bytes: int) -> None:
        super().allocate(size_bytes)
        self._buffers.append(self._torch.zeros(size_bytes // 4, dtype=self._torch.int32))

    def addresses(self) -> list[int]:
        return [buffer.data_ptr() for buffer in self._buffers]

    def clear(self) -> None:
        super().clear()
        for buffer in self._buffers:
            buffer.zero_()

    def copy_blocks(self, region: int, block_bytes: int, blocks: list[int], *, to_host: bool) -> None:
        """Copy blocks of one region between device and host buffer."""
        words = block_bytes // 4
        flat, buffer = self._regions[region], self._buffers[region]
        whole = flat.numel() // words * words
        device, host = flat[:whole].view(-1, words), buffer[:whole].view(-1, words)
        index = self._torch.as_tensor(blocks)
        if to_host:
            host[index] = device[index.to(self._target)].cpu()
        else:
            device[index.to(self._target)] = host[index].to(self._target)

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._target)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "memory": "vram through a host buffer"}


def _wrap(value: int) -> int:
    """``value`` as a signed 32-bit integer."""
    return (value + 2**31) % 2**32 - 2**31


def make_memory(kind: str, device: int) -> Memory:
    """``dram``, ``vram``, or ``staged`` (VRAM behind a host buffer)."""
    if kind == "staged":
        return StagedMemory(device)
    return VramMemory(device) if kind == "vram" else DramMemory()
