"""Starts real `kvprobe transfer --listen` and `--connect` processes for the tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

TOKEN = "0123456789abcdef-of-the-tests"
SMALL = (
    "--regions",
    "4",
    "--descriptor-size",
    "4KiB",
    "--blocks",
    "64",
    "--samples",
    "3",
    "--memory",
    "dram",
)
LONG = ("--regions", "8", "--descriptor-size", "32KiB", "--blocks", "256", "--samples", "1000", "--memory", "dram",
        "--op", "read", "--order", "shuffled", "--budget", "60s")  # fmt: skip


class Running:
    """A kvprobe process; its stderr is read as it comes."""

    def __init__(self, arguments: Sequence[str], prefix: Sequence[str] = (), **env: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "kvprobe", *arguments, "-f", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "KVPROBE_TOKEN": TOKEN, **env},
        )  # fmt: skip
        self.told: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.told.append(line)
                self._more.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line on stderr that matches."""
        with self._more:
            self._more.wait_for(
                lambda: self._find(pattern) is not None or self.process.poll() is not None, timeout=60
            )
            found = self._find(pattern)
        assert found is not None, f"no {pattern!r} in {''.join(self.told)}"
        return found

    def _find(self, pattern: str) -> re.Match[str] | None:
        return next((m for line in self.told if (m := re.search(pattern, line))), None)

    def report(self) -> dict[str, Any]:
        """Wait for the end; the report."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        self.process.wait(timeout=100)
        self._reader.join(timeout=5)
        assert TOKEN not in out + "".join(self.told)
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._reader.join(timeout=5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def kvprobe(*arguments: str, prefix: Sequence[str] = (), **env: str) -> Iterator[Running]:
    running = Running(("transfer", *arguments), prefix, **env)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def listening(
    *arguments: str, at: str = "127.0.0.1:0", prefix: Sequence[str] = (), **env: str
) -> Iterator[tuple[Running, str]]:
    """A listener, and its address."""
    with kvprobe("--listen", at, "--memory", "dram", *arguments, prefix=prefix, **env) as running:
        yield running, running.wait_for(r"listening on (\S+)")[1]


def finding(report: dict[str, Any], id_: str) -> dict[str, Any]:
    return next(f for f in report["findings"] if f["id"] == id_)
