"""KVP101 to KVP109: which GPUs can reach each other, and over what."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvprobe.finding import Expected, Finding, Quantity, Remedy, Status
from kvprobe.formats.nvml import Gpu, GpuFacts
from kvprobe.models.p2p import Conclusion, link_meaning
from kvprobe.models.topology import Topology
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule

_STATUS = {"p2p_ok": Status.PASS, "p2p_unavailable": Status.FAIL}
_STAGING = (
    "What helps where P2P stays refused (8,192 tokens of Qwen2.5-7B on 2x H200 with cuda_ipc off, medians): 1,276 ms as it "
    "is, 392 ms with UCX_RMA_PPLN_ENABLE=y; kv_buffer_device=cpu stages through host buffers. kvprobe tune measures both here."
)
_UCX_GET = "https://github.com/vllm-project/vllm/issues/52607"


class TopologyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The picture, the answer for the chosen pair, and NVML's details where the machine itself was asked."""

    topology: Topology
    conclusion: Conclusion
    gpus: GpuFacts | None = None
    evidence: tuple[str, ...] = ()


def p2p_permission(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP101: the side that moves the KV cache may access its peer's GPU memory."""
    told = facts.conclusion
    yield Finding(
        id="KVP101",
        name="p2p-permission",
        status=_STATUS.get(told.verdict, Status.UNKNOWN),
        code=told.verdict,
        title=told.reason[0].upper() + told.reason[1:],
        measured=None
        if told.status is None
        else Quantity(value=told.status, note=f"{told.meaning or 'unknown word'} (topo -p2p {told.letter})"),
        expected=Expected(value="OK", source=f"{told.connector}: {_needs(told)}"),
        remedy=Remedy(text=told.advice, commands=told.commands) if told.advice else None,
        where=_pair(told),
        evidence=facts.evidence,
        notes=(*facts.topology.warnings, *((_STAGING,) if told.verdict == "p2p_unavailable" else ())),
    )


def _needs(told: Conclusion) -> str:
    if told.connector == "pull":
        return "decode reads prefill's blocks (topo -p2p r)"
    return "prefill writes decode's blocks (topo -p2p w)"


def _pair(told: Conclusion) -> str:
    return f"prefill {told.prefill}, decode {told.decode}"


def link(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP102: the pair is linked by NVLink or within one PCIe root, not across CPU sockets."""
    told = facts.conclusion
    if told.link is None or told.verdict not in ("p2p_ok", "p2p_unavailable", "unknown"):
        return
    far = told.link in ("SYS", "SOC")
    yield Finding(
        id="KVP102",
        name="pair-link",
        status=Status.WARN if far else Status.PASS,
        title=f"{told.prefill} and {told.decode} are linked by {told.link} ({link_meaning(told.link) or 'unknown word'})",
        remedy=Remedy(text="Traffic between them crosses both CPU sockets: choose two GPUs of one NUMA node.")
        if far
        else None,
        where=_pair(told),
        evidence=facts.evidence,
    )


def read_needs_nvlink(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP103: a READ without NVLink keeps its zero-copy path."""
    told = facts.conclusion
    over_nvlink = told.link is None or told.link.startswith("NV")
    if told.verdict != "p2p_ok" or told.connector != "pull" or over_nvlink:
        return
    yield Finding(
        id="KVP103",
        name="read-without-nvlink",
        status=Status.WARN,
        title=f"P2P is OK but runs over PCIe ({told.link}): UCX switches zero-copy READ off where it finds no NVLink",
        remedy=Remedy(
            text="Switch it on for both engines, or use a push connector (WRITE keeps zero-copy); then measure the transport.",
            commands=("export UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on",),
        ),
        links=(_UCX_GET,),
        where=_pair(told),
        evidence=facts.evidence,
    )


def asymmetric(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP104: both directions of the pair have the same permission."""
    told = facts.conclusion
    if told.status is None or told.reverse_status in (None, told.status):
        return
    actor, peer = (told.cell or ">").split(">")
    yield Finding(
        id="KVP104",
        name="p2p-asymmetric",
        status=Status.WARN,
        title=f"topo -p2p {told.letter} differs by direction: {actor}>{peer} is {told.status}, {peer}>{actor} is {told.reverse_status}",
        remedy=Remedy(text="The pair works in one direction only: exchanging the roles, or pull for push, changes the answer. Bidirectional transfer needs both."),
        where=_pair(told),
        evidence=facts.evidence,
    )  # fmt: skip


def _sides(facts: TopologyFacts) -> list[Gpu]:
    if facts.gpus is None:
        return []
    names = (facts.conclusion.prefill, facts.conclusion.decode)
    return [g for g in facts.gpus.gpus if f"GPU{g.index}" in names]


def pcie_width(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP105: each GPU's PCIe link has all of its lanes."""
    for gpu in _sides(facts):
        now, most = gpu.pcie.width, gpu.pcie.width_max
        if now is None or most is None:
            continue
        lost = now < most
        yield Finding(
            id="KVP105",
            name="pcie-width",
            status=Status.WARN if lost else Status.PASS,
            title=f"{gpu.label} runs PCIe {gpu.pcie.generation_max or '?'}.0 with {now} of {most} lanes",
            measured=Quantity(value=now, unit="lanes"),
            expected=Expected(value=most, unit="lanes", source="NVML: maximal width of this GPU and slot"),
            remedy=Remedy(text="Reseat the card or the riser, check bifurcation in the BIOS; host staging loses in proportion.") if lost else None,
            where=gpu.label,
            evidence=facts.evidence,
        )  # fmt: skip


def nvlinks_up(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP106: every NVLink of the two GPUs is up."""
    for gpu in _sides(facts):
        up, down = gpu.nvlinks.active, gpu.nvlinks.inactive
        if up + down == 0:
            continue
        yield Finding(
            id="KVP106",
            name="nvlinks-up",
            status=Status.WARN if down else Status.PASS,
            title=f"{gpu.label} has {up} of {up + down} NVLinks up",
            measured=Quantity(value=up, unit="links"),
            expected=Expected(value=up + down, unit="links", source="NVML: links of this GPU"),
            remedy=Remedy(
                text="Check the fabric manager, the NVLink bridge and the link's error counters.",
                commands=(
                    "nvidia-smi nvlink -s",
                    "nvidia-smi nvlink -e",
                    "systemctl status nvidia-fabricmanager",
                ),
            )
            if down
            else None,
            where=gpu.label,
            evidence=facts.evidence,
        )


def hidden_gpus(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP107: CUDA sees both GPUs of the pair, and under nvidia-smi's numbers."""
    if facts.gpus is None:
        return
    sides = _sides(facts)
    hidden = [f"GPU{g.index}" for g in sides if g.cuda_index is None]
    renamed = [g.label for g in sides if g.cuda_index not in (None, g.index)]
    if hidden:
        title = f"CUDA_VISIBLE_DEVICES={facts.gpus.cuda_visible_devices} hides {' and '.join(hidden)}"
    elif renamed:
        title = f"CUDA_VISIBLE_DEVICES={facts.gpus.cuda_visible_devices} renumbers: {', '.join(renamed)}"
    elif not facts.gpus.cuda_order_certain:
        title = "GPU models differ and CUDA_DEVICE_ORDER is not set: CUDA may number them otherwise"
    else:
        return
    yield Finding(
        id="KVP107",
        name="cuda-visible-devices",
        status=Status.WARN,
        title=title,
        remedy=Remedy(
            text="topo uses nvidia-smi's numbers, vLLM and kvprobe preflight use CUDA's; this makes them count alike.",
            commands=("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
        ),
        evidence=facts.evidence,
    )


def mig_mode(facts: TopologyFacts, policy: Policy) -> Iterable[Finding]:
    """KVP108: neither GPU of the pair is split by MIG."""
    split = [g for g in (facts.conclusion.prefill, facts.conclusion.decode) if g in facts.topology.mig]
    if not split:
        return
    yield Finding(
        id="KVP108",
        name="mig",
        status=Status.WARN,
        title=f"{' and '.join(dict.fromkeys(split))} is split by MIG: instances have no P2P and no NVLink between GPUs",
        remedy=Remedy(text="Use whole GPUs for P/D, or stage through host memory (kv_buffer_device=cpu)."),
        links=("https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",),
        evidence=facts.evidence,
    )


RULES: tuple[Rule[TopologyFacts], ...] = (
    Rule("KVP101", "p2p-permission", p2p_permission),
    Rule("KVP102", "pair-link", link),
    Rule("KVP103", "read-without-nvlink", read_needs_nvlink),
    Rule("KVP104", "p2p-asymmetric", asymmetric),
    Rule("KVP105", "pcie-width", pcie_width),
    Rule("KVP106", "nvlinks-up", nvlinks_up),
    Rule("KVP107", "cuda-visible-devices", hidden_gpus),
    Rule("KVP108", "mig", mig_mode),
)
