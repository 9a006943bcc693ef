"""Asks NVML about every GPU and every ordered pair; raw numbers out, no judgement.

In a process of its own because a driver in trouble hangs inside the library instead of returning.
"""

from __future__ import annotations

from typing import Any

from kvprobe.workers.base import Worker, WorkerFailure, main

# nvidia-ml-py's NVML_P2P_CAPS_INDEX_READ is the tuple (0,): a stray comma there, so plain integers here.
_P2P_CAPABILITIES = {"r": 0, "w": 1, "n": 2, "a": 3, "p": 4}
_FIELD_LINK_COUNT = 91
_FIELD_LINK_SPEED_COMMON = 90
_FIELD_LINK_SPEED = 164
_MAX_LINKS = 36
# nvmlMemory_v2_t: the plain call counts the driver's own reserve as used, and an idle GPU looks busy.
_MEMORY_V2 = 0x02000028
_VALUE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class _Nvml:
    """One NVML call by name; None where this driver, GPU or pynvml does not have it."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, function: str, *args: Any) -> Any:
        found = getattr(self.module, function, None)
        if found is None:
            return None
        try:
            value = found(*args)
        except (self.module.NVMLError, TypeError, ValueError):
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def field(self, handle: Any, number: int, scope: int | None = None) -> int | None:
        values = self("nvmlDeviceGetFieldValues", handle, [number if scope is None else (number, scope)])
        if not values or values[0].nvmlReturn != 0 or values[0].valueType not in _VALUE:
            return None
        return int(getattr(values[0].value, _VALUE[values[0].valueType]))


def look(worker: Worker) -> dict[str, Any]:
    """``{driver, cuda, nvml, gpus: [...], pairs: [...]}`` in NVML's own units and codes; None = NVML does not say."""
    try:
        import pynvml
    except ImportError:
        raise WorkerFailure(
            "The Python package nvidia-ml-py is not installed.", "pip install nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise WorkerFailure(f"nvml:{error.value}:{error}") from None
    ask = _Nvml(pynvml)
    return {
        "driver": ask("nvmlSystemGetDriverVersion"),
        "cuda": ask("nvmlSystemGetCudaDriverVersion_v2"),
        "nvml": ask("nvmlSystemGetNVMLVersion"),
        "gpus": [_gpu(ask, index, handle) for index, handle in enumerate(handles)],
        "pairs": [
            {
                "a": a,
                "b": b,
                "p2p": {
                    letter: ask("nvmlDeviceGetP2PStatus", x, y, i) for letter, i in _P2P_CAPABILITIES.items()
                },
                "ancestor": ask("nvmlDeviceGetTopologyCommonAncestor", x, y),
            }
            for a, x in enumerate(handles)
            for b, y in enumerate(handles)
            if a != b
        ],
    }


def _gpu(ask: _Nvml, index: int, handle: Any) -> dict[str, Any]:
    memory = ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2) or ask("nvmlDeviceGetMemoryInfo", handle)
    use, mig = ask("nvmlDeviceGetUtilizationRates", handle), ask("nvmlDeviceGetMigMode", handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    return {
        "index": index,
        "name": ask("nvmlDeviceGetName", handle),
        "uuid": ask("nvmlDeviceGetUUID", handle),
        "bus": _bus(ask("nvmlDeviceGetPciInfo", handle)),
        "memory": [memory.total, memory.used, memory.free] if memory else None,
        "utilisation": use.gpu if use else None,
        "capability": list(capability) if capability else None,
        "mig": mig[0] if mig else None,
        "pcie": [
            ask(f"nvmlDeviceGet{which}PcieLink{what}", handle)
            for what in ("Generation", "Width")
            for which in ("Curr", "Max")
        ],
        "links": _links(ask, handle),
    }


def _links(ask: _Nvml, handle: Any) -> list[dict[str, Any]]:
    found = []
    for link in range(min(ask.field(handle, _FIELD_LINK_COUNT) or _MAX_LINKS, _MAX_LINKS)):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        speed = ask.field(handle, _FIELD_LINK_SPEED, link) or ask.field(handle, _FIELD_LINK_SPEED_COMMON)
        found.append(
            {
                "state": state,
                "version": ask("nvmlDeviceGetNvLinkVersion", handle, link),
                "remote_type": ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
                "remote_bus": _bus(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)),
                "mbps": speed,
            }
        )
    return found


def _bus(pci: Any) -> str | None:
    bus = getattr(pci, "busId", None)
    return bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus


if __name__ == "__main__":
    main(look)
