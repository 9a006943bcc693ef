"""No test reads or writes the state and configuration of the person who runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No test depends on speed: eight builds may share two cores.
settings.register_profile("kvprobe", deadline=None, max_examples=60)
settings.load_profile("kvprobe")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory and a configuration home of this test's own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KVPROBE_STATE_DIR", str(home / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    for name in ("KVPROBE_CONFIG", "STATE_DIRECTORY", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return home
