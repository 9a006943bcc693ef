"""README.md shows what the program prints, names what exists, and its configuration is one that kvprobe reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvprobe.cli import COMMANDS, EXIT_CODES
from kvprobe.cli.config import effective
from kvprobe.finding import ExitCode
from kvprobe.render import RENDERERS
from tests.calls import calls, parse

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_help_and_examples_are_what_the_program_prints() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check-readme")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_it_names_exists_and_every_command_is_named() -> None:
    named = set(re.findall(r"kvprobe ([a-z]+)\b(?! on| is| itself)", README)) - {
        "tells",
        "means",
        "measures",
        "moves",
    }
    calls = {name for name in named if re.search(rf"(`|\$ |^)kvprobe {name}\b", README, re.MULTILINE)}
    assert calls - COMMANDS.keys() == set()
    help_block = README.split("<!-- help", 1)[1].split("<!-- /help", 1)[0]
    assert [c for c in COMMANDS if not re.search(rf"^  {c}\b", help_block, re.MULTILINE)] == []


@pytest.mark.parametrize("line", re.findall(r"^(?:\$ )?(kvprobe .*)$", README, re.MULTILINE))
def test_every_call_it_shows_is_one_that_kvprobe_takes(line: str) -> None:
    found = [words for words in calls(line) if not re.fullmatch(r"\d+\.\d+\.\d+", words[0])]
    assert found or re.match(r"kvprobe \d", line)
    for words in found:
        parse(words)


def test_the_table_of_exit_codes_has_every_code() -> None:
    section = README.split("## Exit codes", 1)[1].split("\n## ", 1)[0]
    assert [int(n) for n in re.findall(r"^\| (\d+) ", section, re.MULTILINE)] == [
        int(code) for code in ExitCode
    ]
    assert all(str(int(code)) in EXIT_CODES for code in ExitCode)


def test_the_table_of_formats_has_every_format() -> None:
    section = README.split("## Cron, CI, Kubernetes", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)) == set(RENDERERS)


def test_its_configuration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    tomllib.loads(block)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvprobe.toml").write_text(block)
    found = effective("preflight", (), None)
    values = {row["name"]: row["value"] for row in (*found["options"], *found["policy"]["values"])}
    assert values["--model"] == "Qwen/Qwen2.5-7B-Instruct" and values["--budget"] == 10.0
    assert values["thresholds.transfer_8k_seconds.fail_above"] == 0.12
    assert "waivers.KVP207" in values


def test_files_it_names_exist() -> None:
    for name in re.findall(r"(?<![\w/])((?:samples|scripts|checks)/[\w./-]+)", README):
        assert (ROOT / name.rstrip(".,")).exists(), name
    assert os.access(ROOT / "scripts" / "preflight", os.X_OK)


def test_the_glossary_is_in_the_readme_only_once_a_word() -> None:
    section = README.split("## Glossary", 1)[1].split("\n## ", 1)[0]
    words = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[1:]
    assert len(words) == len(set(words)) > 10
