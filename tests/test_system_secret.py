"""A secret is used, never recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.system import RecordingSystem, ReplaySystem, System, hide_passwords


def test_a_secret_is_read_but_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROBE_TEST_TOKEN", "sesame-open")
    assert System().secret("KVPROBE_TEST_TOKEN") == "sesame-open"
    assert System().secret("KVPROBE_TEST_ABSENT") is None
    recording = RecordingSystem(tmp_path, {"command": "live", "params": {}})
    assert recording.secret("KVPROBE_TEST_TOKEN") == "sesame-open"
    recording.close()
    assert all("sesame" not in p.read_text() for p in tmp_path.iterdir())
    assert ReplaySystem(tmp_path).secret("KVPROBE_TEST_TOKEN") is None


def test_a_password_in_a_url_is_not_recorded(tmp_path: Path) -> None:
    assert (
        hide_passwords("see http://me:sesame@node:80/v1?q=a@b now") == "see http://***@node:80/v1?q=a@b now"
    )
    assert hide_passwords("mail me@node or http://node/@x") == "mail me@node or http://node/@x"
    recording = RecordingSystem(tmp_path, {"command": "live", "params": {"prefill": "http://me:sesame@node"}})
    recording.close()
    assert all("sesame" not in p.read_text() for p in tmp_path.iterdir())
