"""Stands in for nvidia-ml-py: answers as two H200 behind an NVSwitch did (recorded 2026-11-29, driver 580.159.04).

STANDIN_NVML chooses a machine: ``h200`` (default), ``refused`` (no P2P, no NVLink, half the lanes), ``no-driver``,
``no-gpu``, ``hang``.
"""

import os
import time
from types import SimpleNamespace

MACHINE = os.environ.get("STANDIN_NVML", "h200")
NVML_P2P_CAPS_INDEX_READ = (0,)  # the trap of the real module


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__({12: "NVML Shared Library Not Found", 3: "Not Supported"}[value])
        self.value = value


def nvmlInit():
    if MACHINE == "hang":
        time.sleep(60)
    if MACHINE == "no-driver":
        raise NVMLError(12)


def nvmlDeviceGetCount():
    return 0 if MACHINE == "no-gpu" else 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlSystemGetDriverVersion():
    return b"580.159.04"


def nvmlSystemGetCudaDriverVersion_v2():
    return 13000


def nvmlSystemGetNVMLVersion():
    return "13.580.159.04"


def nvmlDeviceGetP2PStatus(a, b, capability):
    if MACHINE == "refused":
        return 5
    return {0: 0, 1: 0, 2: 0, 3: 0, 4: 5}[capability]


def nvmlDeviceGetTopologyCommonAncestor(a, b):
    return 30


def nvmlDeviceGetName(handle):
    return "NVIDIA H200"


def nvmlDeviceGetUUID(handle):
    return f"GPU-0000000{handle}-0000-4000-8000-00000000000{handle}"


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=f"00000000:00:0{6 + handle}.0")


def nvmlDeviceGetMemoryInfo(handle, version=None):
    used = 0 if version == 0x02000028 else 600 * 1024**2
    return SimpleNamespace(total=150754820096, used=used, free=150754820096 - used)


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=7, memory=0)


def nvmlDeviceGetMigMode(handle):
    return [0, 0]


def nvmlDeviceGetCudaComputeCapability(handle):
    return (9, 0)


def _five(handle):
    return 5


def _sixteen(handle):
    return 16


nvmlDeviceGetCurrPcieLinkGeneration = nvmlDeviceGetMaxPcieLinkGeneration = _five
nvmlDeviceGetMaxPcieLinkWidth = _sixteen


def nvmlDeviceGetCurrPcieLinkWidth(handle):
    return 8 if MACHINE == "refused" else 16


def nvmlDeviceGetNvLinkState(handle, link):
    if link >= 18 or MACHINE == "refused":
        raise NVMLError(3)
    return 1


def nvmlDeviceGetNvLinkVersion(handle, link):
    return 6


def nvmlDeviceGetNvLinkRemoteDeviceType(handle, link):
    return 2


def nvmlDeviceGetNvLinkRemotePciInfo(handle, link):
    return SimpleNamespace(busId=b"FFFFFFFF:FF:FF.0")


def nvmlDeviceGetFieldValues(handle, fields):
    (field,) = fields
    if field == 91:
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=18))]
    if isinstance(field, tuple) and field[0] == 164:
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=26562))]
    return [SimpleNamespace(nvmlReturn=3, valueType=1, value=None)]
