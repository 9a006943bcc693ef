"""lint on every handed case: what must be found is found, what must not be flagged is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import FormatError, ProbeError, UsageError
from kvprobe.finding import Status, judge
from kvprobe.flows import Door
from kvprobe.flows.lint import lint
from kvprobe.policy import Policy
from kvprobe.system import System

CASES = Path(__file__).parent.parent / "cases" / "config"
EXIT = {"ok": 0, "ok_with_notes": 0, "risky": 0, "silently_slow": 0, "measures_cache": 0, "will_not_start": 1,
        "will_fail_at_handshake": 1, "no_transfer": 1, "silently_wrong": 1}  # fmt: skip


def run(files: list[Path] | None = None, **params: Any) -> Any:
    values = {
        "files": [str(f) for f in files or []],
        "prefill": (),
        "decode": (),
        "host": (),
        "vllm_version": None,
    }
    return lint(Door(system=System(), policy=Policy(name="test")), {**values, **params})


@pytest.mark.parametrize("case", sorted(CASES.iterdir()), ids=lambda p: p.name)
def test_handed_cases(case: Path) -> None:
    expected = json.loads((case / "expected.json").read_text())
    files = sorted(p for p in case.iterdir() if p.name != "expected.json")
    hosts = tuple(f"{r}={h}" for r, h in (expected.get("hosts") or {}).items() if isinstance(h, str))
    version = expected["vllm"] if expected["vllm"][0].isdigit() else None
    draft = run(files, host=hosts, vllm_version=version)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in draft.result["findings"]:
        found.setdefault(finding["code"], []).append(finding)
    wanted = {f["code"] for f in expected["findings"]}
    assert wanted <= set(found)
    alarms = {f["code"] for f in draft.result["findings"] if f["severity"] in ("error", "warn")}
    assert alarms <= wanted
    for finding in expected["findings"]:
        said = json.dumps(found[finding["code"]], ensure_ascii=False)
        for word in finding["must_mention"]:
            assert any(w.strip(' "').lower() in said.lower() for w in word.split(" or ")), word
        files_named = [
            n for n in finding["where"].replace("/", " ").split() if "." in n and not n.startswith("-")
        ]
        assert all(n in said for n in files_named), finding["where"]
    if (
        case.name != "C16-failure-policy-recompute-and-typo"
    ):  # its verdict is that of the first of two variants
        assert draft.result["verdict"] == expected["verdict"]
        assert judge(draft.findings).exit_code == EXIT[expected["verdict"]]


def test_command_lines_instead_of_files() -> None:
    config = '{"kv_connector":"NixlConnector","kv_role":"%s"}'
    draft = run(
        prefill=(
            f"CUDA_VISIBLE_DEVICES=0 vllm serve m --port 1 --kv-transfer-config '{config % 'kv_producer'}'",
        ),
        decode=(
            f"CUDA_VISIBLE_DEVICES=1 vllm serve m --port 2 --kv-transfer-config '{config % 'kv_consumer'}'",
        ),
        host=("prefill=node-a", "decode=node-a"),
    )
    assert [(i["role"], i["role_from"]) for i in draft.result["instances"]] == [
        ("prefill", "--prefill"),
        ("decode", "--decode"),
    ]
    assert [f["code"] for f in draft.result["findings"]] == ["side_channel_port_collision"]


def test_files_named_by_a_script_are_read_beside_it_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "common.env").write_text("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n")
    (tmp_path / "outside.env").write_text("NIXL_TELEMETRY_ENABLE=n\n")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "common.env").write_text("NIXL_TELEMETRY_ENABLE=n\n")
    script = folder / "p.sh"
    config = '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
    script.write_text(
        f"set -a; . ./common.env; . ../outside.env; set +a\nvllm serve m --kv-transfer-config '{config}'\n"
    )
    draft = run([script])
    assert {f["code"]: f["where"] for f in draft.result["findings"]} == {
        "nixl_telemetry_disabled": "common.env line 1"
    }


def test_options_of_a_config_file_count(tmp_path: Path) -> None:
    (tmp_path / "decode.yaml").write_text(
        "model: m\nport: 8200\nblock-size: 16\nenable-chunked-prefill: false\n"
    )
    (tmp_path / "d.sh").write_text(
        'vllm serve --config decode.yaml --kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}\'\n'
    )
    (instance,) = run([tmp_path / "d.sh"]).result["instances"]
    assert (instance["model"], instance["http_port"]) == ("m", 8200)


def test_one_side_alone_is_judged_and_said_to_be_alone() -> None:
    draft = run(
        [CASES / "C28-expandable-segments" / "prefill.sh", CASES / "C28-expandable-segments" / "prefill.env"]
    )
    assert "expandable_segments_with_connector" in {f.code for f in draft.findings}
    assert any(f.status is Status.SKIP and "only one side" in f.title for f in draft.findings)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "needs launch files"),
        ({"prefill": ("vllm serve m",), "vllm_version": "latest"}, "not a version"),
        ({"prefill": ("vllm serve m",), "host": ("node-a",)}, "ROLE=NAME"),
        ({"prefill": ("vllm serve m",), "host": ("prefill=a b c",)}, "ROLE=NAME"),
    ],
)
def test_wrong_calls_are_usage_errors(params: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(**params)


def test_what_holds_no_launch_is_an_error_that_says_what_is_understood(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("echo hello\n")
    with pytest.raises(FormatError, match="No vLLM launch"):
        run([tmp_path / "a.sh"])
    with pytest.raises(ProbeError, match="does not exist"):
        run([tmp_path / "b.sh"])


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    big = tmp_path / "big.sh"
    big.write_bytes(b"#" * (50 * 1024 * 1024))
    with pytest.raises(ProbeError, match="larger than 2 MiB"):
        run([big])


def test_a_folder_stands_for_its_launch_files(tmp_path: Path) -> None:
    case = CASES / "C36-mooncake-fine"
    assert [i["role"] for i in run([case]).result["instances"]] == ["decode", "prefill"]
    with pytest.raises(UsageError, match="no launch files"):
        run([tmp_path])
