"""Shell completion: names and options, without loading any command for the names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def complete(words: str, shell: str = "bash") -> tuple[list[str], str]:
    """What the shell's completion function is told, and the modules that were loaded for it."""
    code = (
        "import sys\nfrom kvprobe.cli import main\n"
        "try: main([])\nexcept SystemExit: pass\n"
        "sys.stderr.write(' '.join(m for m in sys.modules if m.startswith('kvprobe.')))"
    )
    env = {
        **os.environ,
        "_KVPROBE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr


def test_command_names_complete_without_loading_a_command() -> None:
    found, loaded = complete("kvprobe ex")
    assert found == ["plain,explain"]
    assert "kvprobe.cli.explain" not in loaded and "kvprobe.report" not in loaded


def test_options_of_a_command_complete() -> None:
    found, _ = complete("kvprobe last --max")
    assert found == ["plain,--max-age"]


def test_values_of_a_choice_complete() -> None:
    found, _ = complete("kvprobe last --format n")
    assert found == ["plain,nagios"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_prints_a_script(shell: str) -> None:
    env = {**os.environ, "_KVPROBE_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", "from kvprobe.cli import main; main([])"], env=env, capture_output=True, text=True, check=False
    )  # fmt: skip
    if shell == "bash" and "Bash version" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert "_KVPROBE_COMPLETE" in done.stdout
