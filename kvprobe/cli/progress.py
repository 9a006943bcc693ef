"""Progress on stderr: a live line on a terminal, one plain line per step elsewhere (CI logs show where it hung)."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

from kvprobe.render.line import harmless


class TerminalProgress:
    """Implements :class:`kvprobe.flows.Progress` for people."""

    def __init__(self, mode: str, *, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._on = mode == "on" or (mode == "auto" and not quiet)
        self._live = self._on and self._console.is_terminal
        self._status: Status | None = None
        self._text = ""
        self._started = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def step(self, text: str, *, index: int | None = None, total: int | None = None) -> None:
        if not self._on:
            return
        count = f"[{index}/{total}] " if index is not None and total is not None else ""
        self._text = harmless(f"{count}{text}")
        if self._live:
            if self._status is None:
                self._status = self._console.status(self._text)
                self._status.start()
            self._status.update(self._text.replace("[", "\\["))
        else:
            print(f"{time.monotonic() - self._started:6.1f} s  {self._text}", file=sys.stderr, flush=True)  # noqa: T201

    def detail(self, text: str) -> None:
        if self._live and self._status is not None:
            self._status.update(harmless(f"{self._text} {text}").replace("[", "\\["))

    def warn(self, text: str) -> None:
        if self._on:
            self._console.print(f"kvprobe: {harmless(text)}")
