"""Cleans pasted terminal text and recognises what is no table: errors of nvidia-smi, other vendors' tools."""

from __future__ import annotations

import re

import msgspec

from kvprobe.errors import FormatError

# CSI and OSC sequences, their remains where the copy lost the escape character, and `cat -v` notation.
_ANSI = re.compile(
    r"(?:\x1b|\^\[)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\[\d{0,3}(?:;\d{1,3})*m"
)
_PREFIX = re.compile(
    r"^(?:\[\d+,\d+\]<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"  # kubectl --timestamps, CRI
    r"|(?:> )+)"  # quoted mail or Markdown
)
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060\r\x07"), None) | {
    0xA0: " ",
    0x2007: " ",
    0x202F: " ",
}


class ToolError(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the tool printed instead of an answer."""

    text: str
    """The tool's own words."""
    cause: str
    remedy: str
    line: int = 0


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Another vendor's tool."""

    tool: str
    vendor: str
    line: int
    text: str
    """The line that gave it away."""


_ASK_AGAIN = "Ask again with a capability letter: nvidia-smi topo -p2p r (letters r, w, n, a, p)."
_ERRORS: tuple[tuple[str, str, str], ...] = (
    (r"Option \"?-*p2p(?:status)?\"? is missing its value", "the capability letter is missing", _ASK_AGAIN),
    (r"Invalid p2p capability", "the capability letter is wrong", _ASK_AGAIN),
    (r"Invalid combination of input arguments", "this driver's nvidia-smi does not know these options (too old for topo -p2p r), or they exclude each other", _ASK_AGAIN),
    (r"The -i command line argument must be used in conjunction", "topo -m and topo -p2p r take no -i", _ASK_AGAIN),
    (r"Option \"?-\S+\"? is not (?:recognized|supported|valid)|(?:unrecognized|unknown|invalid) (?:option|argument)", "an option that this nvidia-smi does not know", _ASK_AGAIN),
    (r"^\s*Usage: nvidia-smi|^\s*topo -- Display topological", "the tool printed its help: it did not understand the options", _ASK_AGAIN),
    (r"No devices were found", "the driver runs but shows no GPU", "Start the container with GPUs (--gpus all, or a nvidia.com/gpu limit), or look for Xid errors in dmesg: a GPU may have fallen off the bus."),
    (r"couldn't communicate with the NVIDIA driver|No NVIDIA driver|NVIDIA driver is not loaded", "the NVIDIA driver is not loaded (login node, kernel update, nouveau)", "Run it on the GPU node, or install and load the driver."),
    (r"(?:Driver/library|NVML library) version mismatch|RM has detected an NVML/RM version mismatch", "the driver was updated under a running system: library and kernel module have different versions", "Reboot, or reload the nvidia kernel modules."),
    (r"couldn't find .*?(?:libnvidia-ml|NVML)|NVML Shared Library Not Found|error while loading shared libraries", "the library libnvidia-ml.so of the driver is not found", "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install the driver."),
    (r"GPU access blocked by the operating system", "the operating system blocks the GPU (WSL or MPS)", "Run it on the host that owns the GPU."),
    (r"GPU is lost|fallen off the bus|Unable to determine the device handle", "a GPU was lost", "Look for Xid errors in dmesg, then reset the GPU or reboot the node."),
    (r"Failed to initialize NVML: Unknown Error", "a container lost its devices (a reload of systemd or a cgroup change on the host does that), or the driver is in trouble", "Restart the container; if nvidia-smi fails on the host too, look for Xid errors in dmesg."),
    (r"Failed to initialize NVML", "NVML could not start: driver not usable from here", "Check the driver on the host, and that the container may open /dev/nvidia*."),
    (r"Insufficient Permissions|Permission denied", "this user may not ask the driver", "Run it as a user who may open /dev/nvidia*."),
    (r"nvidia-smi\S*:? (?:command )?not found|command not found: nvidia-smi|'?nvidia-smi'? is not recognized as|nvidia-smi\S*: No such file|exec: \\?\"nvidia-smi\\?\"", "nvidia-smi is not installed there", "Run it on the GPU node, in a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility."),
    (r"could not select device driver|OCI runtime (?:exec|create) failed|nvidia-container-cli: ", "the container did not start", "Install the NVIDIA container toolkit and start the container with GPUs."),
    (r"^(?:E\d+ |error: |Error from server)|unable to upgrade connection|pods? \"[^\"]+\" not found", "kubectl did not reach the pod", "Repeat the command in a running pod."),
    (r"(?:requested functionality|function|feature|operation) is (?:not supported|unsupported)|not supported on this (?:platform|system|OS)|topo\S* is not supported", "this driver or operating system has no topology query (Windows, vGPU)", "Run it on the Linux host."),
    (r"^(?:ERROR|Error|FATAL|Failed|Unable to|Cannot|Segmentation fault|Killed|Timeout|srun: error)\b", "the tool failed", "Repeat the command on the GPU node: nvidia-smi topo -p2p r"),
)  # fmt: skip
_COMPILED = tuple((re.compile(p, re.IGNORECASE if not p.startswith("^") else 0), c, r) for p, c, r in _ERRORS)

_FOREIGN: tuple[tuple[str, str, str], ...] = (
    ("amd-smi", "AMD", r"\bamd-smi\b|^(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:|AMDSMI Tool"),
    ("rocm-smi", "AMD", r"\brocm-smi\b|ROCm System Management Interface|(?:Weight|Hops|Link Type|Link accessibility) between two GPUs|\bXGMI\b|\bhy-smi\b"),
    ("xpu-smi", "Intel", r"\bxpu-smi\b|\bxpumcli\b|\bXeLink\b|\bXe Link\b|^\s*GPU \d+/\d+|\bXL\d+\b"),
    ("npu-smi", "Huawei Ascend", r"\bnpu-smi\b|\bHCCS(?:_SW)?\b|\bPhy-ID\d|^\s*NPU\d+\s+NPU\d+|\bAscend ?9\d\d"),
    ("hl-smi", "Intel Habana (Gaudi)", r"\bhl-smi\b|HL-SMI Version|\bHL-[23]\d\d\b|^\s*modID\s+CPU Affinity"),
    ("mthreads-gmi", "Moore Threads", r"\bmthreads-gmi\b|\bMTLink\b|Moore Threads"),
    ("cnmon", "Cambricon", r"\bcnmon\b|\bMLU-?Link\b|^\s*MLU\d+\s+MLU\d+"),
    ("mx-smi", "MetaX", r"\bmx-smi\b|MetaX System Management|\bMetaXLink\b"),
    ("ixsmi", "Iluvatar", r"\bixsmi\b|\bIX-ML\b|Iluvatar"),
    ("efsmi", "Enflame", r"\befsmi\b|Enflame"),
    ("brsmi", "Biren", r"\bbrsmi\b|\bBirentech\b"),
    ("xpu_smi", "Kunlunxin", r"\bxpu_smi\b|\bKunlun"),
    ("ppu-smi", "T-Head", r"\bppu-smi\b|\bPPU-SMI\b"),
    ("neuron-ls", "AWS Neuron", r"\bneuron-(?:ls|top)\b|\bNEURON (?:DEVICE|CORES)\b"),
    ("tt-smi", "Tenstorrent", r"\btt-smi\b|Tenstorrent"),
    ("tpu-info", "Google TPU", r"\btpu-info\b|^\s*TPU Chips"),
    ("another vendor's smi", "another vendor", r"(?:^|[\s/$#>])(?!nvidia)[a-z]{2,9}[-_]?smi\s+(?:topo|info|disc|-)"),
)  # fmt: skip
_COMPILED_FOREIGN = tuple((tool, vendor, re.compile(pattern)) for tool, vendor, pattern in _FOREIGN)


_LONGEST_LINE = 4_000
"""Characters that are read of a line: enough for 64 GPUs and their NICs, too few for a pattern to take seconds."""


def clean_lines(text: str, source: str) -> list[str]:
    """Lines without escape codes, carriage returns, prefixes of log collectors, and Markdown. Raises FormatError."""
    if text.count("\x00") > len(text) // 3:  # UTF-16, as PowerShell's > writes it
        text = text.replace("\x00", "").lstrip("\ufffd")
    broken = sum(text.count(c) for c in ("\x00", "\ufffd"))
    if broken > max(3, len(text) // 100):
        raise FormatError(
            f"{source} is a binary file, not a saved nvidia-smi text.",
            "Save it with: nvidia-smi topo -p2p r > p2p_r.txt",
        )
    return [_clean(line) for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def _clean(line: str) -> str:
    line = _ANSI.sub("", line[:_LONGEST_LINE]).translate(_INVISIBLE)
    if "^I" in line:
        line = line.replace("^I", "\t").removesuffix("$").replace("^M", "")
    line = _PREFIX.sub("", line)
    if "|" in line:
        cells = line.strip().strip("|").split("|")
        if (
            any(re.fullmatch(r"\W*GPU\d+\W*", cell.strip()) for cell in cells)
            and "/" not in line.split("|")[0]
        ):
            return "\t".join(cell.strip(" *`") for cell in cells)
    return line.rstrip()


def find_error(text: str) -> ToolError | None:
    """The error that this line reports, if it does."""
    if len(text) > 2000:
        return None
    for pattern, cause, remedy in _COMPILED:
        if pattern.search(text):
            return ToolError(text=text[:300], cause=cause, remedy=remedy)
    return None


def find_foreign(lines: list[str]) -> Foreign | None:
    """The first sign of another vendor's tool."""
    for number, line in enumerate(lines, 1):
        for tool, vendor, pattern in _COMPILED_FOREIGN:
            if pattern.search(line):
                return Foreign(tool=tool, vendor=vendor, line=number, text=line.strip()[:200])
    return None
