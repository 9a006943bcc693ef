"""Workers end when told, report what they did before, and never outlive us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from kvprobe.processes import WorkerJob, run_workers


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A worker module of the tests; what it does is its argument ``do``."""
    (tmp_path / "practice_worker.py").write_text(
        textwrap.dedent(
            """
            import os, signal, sys, time
            from kvprobe.workers.base import WorkerFailure, main

            def run(worker):
                do = worker.args["do"]
                print("noise on stdout", flush=True)
                worker.emit("sample", value=1)
                if do == "raise":
                    raise WorkerFailure("It is broken.", "Mend it.")
                if do == "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
                if do == "bug":
                    {}["missing"]
                if do == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if do == "sleep":
                    time.sleep(60)
                if do == "limit":
                    with worker.limit(0.5, "the C call"):
                        time.sleep(60)
                if do == "talk":
                    worker.links["peer"].send({"from": os.getpid()})
                    return worker.links["peer"].receive(5)
                if do == "listen":
                    return worker.links["peer"].receive(30)
                return {"env": os.environ.get("KVPROBE_TEST"), "pid": os.getpid()}

            main(run)
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "practice_worker"


def job(module: str, do: str, name: str = "one", **more: object) -> WorkerJob:
    return WorkerJob(name=name, module=module, args={"do": do}, **more)  # type: ignore[arg-type]


def test_result_events_log_and_environment(worker: str) -> None:
    seen = []
    (outcome,) = run_workers(
        [job(worker, "return", env={"KVPROBE_TEST": "x"})],
        deadline_seconds=20,
        on_event=lambda name, event: seen.append((name, event["value"])),
    )
    assert outcome.error is None and outcome.result is not None and outcome.result["env"] == "x"
    assert seen == [("one", 1)] and "noise on stdout" in outcome.log


@pytest.mark.parametrize(
    ("do", "kind", "says"),
    [
        ("raise", "raised", "It is broken."),
        ("crash", "died", "SIGSEGV"),
        ("bug", "raised", "KeyError"),
        ("limit", "raised", "the C call was still running"),
    ],
)
def test_failures_keep_what_was_measured(worker: str, do: str, kind: str, says: str) -> None:
    (outcome,) = run_workers([job(worker, do)], deadline_seconds=20)
    assert outcome.error_kind == kind and says in (outcome.error or "")
    assert outcome.result is None and [e["event"] for e in outcome.events] == ["sample"]


@pytest.mark.parametrize("do", ["sleep", "stop"])
def test_deadline_and_silence(worker: str, do: str) -> None:
    started = time.monotonic()
    (outcome,) = run_workers(
        [job(worker, do)],
        deadline_seconds=4 if do == "sleep" else 30,
        silence_seconds=3 if do == "stop" else None,
    )
    assert outcome.error_kind == "timeout" and time.monotonic() - started < 15
    assert not [
        p for p in psutil.Process().children(recursive=True) if "practice_worker" in " ".join(p.cmdline())
    ]


def test_siblings_talk_and_a_dead_one_ends_the_group(worker: str) -> None:
    pair = [job(worker, "talk", "a", links=("peer",)), job(worker, "talk", "b", links=("peer",))]
    a, b = run_workers(pair, deadline_seconds=20)
    assert a.result and b.result and a.result["from"] != b.result["from"]
    pair = [job(worker, "crash", "a", links=("peer",)), job(worker, "listen", "b", links=("peer",))]
    a, b = run_workers(pair, deadline_seconds=20)
    assert (a.error_kind, b.error_kind) == ("died", "peer")


def test_a_connected_socket_is_a_link_and_leaves_with_the_worker(worker: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(0.1)
    message = b'{"from": "elsewhere"}'
    ours.sendall(len(message).to_bytes(4, "big") + message)
    (outcome,) = run_workers(
        [job(worker, "talk", links=("peer",))], deadline_seconds=20, sockets={"peer": theirs}
    )
    assert outcome.result == {"from": "elsewhere"}
    ours.settimeout(5)
    assert b'"from"' in ours.recv(100)
    # The worker has ended and this process keeps no copy: the other end sees it at once.
    assert ours.recv(1) == b"" and theirs.fileno() == -1
    ours.close()


@pytest.mark.parametrize(
    ("sent", "says"),
    [(b"\xff\xff\xff\xff", "announced a message of 4,294,967,295 bytes"), (b"\0\0\0\3{x}", "not a message"), (b"", "closed")],
)  # fmt: skip
def test_garbage_on_a_link_is_told(worker: str, sent: bytes, says: str) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        (outcome,) = run_workers(
            [job(worker, "listen", links=("peer",))], deadline_seconds=20, sockets={"peer": theirs}
        )
    assert says in (outcome.error or "")


def test_workers_die_with_a_killed_parent(worker: str) -> None:
    code = (
        "import sys; from kvprobe.processes import *;"
        f"run_workers([WorkerJob(name='w', module='{worker}', args={{'do':'sleep'}})], deadline_seconds=60,"
        "on_event=lambda n, e: print('up', flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    (child,) = [
        p for p in psutil.Process(parent.pid).children() if "practice_worker" in " ".join(p.cmdline())
    ]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=10)
    assert not child.is_running()
