"""Reading stored reports, as the commands that print, judge and compare them do."""

from __future__ import annotations

import sys
from pathlib import Path

from kvprobe.errors import ProbeError
from kvprobe.report import Report, decode

LIMIT_BYTES = 256 * 1024 * 1024


def read_report(file: str) -> Report:
    """The report in ``file``, or on stdin for ``-``. Raises ProbeError or FormatError that names the file."""
    if file == "-":
        data, name = sys.stdin.buffer.read(LIMIT_BYTES + 1), "stdin"
    else:
        name = file
        try:
            with Path(file).open("rb") as stream:
                data = stream.read(LIMIT_BYTES + 1)
        except OSError as error:
            raise ProbeError(f"{file} cannot be read: {error.strerror}.") from None
    if len(data) > LIMIT_BYTES:
        raise ProbeError(f"{name} is larger than {LIMIT_BYTES // 1024**2} MiB.")
    return decode(data, name)
