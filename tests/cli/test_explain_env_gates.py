"""explain, env and gates: what operators read."""

from __future__ import annotations

import json

import pytest

from kvprobe.assets import gates
from kvprobe.cli import main
from kvprobe.rules import all_rules


def test_explain_lists_every_rule_with_its_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.id for rule in all_rules()]
    assert any("no waiver of the policy has passed its end date" in line for line in lines)


@pytest.mark.parametrize("name", ["KVP910", "kvp910", "baseline-regression"])
def test_explain_by_id_and_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# KVP910 baseline-regression") and "## What to do" in out


@pytest.mark.parametrize("name", ["KVP999", "../../pyproject", "", "baseline-regressio"])
def test_explain_of_nothing_is_a_usage_error_with_a_hint(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 2
    assert "There is no check" in capsys.readouterr().err


def test_env_hides_secrets_passwords_and_addresses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("VLLM_API_KEY", "sk-secret")
    monkeypatch.setenv("KVPROBE_PROXY", "http://user:pass-word@proxy:3128")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "10.1.2.3")
    monkeypatch.setenv("UCX_TLS", "rc,cuda")
    assert main(["env", "--format", "json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert not [s for s in ("verysecret", "sk-secret", "pass-word", "10.1.2.3") if s in text]
    assert found["environment"]["HF_TOKEN"] == "(set, not shown)"
    assert found["environment"]["UCX_TLS"] == "rc,cuda"
    assert found["packages"]["click"] and found["kvprobe"]["version"]
    assert found["GPUs"]


def test_gates_are_listed_with_their_purpose_and_shown_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gates", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gates()) and all(len(line.split(None, 1)) == 2 for line in lines)
    for name, path in gates().items():
        assert main(["gates", "show", name]) == 0
        assert capsys.readouterr().out == path.read_text(encoding="utf-8")
    assert main(["gates", "show", "kvprobe.timer"]) == 0
    assert main(["gates", "show", "kvprobe"]) == 2  # several
    assert main(["gates", "show", "../profiles/default.toml"]) == 2
