"""What a recording keeps of another node: neither its name nor the shared token."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.errors import ProbeError
from kvprobe.redact import Redactor
from kvprobe.system import RecordingSystem, ReplaySystem, System


def test_a_secret_file_is_read_and_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  the token itself\n")
    recording = RecordingSystem(tmp_path / "recording", {"command": "transfer", "params": {}})
    assert recording.secret_file(file) == "the token itself"
    recording.close()
    assert "token itself" not in (tmp_path / "recording/inputs.jsonl").read_text()
    file.unlink()
    assert ReplaySystem(tmp_path / "recording").secret_file(file) is None
    with pytest.raises(ProbeError, match="cannot be read"):
        System().secret_file(file)


def test_the_other_nodes_name_becomes_a_stand_in(tmp_path: Path) -> None:
    recording = RecordingSystem(tmp_path, {"command": "transfer", "params": {"connect": "gpu17.rack:18777"}})
    recording.hide({"gpu17.rack": "node-b"})
    recording.observe("two_nodes", None, lambda: {"peer_hostname": "gpu17", "told": "nobody listens on gpu17.rack:1, mygpu17.rack"})  # fmt: skip
    recording.close()
    text = (tmp_path / "inputs.jsonl").read_text() + (tmp_path / "request.json").read_text()
    assert '"connect": "node-b:18777"' in text and '"peer_hostname": "node-b"' in text
    assert "on node-b:1, mygpu17.rack" in text


def test_serials_are_still_hidden_and_empty_ones_stay_empty() -> None:
    assert Redactor()({"serial": "165", "peer_hostname": ""}) == {"serial": "0", "peer_hostname": ""}
