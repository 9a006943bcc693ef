"""Configuration: command line > environment > file > profile > built-in, and the origin of each value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.cli.config import effective


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def option(name: str, *arguments: str, config: str | None = None) -> tuple[Any, str]:
    rows = effective("preflight", arguments, config)["options"]
    (row,) = [r for r in rows if r["name"] == f"--{name}"]
    return row["value"], row["origin"]


def threshold(name: str, *arguments: str) -> tuple[Any, str]:
    rows = effective("preflight", arguments, None)["policy"]["values"]
    (row,) = [r for r in rows if r["name"] == name]
    return row["value"], row["origin"]


def test_every_layer_outranks_the_one_below(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert option("tp") == (1, "built-in")
    (elsewhere / "kvprobe.toml").write_text("[defaults]\ntp = 2\n")
    assert option("tp") == (2, "kvprobe.toml")
    (elsewhere / "kvprobe.toml").write_text("[defaults]\ntp = 2\n[preflight]\ntp = 4\n")
    assert option("tp") == (4, "kvprobe.toml")
    monkeypatch.setenv("KVPROBE_PREFLIGHT_TP", "8")
    assert option("tp") == (8, "environment (KVPROBE_PREFLIGHT_TP)")
    assert option("tp", "--tp", "16") == (16, "command line")


def test_the_first_file_found_holds_alone(elsewhere: Path, own_home: Path) -> None:
    home = own_home / "config" / "kvprobe"
    home.mkdir(parents=True)
    (home / "kvprobe.toml").write_text("[preflight]\ntp = 2\nblock-size = 32\n")
    assert option("tp")[0] == 2
    (elsewhere / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert option("tp")[0] == 2
    (elsewhere / "pyproject.toml").write_text("[tool.kvprobe.preflight]\ntp = 3\n")
    assert option("tp") == (3, "pyproject.toml [tool.kvprobe]")
    assert option("block-size")[0] is None
    (elsewhere / "kvprobe.toml").write_text("")
    assert option("tp") == (1, "built-in")
    (elsewhere / "other.toml").write_text(
        "[preflight]\nprompt_tokens = [1024, 4096]\nbudget = '10s'\nall-pairs = true\n"
    )
    assert option("prompt-tokens", config="other.toml") == ((1024, 4096), "other.toml")
    assert option("budget", config="other.toml")[0] == 10.0
    assert option("all-pairs", config="other.toml")[0] is True


def test_policy_values_have_origins_too(elsewhere: Path) -> None:
    key = "thresholds.transfer_8k_seconds"
    assert threshold(f"{key}.fail_above") == (0.2, "profile default")
    (elsewhere / "kvprobe.toml").write_text(
        "profile = 'nvlink'\n[policy]\nfail_on = 'warn'\n[policy.thresholds.transfer_8k_seconds]\nfail_above = 0.5\n"
    )
    assert threshold(f"{key}.fail_above") == (0.5, "kvprobe.toml")
    assert threshold(f"{key}.warn_above") == (0.06, "profile nvlink")
    assert threshold("thresholds.read_over_write.warn_above")[1] == "profile default"
    assert threshold("fail_on") == ("warn", "kvprobe.toml")
    assert threshold("thresholds.read_over_write.warn_above", "--profile", "pcie")[1] == "profile pcie"


def test_a_policy_typed_by_hand_outranks_the_profile_of_the_file(elsewhere: Path) -> None:
    (elsewhere / "kvprobe.toml").write_text("profile = 'nvlink'\n")
    (elsewhere / "our.toml").write_text("name = 'our'\n")
    assert effective("preflight", ("--policy", "our.toml"), None)["policy"]["source"] == "our.toml"
    assert main(["config", "show", "preflight", "--", "--policy", "our.toml", "--profile", "pcie"]) == 2


def test_a_policy_file_counts_from_its_configuration(elsewhere: Path) -> None:
    (elsewhere / "etc").mkdir()
    (elsewhere / "etc" / "our.toml").write_text("name = 'our'\n")
    (elsewhere / "etc" / "kvprobe.toml").write_text("policy_file = 'our.toml'\n")
    assert effective("preflight", (), "etc/kvprobe.toml")["policy"]["source"] == "etc/our.toml"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("profil = 'x'", "unknown key 'profil'. Did you mean 'profile'?"),
        ("[preflight]\nmodle = 'x'", "[preflight] sets 'modle'"),
        ("[preflight]\nunknown-is = 'go'", "'unknown-is'"),
        ("[defaults]\nnonsense = 1", "[defaults] sets 'nonsense'"),
        ("preflight = 1", "must be a table"),
        ("schema = 'kvprobe.config/v9'", "kvprobe.config/v9"),
        ("profile = 3", "must be text"),
        ("[", "not valid TOML"),
        ("[policy]\nthreshold = 1", "Did you mean 'thresholds'?"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(
    elsewhere: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "kvprobe.toml").write_text(text)
    assert main(["preflight", "--model", "x"]) == 2
    error = capsys.readouterr().err
    assert told in error and "kvprobe.toml" in error


def test_an_option_of_another_command_may_stand_in_defaults(elsewhere: Path) -> None:
    (elsewhere / "kvprobe.toml").write_text("[defaults]\nmax-age = '2h'\ntp = 2\n")
    assert option("tp")[0] == 2


def test_an_absent_or_binary_file_is_a_usage_error(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "bin.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("absent.toml", "bin.toml"):
        assert main(["preflight", "--model", "x", "--config", name]) == 2
        assert name in capsys.readouterr().err


def test_show_prints_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "topo"]) == 0
    assert "thresholds.transfer_8k_seconds.fail_above" in capsys.readouterr().out
    assert main(["config", "show", "preflight", "--format", "json", "--", "--tp", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"name": "--tp", "value": 2, "origin": "command line"} in document["options"]
    assert main(["config", "show", "schema"]) == 2
    assert main(["config", "show", "nonsense"]) == 2
