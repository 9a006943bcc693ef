"""What ``kvprobe last`` and ``kvprobe baseline`` read: the newest report of each command, and the baselines.

One file a command, so the store is bounded by construction. Each is replaced as a whole. A run says that
it has begun by a lock file that it holds open: the kernel drops the lock with the process, so a run that was
killed leaves a lock file without a lock, and the GO before it no longer counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvprobe import report as reports
from kvprobe.errors import ProbeError, UsageError
from kvprobe.report import Report
from kvprobe.system import write_atomically

KEPT = ("preflight", "transfer", "live", "topo", "fleet", "logs")
"""Commands whose runs tell about this machine or deployment, and are kept."""
LIMIT_BYTES = 8 * 1024 * 1024
STATE_DIR = "KVPROBE_STATE_DIR"


def state_dir(asked: str | None = None) -> Path:
    """``--state-dir``, else $KVPROBE_STATE_DIR, systemd's $STATE_DIRECTORY, $XDG_STATE_HOME/kvprobe, ~/.local/state/kvprobe."""
    env = os.environ
    for place in (asked, env.get(STATE_DIR), env.get("STATE_DIRECTORY", "").split(":")[0]):
        if place:
            return Path(place).expanduser()
    home = env.get("XDG_STATE_HOME")
    return (Path(home) if home else Path("~/.local/state").expanduser()) / "kvprobe"


class Store:
    """The files under one state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Mark that a run of ``command`` is under way, until :meth:`keep` or the end of the block.

        A second run at the same time is not marked; it still keeps its report. Raises UsageError when the
        folder cannot be written.
        """
        marker = self._marker(command)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = marker.open("a")
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written: {error.strerror}.") from None
        with stream:
            held = _lock(stream.fileno())
            if held:
                os.utime(marker)
            yield
            # Not in a finally: a run that raised has reported nothing, its marker stays, and `last` says so.
            if held:
                marker.unlink(missing_ok=True)

    def keep(self, report: Report) -> None:
        """Replace the last report of its command. A document above 8 MiB is kept without evidence and result."""
        data = reports.encode(report)
        if len(data) > LIMIT_BYTES:
            note = {"kept": "verdict and findings only; the whole report was larger than 8 MiB"}
            data = reports.encode(msgspec.structs.replace(report, evidence=(), result=note))
        self._write(self._last(report.run.command), data)

    def last(self, command: str) -> Report:
        """The newest report of ``command``. Raises ProbeError if there is none or the run after it was killed."""
        path = self._last(command)
        killed_at = self._killed(command)
        report = self._read(path)
        if report is None:
            others = ", ".join(c for c in KEPT if self._last(c).exists())
            kept = f"Kept here: {others}." if others else f"Run `kvprobe {command}` first."
            raise ProbeError(f"No run of `kvprobe {command}` is kept in {self.folder}.", kept)
        if killed_at is not None and killed_at >= _mtime(path):
            raise ProbeError(
                f"The newest run of `kvprobe {command}` ended without a result: it was killed or crashed.",
                f"Run `kvprobe {command}` again and look at its stderr.",
            )
        return report

    def set_baseline(self, report: Report) -> Path:
        """Keep the whole report as what later runs of its command are compared with."""
        path = self._baseline(report.run.command)
        self._write(path, reports.encode(report))
        return path

    def baseline(self, command: str) -> Report | None:
        """The baseline of ``command``, or None if none was set."""
        return self._read(self._baseline(command))

    def remove_baseline(self, command: str) -> bool:
        """Forget the baseline of ``command``; False if there was none."""
        path = self._baseline(command)
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path.parent} cannot be written: {error.strerror}.") from None
        write_atomically(path, data)

    def _read(self, path: Path) -> Report | None:
        try:
            return reports.decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ProbeError(f"{path} cannot be read: {error.strerror}.") from None

    def _killed(self, command: str) -> float | None:
        """When a run began that is gone without a result; None if there is none."""
        marker = self._marker(command)
        try:
            with marker.open() as stream:
                return _mtime(marker) if _lock(stream.fileno(), fcntl.LOCK_SH) else None
        except OSError:
            return None

    def _last(self, command: str) -> Path:
        return self.folder / "last" / f"{command}.json"

    def _baseline(self, command: str) -> Path:
        return self.folder / "baseline" / f"{command}.json"

    def _marker(self, command: str) -> Path:
        return self.folder / f"{command}.running"


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _mtime(path: Path) -> float:
    return path.stat().st_mtime
