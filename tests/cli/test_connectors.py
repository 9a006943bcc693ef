"""`kvprobe connectors` as a user runs it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.models.connector_needs import NEEDS, Package
from kvprobe.models.connectors import PackageState
from kvprobe.probes import connectors as look
from kvprobe.report import decode
from kvprobe.system import System

SAMPLES = Path(__file__).parent.parent.parent / "samples" / "scenarios"
STAND_INS = Path(__file__).parent.parent / "workers" / "stand_ins"
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def connectors(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
        code = main(["connectors", *map(str, arguments), "--format", "json", "--progress", "off"])
        out = capsys.readouterr()
        decode(out.out.encode())
        return code, json.loads(out.out), out.err

    return run


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "installed", lambda system: {})


def ids(document: dict[str, Any], status: str) -> set[str]:
    return {f["id"] for f in document["findings"] if f["status"] == status}


@pytest.mark.usefixtures("none_installed")
def test_a_survey_without_any_package_is_no_go(connectors: Run) -> None:
    code, document, _ = connectors("--measure", "off")
    assert code == 1 and ids(document, "fail") == {"KVP710"}
    assert len(document["result"]["connectors"]) == len(NEEDS)
    assert document["result"]["vllm_version_source"].startswith("assumed")
    assert "pip install nixl" in document["findings"][-1]["remedy"]["text"]
    assert set(document["result"]["out_of_scope"]) == {"SGLang HiCache", "vllm-ascend connectors"}


@pytest.mark.usefixtures("none_installed")
def test_an_asked_connector_must_be_ready(connectors: Run) -> None:
    code, document, _ = connectors("NixlConnector", "HF3FSKVConnector", "--measure", "off")
    assert code == 1 and {"KVP702", "KVP706"} <= ids(document, "fail")


@pytest.mark.usefixtures("none_installed")
def test_a_port_in_use_is_found(connectors: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(server.getsockname()[1]))
        _, document, _ = connectors("NixlConnector", "--measure", "off")
        assert "KVP703" in ids(document, "fail")
    _, document, _ = connectors("NixlConnector", "--measure", "off")
    assert "KVP703" in ids(document, "pass")


@pytest.mark.usefixtures("none_installed")
def test_a_foreign_address_or_a_wrong_port_is_unknown(
    connectors: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "192.0.2.77")
    assert "KVP703" in ids(connectors("NixlConnector", "--measure", "off")[1], "unknown")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "many")
    assert "KVP703" in ids(connectors("NixlConnector", "--measure", "off")[1], "unknown")


def test_one_port_a_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = server.getsockname()[1]
        found = look.ports(
            System(), NEEDS["NixlConnector"], {}, 3, {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(first)}
        )
    assert [p.port for p in found] == [first, first + 1, first + 2] and found[0].free is False


@pytest.mark.usefixtures("none_installed")
def test_configuration_files_are_read(
    connectors: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    assert "KVP704" in ids(connectors("MooncakeStoreConnector", "--measure", "off")[1], "fail")
    path.write_text('{"metadata_server": "a", "master_server_address": "b"}')
    assert "KVP704" in ids(connectors("MooncakeStoreConnector", "--measure", "off")[1], "pass")
    yaml = tmp_path / "l.yaml"
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(yaml))
    for text in ("a: [", "- 1", "\x00"):
        yaml.write_text(text)
        assert "KVP704" in ids(connectors("LMCacheConnectorV1", "--measure", "off")[1], "fail")
    yaml.write_text("chunk_size: 256")
    assert "KVP704" in ids(connectors("LMCacheConnectorV1", "--measure", "off")[1], "pass")


@pytest.mark.usefixtures("none_installed")
def test_a_multi_connector_and_its_children(connectors: Run, tmp_path: Path) -> None:
    child = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "x"}
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [child]},
    }
    path = tmp_path / "kv.json"
    path.write_text(json.dumps(config))
    code, document, _ = connectors("--kv-transfer-config", f"@{path}", "--measure", "off")
    assert code == 1 and {"KVP702", "KVP707"} <= ids(document, "fail")
    assert document["result"]["asked"] == ["MultiConnector", "NixlConnector"]
    assert {c["name"]: c["status"] for c in document["result"]["connectors"]}["MultiConnector"] == "not_ready"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("Nixl",), "Did you mean NixlConnector"),
        (("HiCache",), "out of scope"),
        (("Ascend",), "out of scope"),
        (("--vllm-version", "latest"), "not a version"),
        (("--kv-transfer-config", "{bad"), "not a JSON object"),
        (("--kv-transfer-config", "{}"), "names no kv_connector"),
        (("--kv-transfer-config", '{"kv_connector": "Magic"}'), "registers no connector"),
    ],
)
def test_usage_errors(connectors: Run, arguments: tuple[str, ...], word: str) -> None:
    code, _, err = connectors(*arguments)
    assert code == 2 and word in err and "Traceback" not in err


BROKEN = {
    "missing library": (
        "raise ImportError('libibverbs.so.1: cannot open shared object file')",
        "libibverbs.so.1",
    ),
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "exit": ("raise SystemExit(3)", "exit status"),
    "anything": ("1 / 0", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_does_not_load_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, word = BROKEN[name]
    (tmp_path / "broken_connector.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = Package(
        ("broken_connector",), ("broken",), "pip install broken", libraries=("libnothere-kvprobe.so.9",)
    )
    found = look.load(System(), package, {"broken": "1.0"})
    assert isinstance(found, PackageState) and found.loaded is not None
    assert found.loaded.error is not None and word in found.loaded.error
    if name == "missing library":
        assert found.loaded.missing_libraries == ("libibverbs.so.1", "libnothere-kvprobe.so.9")


def test_a_package_that_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fine_connector.py").write_text("x = 1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = Package(("absent_connector", "fine_connector"), ("fine",), "pip install fine")
    found = look.load(System(), package, {"fine": "2.0"})
    assert found.loaded is not None and found.loaded.module == "fine_connector" and found.loaded.error is None
    assert look.load(System(), package, {}).loaded is None


def test_mooncake_beside_nixl_with_the_stand_in(
    connectors: Run, monkeypatch: pytest.MonkeyPatch, none_installed: None
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    arguments = (
        "MooncakeConnector",
        "--measure",
        "on",
        "--prompt-tokens",
        "1024",
        "--samples",
        "2",
        "--budget",
        "10s",
    )
    _, document, _ = connectors(*arguments)
    transfer = document["result"]["transfer"]
    rows = [r for r in transfer["rows"] if r["library"] == "mooncake"]
    assert [r["order"] for r in rows] == ["contiguous", "shuffled"] and all(r["verified"] for r in rows)
    assert transfer["mooncake_refused_batch_by_default"] > 1024 and transfer["mooncake_queue_limit"] == 65535
    (queue,) = [f for f in document["findings"] if f["id"] == "KVP709"]
    assert (
        queue["status"] == "fail"
        and "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER=65535" in queue["remedy"]["commands"][0]
    )


def test_the_recorded_run_of_a_real_mooncake(connectors: Run) -> None:
    code, document, _ = connectors("--replay", SAMPLES / "mooncake-tcp-loopback")
    rows = {(r["library"], r["order"]): r for r in document["result"]["transfer"]["rows"]}
    assert set(rows) == {(lib, order) for lib in ("mooncake", "nixl") for order in ("contiguous", "shuffled")}
    assert all(r["verified"] and r["samples"] == 10 for r in rows.values())
    assert document["result"]["transfer"]["mooncake_refused_batch_by_default"] == 3584
    assert code == 1 and {"KVP705", "KVP709"} == ids(document, "fail")
