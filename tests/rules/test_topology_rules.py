from __future__ import annotations

from pathlib import Path

import kvprobe
from kvprobe.finding import Finding, Status
from kvprobe.formats.nvidia_smi import parse
from kvprobe.formats.nvml import Gpu, GpuFacts, NvLinks, PairFacts, Pcie
from kvprobe.models.p2p import conclude
from kvprobe.models.topology import from_nvml, from_texts
from kvprobe.policy import Policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.topology import RULES, TopologyFacts

POLICY = Policy(name="test")


def live(
    *, nvlink: str = "NS", read: str = "OK", back: str = "OK", ancestor: str = "PHB", width: int = 16, down: int = 0, mig: bool = False,
    visible: str | None = None, connector: str = "pull",
) -> dict[str, Finding]:  # fmt: skip
    links = NvLinks(active=18 - down, inactive=down, remote="switch") if nvlink == "OK" else NvLinks()
    gpus = tuple(
        Gpu(index=i, cuda_index={None: i, "1": i - 1 if i else None, "1,0": 1 - i}[visible], name="H200", uuid=f"GPU-{i}", pci_bus=str(i), mig=mig,
            pcie=Pcie(generation_max=5, width=width, width_max=16), nvlinks=links)
        for i in (0, 1)
    )  # fmt: skip
    pairs = tuple(
        PairFacts(a=a, b=1 - a, read=read if a else back, write="OK", nvlink=nvlink, ancestor=ancestor, nvlinks=links.active)
        for a in (0, 1)
    )  # fmt: skip
    facts = GpuFacts(gpus=gpus, pairs=pairs, cuda_visible_devices=visible)
    topology = from_nvml(facts)
    told = conclude(topology, "GPU0", "GPU1", connector)
    found = run_rules(RULES, TopologyFacts(topology=topology, conclusion=told, gpus=facts), POLICY)
    return {f.id: f for f in found}


def test_a_healthy_nvlink_pair_has_no_complaint() -> None:
    found = live(nvlink="OK")
    assert set(found) == {"KVP101", "KVP102", "KVP105", "KVP106"}
    assert {f.status for f in found.values()} == {Status.PASS}


def test_p2p_over_pcie_warns_of_reads_for_pull_only() -> None:
    found = live()
    assert found["KVP103"].status is Status.WARN
    assert found["KVP103"].remedy is not None
    assert "export UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on" in found["KVP103"].remedy.commands
    assert "KVP103" not in live(connector="push")
    assert "KVP103" not in live(nvlink="OK")
    assert "KVP103" not in live(read="NS")


def test_directions_that_differ() -> None:
    assert live(read="NS")["KVP104"].status is Status.WARN
    assert live(read="NS")["KVP101"].status is Status.FAIL
    assert "KVP104" not in live(read="NS", back="NS")


def test_lost_lanes_links_and_far_sockets() -> None:
    found = live(nvlink="OK", width=8, down=2)
    assert (found["KVP105"].status, found["KVP105"].measured.value) == (Status.WARN, 8)  # type: ignore[union-attr]
    assert found["KVP106"].title == "GPU1 has 16 of 18 NVLinks up"
    assert live(ancestor="SYS")["KVP102"].status is Status.WARN


def test_visibility_and_mig() -> None:
    assert "hides GPU0" in live(visible="1")["KVP107"].title
    assert "GPU0 (cuda:1)" in live(visible="1,0")["KVP107"].title
    assert "KVP107" not in live()
    assert live(mig=True)["KVP108"].status is Status.WARN
    assert live(mig=True)["KVP101"].status is Status.UNKNOWN


def test_an_older_version_of_the_text_alone() -> None:
    topology = from_texts([parse("No devices were found\n", "p2p_r.txt", "r")])
    told = conclude(topology, "GPU0", "GPU1")
    (finding,) = run_rules(RULES, TopologyFacts(topology=topology, conclusion=told), POLICY)
    assert (finding.id, finding.status, finding.code) == ("KVP101", Status.UNKNOWN, "tool_error")


def test_every_rule_has_its_page() -> None:
    docs = Path(kvprobe.__file__).parent / "docs"
    for rule in RULES:
        text = (docs / f"{rule.id}.md").read_text()
        assert text.startswith(f"# {rule.id} {rule.name}\n")
        assert rule.claim.startswith(f"{rule.id}: ")
