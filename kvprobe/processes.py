"""Starts, watches and ends the worker processes: whatever can crash or hang runs in one of these.

A job goes in as JSON on stdin, events come back as JSON lines on a pipe of their own, and stdout and
stderr (NIXL and UCX print there) go to a file that becomes ``WorkerOutcome.log``. Each child leads its own
process group, dies with its parent (PR_SET_PDEATHSIG, set in :mod:`kvprobe.workers.base`) and is
killed at the deadline; SIGKILL also ends a child that was stopped with SIGSTOP.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

LOG_LIMIT_BYTES = 4 * 1024 * 1024
_GRACE_SECONDS = 2.0

Event = dict[str, Any]


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True):
    """One child to start."""

    name: str
    """Unique in the group, such as ``decode``."""
    module: str
    """A module of :mod:`kvprobe.workers` that is run with ``python -m``."""
    args: dict[str, Any] = {}
    env: dict[str, str | None] = {}
    """Changes to the inherited environment; None removes a variable."""
    links: tuple[str, ...] = ()
    """Names of socket pairs; two jobs that name the same link can talk to each other.

    A name among the ``sockets`` of :func:`run_workers` is that socket instead: its other end is elsewhere."""


class WorkerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one child ended, with everything it reported before."""

    name: str
    result: dict[str, Any] | None = None
    """What the worker returned; None if it did not get that far."""
    events: tuple[Event, ...] = ()
    """Its earlier events in order: a worker killed half-way keeps what it measured."""
    error: str | None = None
    """One sentence; None after success."""
    error_kind: str | None = None
    """``raised`` (the worker said what went wrong), ``died``, ``timeout``, ``peer``, ``interrupted``."""
    remedy: str = ""
    returncode: int | None = None
    seconds: float = 0.0
    log: str = ""


class _Child:
    def __init__(self, job: WorkerJob, process: subprocess.Popen[bytes], events: int, log: IO[bytes]) -> None:
        self.job = job
        self.process = process
        self.event_fd = events
        self.log = log
        self.buffer = bytearray()
        self.events: list[Event] = []
        self.result: dict[str, Any] | None = None
        self.error: str | None = None
        self.error_kind: str | None = None
        self.remedy = ""
        self.open = True
        self.last_event_at = time.monotonic()
        self.started_at = time.monotonic()
        self.ended_at: float | None = None

    def take(self, data: bytes, on_event: Callable[[str, Event], None]) -> None:
        self.buffer += data
        if b"\n" not in data:
            return  # a long result comes in pieces: split it once, when it is whole
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self.last_event_at = time.monotonic()
            event: Event = json.loads(line)
            if event["event"] == "result":
                self.result = event["result"]
            elif event["event"] == "error":
                self.error, self.remedy = event["reason"], event.get("remedy", "")
                self.error_kind = event.get("kind", "raised")
            elif event["event"] != "alive":
                self.events.append(event)
                on_event(self.job.name, event)

    def fail(self, kind: str, text: str) -> None:
        if self.error is None and self.result is None:
            self.error, self.error_kind = text, kind


def run_workers(
    jobs: Sequence[WorkerJob],
    *,
    deadline_seconds: float,
    silence_seconds: float | None = None,
    on_event: Callable[[str, Event], None] = lambda name, event: None,
    python: str = sys.executable,
    sockets: Mapping[str, socket.socket] | None = None,
) -> list[WorkerOutcome]:
    """Run the jobs side by side until all have ended; never longer than the deadline.

    ``silence_seconds``: a child that reports nothing (not even ``alive``) for so long counts as hung.
    The first failure ends the group: the others get two seconds to notice. Ctrl-C kills the children and is
    returned as outcomes of kind ``interrupted``, so that what was measured can still be shown.
    ``sockets``: connected ones, by the name of the link that one job gets them as; they are closed here.
    """
    with tempfile.TemporaryDirectory(prefix="kvprobe-") as scratch, contextlib.ExitStack() as stack:
        children: list[_Child] = []
        interrupted = False
        for end in (sockets or {}).values():
            stack.callback(end.close)
            # A timeout set on it would live on in the child as a non-blocking descriptor.
            end.setblocking(True)
        try:
            _start(jobs, children, scratch, python, stack, sockets or {})
            _watch(children, time.monotonic() + deadline_seconds, silence_seconds, on_event)
        except KeyboardInterrupt:
            interrupted = True
            for child in children:
                child.fail("interrupted", f"{child.job.name} was interrupted.")
        finally:
            for child in children:
                _kill(child)
        outcomes = [_outcome(child) for child in children]
        return _with_interrupt(jobs, outcomes) if interrupted else outcomes


def _with_interrupt(jobs: Sequence[WorkerJob], outcomes: list[WorkerOutcome]) -> list[WorkerOutcome]:
    """Ctrl-C must not get lost: not for children that had not started, nor when all had just ended."""
    outcomes += [_interrupted(WorkerOutcome(name=job.name)) for job in jobs[len(outcomes) :]]
    if not any(o.error_kind == "interrupted" for o in outcomes):
        outcomes[0] = _interrupted(outcomes[0])
    return outcomes


def _interrupted(outcome: WorkerOutcome) -> WorkerOutcome:
    text = f"{outcome.name} was interrupted."
    return msgspec.structs.replace(outcome, result=None, error=text, error_kind="interrupted")


def _start(
    jobs: Sequence[WorkerJob],
    children: list[_Child],
    scratch: str,
    python: str,
    stack: contextlib.ExitStack,
    sockets: Mapping[str, socket.socket],
) -> None:
    links: dict[str, list[socket.socket]] = {name: [end] for name, end in sockets.items()}
    for name in sorted({link for job in jobs for link in job.links} - links.keys()):
        links[name] = list(socket.socketpair())
        for end in links[name]:
            stack.callback(end.close)
    handed: list[socket.socket] = []
    for job in jobs:
        ends = {name: links[name].pop() for name in job.links}
        handed += ends.values()
        read_fd, write_fd = os.pipe()
        stack.callback(_close_fd, read_fd)
        log = stack.enter_context(open(Path(scratch, f"{job.name}.log"), "w+b"))  # noqa: PTH123, SIM115  the stack closes it
        argv = [python, "-m", job.module, f"--event-fd={write_fd}", f"--parent={os.getpid()}"]
        argv += [f"--link={name}={end.fileno()}" for name, end in ends.items()]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": _python_path()}
        for key, value in job.env.items():
            if value is None:
                env.pop(key, None)
            else:
                env[key] = value
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd, *(end.fileno() for end in ends.values())),
                env=env,
                cwd=scratch,
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        children.append(_Child(job, process, read_fd, log))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job.args).encode())
            process.stdin.close()
    for end in handed:
        end.close()


def _python_path() -> str:
    """kvprobe itself must be importable in the child, whatever its working directory."""
    root = str(Path(__file__).resolve().parent.parent)
    rest = [
        p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != Path(root)
    ]
    return os.pathsep.join([root, *rest])


def _watch(
    children: list[_Child],
    deadline: float,
    silence_seconds: float | None,
    on_event: Callable[[str, Event], None],
) -> None:
    started = time.monotonic()
    grace_until: float | None = None
    with selectors.DefaultSelector() as selector:
        for child in children:
            os.set_blocking(child.event_fd, False)
            selector.register(child.event_fd, selectors.EVENT_READ, child)
        while any(child.open for child in children):
            now = time.monotonic()
            if now >= deadline:
                failed = next((c.job.name for c in children if c.error), None)
                for child in (c for c in children if c.open):
                    if failed:
                        child.fail("peer", f"{child.job.name} was ended because {failed} failed.")
                    else:
                        child.fail(
                            "timeout", f"{child.job.name} did not finish within {now - started:.0f} s."
                        )
                return
            for child in (c for c in children if c.open):
                if silence_seconds is not None and now - child.last_event_at > silence_seconds:
                    text = f"{child.job.name} (pid {child.process.pid}) gave no sign of life for {silence_seconds:.0f} s."
                    child.fail("timeout", text)
                    return
            for key, _ in selector.select(timeout=min(0.2, deadline - now)):
                child = key.data
                data = os.read(child.event_fd, 1 << 20)
                if data:
                    child.take(data, on_event)
                else:
                    selector.unregister(child.event_fd)
                    _reap(child)
            if grace_until is None and any(child.error for child in children):
                grace_until = time.monotonic() + _GRACE_SECONDS
                deadline = min(deadline, grace_until)


def _reap(child: _Child) -> None:
    child.open = False
    try:
        code = child.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        child.fail("timeout", f"{child.job.name} closed its report but did not exit.")
        return
    child.ended_at = time.monotonic()
    if code < 0:
        child.fail("died", f"{child.job.name} was killed by {signal.Signals(-code).name}.")
    else:
        child.fail("died", f"{child.job.name} ended with exit status {code} and without a result.")


def _kill(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
    if child.ended_at is None:
        child.ended_at = time.monotonic()


def _outcome(child: _Child) -> WorkerOutcome:
    child.log.seek(0, os.SEEK_END)
    size = child.log.tell()
    child.log.seek(max(0, size - LOG_LIMIT_BYTES))
    return WorkerOutcome(
        name=child.job.name,
        result=child.result if child.error is None else None,
        events=tuple(child.events),
        error=child.error,
        error_kind=child.error_kind,
        remedy=child.remedy,
        returncode=child.process.returncode,
        seconds=(child.ended_at or time.monotonic()) - child.started_at,
        log=child.log.read().decode("utf-8", "replace"),
    )


def _close_fd(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
