"""The door: live, recorded, replayed; identities never leave."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from kvprobe.errors import ProbeError, ReplayError, UsageError
from kvprobe.system import RecordingSystem, Redactor, ReplaySystem, System, write_atomically


def test_record_and_replay_give_the_same_answers_and_errors(tmp_path: Path) -> None:
    file = tmp_path / "input.txt"
    file.write_text("hello")
    live = RecordingSystem(tmp_path / "rec", {"command": "topo", "params": {"a": 1}})
    answers = (live.read_text(file), live.run(["echo", "hi"]), live.now(), live.path_kind(file))
    with pytest.raises(ProbeError) as missing:
        live.read_text("/nonexistent/file")
    live.close()
    file.unlink()
    again = ReplaySystem(tmp_path / "rec")
    assert (again.read_text(file), again.run(["echo", "hi"]), again.now(), again.path_kind(file)) == answers
    with pytest.raises(ProbeError) as replayed:
        again.read_text("/nonexistent/file")
    assert replayed.value.reason == missing.value.reason
    assert again.request["params"] == {"a": 1}
    with pytest.raises(ReplayError, match="holds no run"):
        again.run(["echo", "other"])


def test_repeated_questions_get_their_answers_in_order(tmp_path: Path) -> None:
    live = RecordingSystem(tmp_path, {})
    values = iter([1, 2])
    assert [live.observe("k", "x", lambda: next(values)) for _ in range(2)] == [1, 2]
    live.close()
    again = ReplaySystem(tmp_path)
    assert [again.observe("k", "x", lambda: None) for _ in range(3)] == [1, 2, 2]


def test_a_folder_that_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a recording"):
        ReplaySystem(tmp_path)
    (tmp_path / "inputs.jsonl").write_text("{not json\n")
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(UsageError, match="not a readable recording"):
        ReplaySystem(tmp_path)


def test_identities_are_replaced_consistently() -> None:
    redact = Redactor()
    host = socket.gethostname()
    text = f"{host} GPU-12345678-aaaa-bbbb-cccc-1234567890ab 10.1.2.3 127.0.0.1 aa:bb:cc:dd:ee:ff 10.1.2.3 1.23.0"
    out = redact({"t": text, "serial": "1650923", "n": 5})
    assert (
        host not in out["t"]
        and "12345678" not in out["t"]
        and "10.1.2.3" not in out["t"]
        and "aa:bb" not in out["t"]
    )
    assert "127.0.0.1" in out["t"] and out["t"].count("192.0.2.1") == 2 and "1.23.0" in out["t"]
    assert out["serial"] == "0" and out["n"] == 5


def test_commands_that_fail_to_run_are_reasons() -> None:
    with pytest.raises(ProbeError, match="not installed"):
        System().run(["kvprobe-no-such-program"])
    with pytest.raises(ProbeError, match="did not end within"):
        System().run(["sleep", "5"], timeout_seconds=0.1)
    assert System().run(["false"]).returncode == 1


def test_files_are_bounded_and_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(b"x" * 100)
    with pytest.raises(ProbeError, match="larger than"):
        System().read_text(file, limit_bytes=10)
    with pytest.raises(ProbeError, match="directory"):
        System().read_text(tmp_path)
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["big"]
    with pytest.raises(UsageError, match="cannot be written"):
        write_atomically(tmp_path / "no" / "where", b"")
    assert json.loads(json.dumps(System().list_dir(tmp_path))) == ["big"]


def test_a_path_that_cannot_be_looked_at_is_a_reason() -> None:
    with pytest.raises(ProbeError, match="cannot be looked at"):
        System().path_kind("x" * 5000)
    assert System().path_kind("/no/such/place") == "absent"
