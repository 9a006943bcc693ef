"""From facts to the state of a connector, and the composition of a MultiConnector."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvprobe.formats.kv_transfer_config import parse_config
from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS
from kvprobe.models.connector_composition import composition_problems
from kvprobe.models.connector_needs import NEEDS
from kvprobe.models.connectors import (
    ConfigState,
    ConnectorState,
    ImportOutcome,
    Machine,
    PackageState,
    PortState,
    assess,
)

GPU = Machine(cuda=True, amd=False, memory_available_bytes=64 * 2**30)
NIXL = PackageState(
    distribution="nixl-cu12", version="1.5.1", loaded=ImportOutcome(module="nixl_cu12._api", seconds=0.4)
)


def state(name: str, **more: Any) -> ConnectorState:
    options: dict[str, Any] = {
        "version": (0, 33, 0), "machine": GPU, "packages": [PackageState() for _ in NEEDS[name].packages], "ports": [],
        "config": None, "extra": {}, "asked": True, **more,
    }  # fmt: skip
    return assess(NEEDS[name], **options)


def kinds(found: ConnectorState) -> list[str]:
    return [p.kind for p in found.problems]


def test_every_connector_of_the_factory_has_its_needs() -> None:
    assert set(NEEDS) == set(CONNECTORS)


def test_nixl_is_ready_with_a_package_that_loads() -> None:
    assert state("NixlConnector", packages=[NIXL]).status == "ready"
    missing = state("NixlConnector")
    assert (
        missing.status == "not_ready"
        and kinds(missing) == ["package"]
        and "pip install nixl" in missing.problems[0].fix
    )


def test_the_lowest_nixl_depends_on_the_vllm() -> None:
    old = PackageState(
        distribution="nixl", version="1.4.2", loaded=ImportOutcome(module="nixl._api", seconds=0.4)
    )
    found = state("NixlConnector", packages=[old])
    assert kinds(found) == ["package"] and "1.5.0" in found.problems[0].text
    assert state("NixlConnector", packages=[old], version=(0, 32, 0)).status == "ready"


@pytest.mark.parametrize(
    ("name", "version", "word"),
    [("NixlPushConnector", (0, 22, 0), "came with"), ("P2pNcclConnector", (0, 24, 0), "removed"), ("HiSparseConnector", (0, 29, 0), "came")],
)  # fmt: skip
def test_versions(name: str, version: tuple[int, int, int], word: str) -> None:
    found = state(name, version=version)
    assert found.status == "not_in_version" and kinds(found) == ["version"] and word in found.problems[0].text


def test_all_missing_libraries_are_named_at_once() -> None:
    broken = ImportOutcome(
        error="ImportError: libibverbs.so.1: cannot open",
        missing_libraries=("libibverbs.so.1", "libcuda.so.1"),
    )
    package = PackageState(distribution="mooncake-transfer-engine", version="0.3.13", loaded=broken)
    found = state("MooncakeConnector", packages=[package])
    assert kinds(found) == ["library"]
    assert "libibverbs1" in found.problems[0].fix and "driver" in found.problems[0].fix


def test_ports() -> None:
    def port(serves: bool, free: bool | None) -> PortState:
        return PortState(what="x", host="127.0.0.1", port=5600, serves=serves, free=free, detail="d")

    assert state("NixlConnector", packages=[NIXL], ports=[port(True, True)]).status == "ready"
    assert kinds(state("NixlConnector", packages=[NIXL], ports=[port(True, False)])) == ["port"]
    assert kinds(state("NixlConnector", packages=[NIXL], ports=[port(True, None)])) == ["port"]
    assert kinds(state("LMCacheMPConnector", packages=[NIXL], ports=[port(False, True)])) == ["port"]
    assert state("LMCacheMPConnector", packages=[NIXL], ports=[port(False, False)]).status == "ready"


def test_the_store_needs_its_file() -> None:
    loaded = [
        PackageState(
            distribution="m", version="1", loaded=ImportOutcome(module="mooncake.store", seconds=0.1)
        )
    ]
    assert kinds(state("MooncakeStoreConnector", packages=loaded)) == ["config"]
    broken = ConfigState(variable="MOONCAKE_CONFIG_PATH", path="/m.json", problem="mode is 'x'")
    assert "mode is 'x'" in state("MooncakeStoreConnector", packages=loaded, config=broken).problems[0].text
    fine = ConfigState(variable="MOONCAKE_CONFIG_PATH", path="/m.json")
    assert state("MooncakeStoreConnector", packages=loaded, config=fine).status == "ready"


def test_devices_and_memory() -> None:
    bare = Machine(cuda=False, amd=False, memory_available_bytes=2**30)
    assert kinds(state("SimpleCPUOffloadConnector", machine=bare)) == ["device"]
    assert "device" in kinds(state("MoRIIOConnector"))
    wants = {"extra": {"cpu_bytes_to_use": 2 * 2**30}, "configured": True}
    assert kinds(state("OffloadingConnector", machine=bare, **wants)) == ["device"]
    assert state("OffloadingConnector", machine=GPU, **wants).status == "ready"
    for wrong in (True, "8GB", float("nan"), None):
        assert (
            state("OffloadingConnector", extra={"cpu_bytes_to_use": wrong}, configured=True).status == "ready"
        )


def test_hisparse_needs_a_pool() -> None:
    assert kinds(state("HiSparseConnector", configured=True)) == ["option"]
    assert (
        "above 0" in state("HiSparseConnector", extra={"host_pool_gib": 0}, configured=True).problems[0].text
    )
    assert state("HiSparseConnector", extra={"host_pool_gib": 8}, configured=True).status == "ready"
    assert state("HiSparseConnector").status == "ready"


def test_silent_substitutes_are_named() -> None:
    assert kinds(state("HF3FSKVConnector")) == ["package", "substitute"]
    bench = state("DecodeBenchConnector")
    assert bench.status == "ready" and kinds(bench) == ["substitute"]


def texts(*children: Any) -> str:
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }
    return " | ".join(p.text for p in composition_problems(parse_config(json.dumps(config))) if p.fatal)


def child(name: str, **more: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", **more}


def test_composition() -> None:
    assert texts(child("NixlConnector"), child("OffloadingConnector")) == ""
    assert "no list" in texts()
    assert "engine_id" in texts(child("NixlConnector", engine_id="a"))
    assert "no kv_role" in texts({"kv_connector": "NixlConnector"})
    assert "2 NIXL children" in texts(child("NixlConnector"), child("NixlPushConnector"))
    assert "Key clash" not in texts(child("NixlConnector"), child("NixlPushConnector"))
    assert "Key clash" in texts(child("NixlConnector"), child("MooncakeConnector"))
    assert "no connector of vLLM" in texts(child("Magic"))
    assert "HiSparse" in texts(child("HiSparseConnector"), child("HiSparseConnector"))
    pool = {"kv_connector_extra_config": {"custom_mem_pool": "NVLINK"}}
    assert "memory pool" in texts(
        child("MooncakeStoreConnector", **pool), child("OffloadingConnector", **pool)
    )


def test_composition_tells_its_price() -> None:
    config = parse_config(json.dumps({
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [child("NixlConnector"), child("LMCacheConnectorV1")]},
    }))  # fmt: skip
    price = [p.text for p in composition_problems(config) if not p.fatal]
    assert "LMCacheConnectorV1 cannot work with the hybrid KV cache manager" in price[0]
    assert "NixlConnector before LMCacheConnectorV1" in price[1]
