"""Which GPUs are here and what they may do with each other, told by NVML."""

from __future__ import annotations

from kvprobe.errors import ProbeError
from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.nvml import Gpu, GpuFacts, PairFacts, read_nvml
from kvprobe.processes import WorkerJob, WorkerOutcome
from kvprobe.system import System

__all__ = ["Gpu", "GpuFacts", "PairFacts", "look", "require_pair"]

_DEADLINE_SECONDS = 30.0
_VENDORS = {
    "0x1002": "AMD",
    "0x8086": "Intel",
    "0x10de": "NVIDIA",
    "0x1da3": "Habana",
    "0x19e5": "Huawei Ascend",
}
_DEVICE_NODES = {
    "/dev/kfd": "AMD",
    "/dev/davinci_manager": "Huawei Ascend",
    "/dev/hl0": "Habana",
}
_NVIDIA_NODES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
# nvmlReturn_t, https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED, _VERSION_MISMATCH, _NO_PERMISSION = 12, 9, 18, 4


def look(system: System) -> Evidence[GpuFacts]:
    """Every GPU of this machine and the P2P status of every ordered pair.

    Raises ProbeError with the next step: no driver, no NVML, another vendor's GPU, no GPU, a driver that hangs.
    """
    environ = system.environ(["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
    job = WorkerJob(name="nvml", module="kvprobe.workers.nvml")
    (outcome,) = system.run_workers([job], deadline_seconds=_DEADLINE_SECONDS, key={"probe": "nvml"})
    if outcome.result is None:
        raise _explain(system, outcome)
    facts = read_nvml(outcome.result, environ)
    if not facts.gpus:
        raise ProbeError(
            "The NVIDIA driver runs but shows no GPU.",
            "In a container: start it with GPUs (--gpus all, or a nvidia.com/gpu limit). On the host: look for Xid errors in dmesg.",
            ("nvidia-smi -L", "dmesg | grep -i -e nvrm -e xid"),
        )
    return Evidence(
        id="gpus",
        kind="gpus",
        origin=Origin.READ,
        source="NVML",
        facts=facts,
        at=system.now().isoformat(timespec="seconds"),
        versions={
            k: v for k, v in (("driver", facts.driver), ("cuda", facts.cuda), ("nvml", facts.nvml)) if v
        },
    )


def require_pair(facts: GpuFacts, prefill: int, decode: int) -> tuple[Gpu, Gpu]:
    """The two GPUs by CUDA ordinal. Raises ProbeError for a single GPU, an ordinal that is not there, twice the same."""
    seen = facts.visible
    hidden = len(facts.gpus) - len(seen)
    if len(seen) < 2:
        where = f" CUDA_VISIBLE_DEVICES={facts.cuda_visible_devices} hides {hidden} more." if hidden else ""
        raise ProbeError(
            f"Only {len(seen)} GPU is visible here; a prefill/decode pair needs two.{where}",
            "Give this process both GPUs (--gpus all, CUDA_VISIBLE_DEVICES), or measure across two nodes with `kvprobe transfer --listen`.",
        )
    for role, ordinal in (("prefill", prefill), ("decode", decode)):
        if facts.cuda_gpu(ordinal) is None:
            names = ", ".join(str(g.cuda_index) for g in seen)
            raise ProbeError(
                f"The {role} GPU {ordinal} is not here; visible are {names}.",
                f"Choose another with --{role}-gpu.",
            )
    if prefill == decode:
        raise ProbeError(
            f"Prefill and decode are both GPU {prefill}; no bytes would cross a link.", "Choose two GPUs."
        )
    first, second = facts.cuda_gpu(prefill), facts.cuda_gpu(decode)
    assert first is not None and second is not None
    return first, second


def _explain(system: System, outcome: WorkerOutcome) -> ProbeError:
    reason = outcome.error or "The NVML worker gave no answer."
    if outcome.error_kind == "timeout":
        return ProbeError(
            f"The NVIDIA driver did not answer within {_DEADLINE_SECONDS:.0f} s.",
            "A GPU may have fallen off the bus: look for Xid errors, reset it or reboot the node.",
            ("dmesg | grep -i -e nvrm -e xid",),
        )
    if not reason.startswith("nvml:"):
        return ProbeError(reason, outcome.remedy)
    _, code, text = reason.split(":", 2)
    if int(code) == _VERSION_MISMATCH:
        return ProbeError(
            "The NVIDIA library and the loaded kernel driver have different versions (the driver was updated).",
            "Reboot, or reload the nvidia kernel modules.",
        )
    if int(code) == _NO_PERMISSION:
        return ProbeError("This user may not open the NVIDIA devices.", "Check the rights of /dev/nvidia*.", ("ls -l /dev/nvidia*",))  # fmt: skip
    if int(code) not in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED):
        return ProbeError(f"NVML could not start: {text}.", "Does nvidia-smi work here?", ("nvidia-smi -L",))
    others = _other_vendors(system)
    if "NVIDIA" in others or any(system.path_kind(p) != "absent" for p in _NVIDIA_NODES):
        return ProbeError(
            "There is an NVIDIA GPU, but its library libnvidia-ml.so.1 or its driver is not usable here.",
            "In a container: start it with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility. On the host: install the driver.",
            ("nvidia-smi -L", "docker run --gpus all ..."),
        )
    if others:
        return ProbeError(
            f"The GPU here is from {' and '.join(others)}; kvprobe measures NVIDIA GPUs only.",
            "Run it on the NVIDIA node, or check the host-memory path with --memory dram.",
        )
    return ProbeError(
        "No NVIDIA driver is installed here, and no GPU was found.",
        "Run kvprobe on the GPU node, give `kvprobe topo --file` a saved nvidia-smi text, or check the host-memory path with `kvprobe preflight --memory dram`.",
    )


def _other_vendors(system: System) -> list[str]:
    found = {vendor for path, vendor in _DEVICE_NODES.items() if system.path_kind(path) != "absent"}
    for card in system.list_dir("/sys/class/drm"):
        if card.startswith("card") and card[4:].isdecimal():
            try:
                text = system.read_text(f"/sys/class/drm/{card}/device/vendor").strip()
            except ProbeError:
                continue
            if text in _VENDORS:
                found.add(_VENDORS[text])
    return sorted(found)
