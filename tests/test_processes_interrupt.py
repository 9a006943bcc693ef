"""Ctrl-C while workers run is always reported, whatever the children were doing at that moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from kvprobe import processes
from kvprobe.processes import Event, WorkerJob, run_workers
from kvprobe.system import System


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[WorkerJob]:
    """Two workers that report one event and end."""
    (tmp_path / "brief_worker.py").write_text(
        "from kvprobe.workers.base import main\n"
        "def run(worker):\n    worker.emit('sample', value=1)\n    return {'done': True}\n"
        "if __name__ == '__main__':\n    main(run)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return [WorkerJob(name=name, module="brief_worker") for name in ("prefill", "decode")]


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def no_child_left() -> bool:
    return not [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]


def test_during_an_event_what_was_reported_stays(jobs: list[WorkerJob]) -> None:
    def on_event(name: str, event: Event) -> None:
        stop()

    outcomes = run_workers(jobs, deadline_seconds=20, on_event=on_event)
    assert "interrupted" in {o.error_kind for o in outcomes} and any(o.events for o in outcomes)
    assert no_child_left()


def test_before_any_child_has_started(jobs: list[WorkerJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_start", stop)
    system = System()
    outcomes = system.run_workers(jobs, deadline_seconds=20)
    assert [(o.name, o.error_kind) for o in outcomes] == [("prefill", "interrupted"), ("decode", "interrupted")]  # fmt: skip
    assert system.interrupted


def test_between_two_starts(jobs: list[WorkerJob], monkeypatch: pytest.MonkeyPatch) -> None:
    start = processes._start

    def half(all_jobs: list[WorkerJob], *rest: Any) -> None:
        start(all_jobs[:1], *rest)
        stop()

    monkeypatch.setattr(processes, "_start", half)
    outcomes = run_workers(jobs, deadline_seconds=20)
    assert [o.name for o in outcomes] == ["prefill", "decode"]
    assert {o.error_kind for o in outcomes} == {"interrupted"} and no_child_left()


def test_when_all_have_just_ended(jobs: list[WorkerJob], monkeypatch: pytest.MonkeyPatch) -> None:
    watch = processes._watch

    def late(*rest: Any) -> None:
        watch(*rest)
        stop()

    monkeypatch.setattr(processes, "_watch", late)
    system = System()
    first, second = system.run_workers(jobs, deadline_seconds=20)
    assert system.interrupted and first.error == "prefill was interrupted." and first.events
    assert second.result == {"done": True}
