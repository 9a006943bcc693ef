"""Files that others read while they are written: replaced as a whole."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from pathlib import Path

from kvprobe.errors import UsageError


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` as a whole: temporary file in the same directory, fsync, rename. Raises UsageError.

    A symbolic link stays one. What is not a regular file (/dev/stdout, a pipe) is written to as it is.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                stream.write(data)
            return
        _sweep(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def _sweep(path: Path) -> None:
    """Remove what a write that was killed half-way left beside ``path`` more than an hour ago."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - stale.stat().st_mtime > 3600:
                stale.unlink()
