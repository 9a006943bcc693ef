"""GPU lists: ``nvidia-smi -L``, the plain ``nvidia-smi`` box, ``nvidia-smi -q``, ``nvidia-smi nvlink -s``."""

from __future__ import annotations

import re

import msgspec

_L_LINE = re.compile(r"^GPU (\d+): (.+?)(?: \(UUID: ([^)]*)\))?\s*$")
_MIG_LINE = re.compile(r"^MIG (\S+)\s+Device\s+(\d+):(?: \(UUID: ([^)]*)\))?")
_BOX_LINE = re.compile(
    r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A|TCC|WDDM|Persistence-M)\s+\|\s*[0-9A-Fa-f]{4,8}:"
)
_BOX_MIG = re.compile(r"^\|[^|]*\|[^|]*\|\s+Enabled\*?\s+\|$")
_BOX_HEAD = re.compile(r"Driver Version\s*: ([\d.]+)(?:.*CUDA Version\s*: ([\d.]+))?")
_Q_GPU = re.compile(r"^GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$")
_Q_FIELD = re.compile(r"^(Attached GPUs|Product Name|GPU UUID|MIG Mode|Current|CUDA Version)\s*(?:: (.+))?$")
_NVLINK_LINE = re.compile(r"^Link (\d+): (?:([\d.]+) GB/s|<?inactive>?)", re.IGNORECASE)


class ListedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a list."""

    index: int
    name: str
    uuid: str | None = None
    mig_devices: tuple[str, ...] = ()
    mig_uuids: tuple[str, ...] = ()
    mig: bool = False
    """MIG mode is on, with or without devices in it."""


class ListReader:
    """Fed line by line with what belongs to no table."""

    def __init__(self) -> None:
        self.gpus: dict[int, ListedGpu] = {}
        self.nvlink_gigabytes: dict[int, list[float]] = {}
        self.driver: str | None = None
        self.cuda: str | None = None
        self._attached: int | None = None
        self._current: int | None = None
        self._section = ""

    def take(self, text: str) -> bool:
        """Whether the line (without indentation) was part of a list."""
        if match := _L_LINE.match(text):
            self._open(int(match[1]), match[2], match[3])
        elif match := _MIG_LINE.match(text):
            gpu = self.gpus.get(-1 if self._current is None else self._current)
            if gpu is not None:
                uuids = (*gpu.mig_uuids, match[3]) if match[3] else gpu.mig_uuids
                self._change(mig=True, mig_devices=(*gpu.mig_devices, match[1]), mig_uuids=uuids)
        elif match := _BOX_LINE.match(text):
            self._open(int(match[1]), match[2], None)
        elif _BOX_MIG.match(text):
            self._change(mig=True)
        elif _Q_GPU.match(text):
            self._open(len(self.gpus), "unknown", None)
        elif match := _NVLINK_LINE.match(text):
            if self._current is not None:
                rates = self.nvlink_gigabytes.setdefault(self._current, [])
                rates += [float(match[2])] if match[2] else []
        elif match := _BOX_HEAD.search(text):
            self.driver, self.cuda = match[1], match[2] or self.cuda
        elif match := _Q_FIELD.match(text):
            self._field(match[1], match[2])
        else:
            return False
        return True

    def found(self) -> tuple[ListedGpu, ...]:
        """All GPUs by index. ``nvidia-smi -q -i 1`` shows one section of several GPUs and not its number."""
        if self._attached and 0 < len(self.gpus) < self._attached <= 64:
            return tuple(ListedGpu(index=i, name="unknown") for i in range(self._attached))
        return tuple(self.gpus[i] for i in sorted(self.gpus))

    def _open(self, index: int, name: str, uuid: str | None) -> None:
        self._current = index
        known = self.gpus.get(index)
        if known is None or known.uuid is None:
            self.gpus[index] = ListedGpu(index=index, name=name, uuid=uuid, mig=known.mig if known else False)

    def _field(self, name: str, value: str | None) -> None:
        if name == "Attached GPUs" and value and value.isdecimal():
            self._attached = int(value)
        elif name == "CUDA Version" and value:
            self.cuda = value
        elif name == "Product Name" and value:
            self._change(name=value)
        elif name == "GPU UUID" and value:
            self._change(uuid=value)
        elif name == "Current" and self._section == "MIG Mode":
            self._change(mig=value == "Enabled")
        self._section = name

    def _change(self, **fields: object) -> None:
        gpu = self.gpus.get(-1 if self._current is None else self._current)
        if gpu is not None:
            self.gpus[gpu.index] = msgspec.structs.replace(gpu, **fields)
