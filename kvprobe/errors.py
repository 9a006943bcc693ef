"""Every error kvprobe raises on purpose.

    KvprobeError
      * UsageError         the call or a configuration file is wrong            -> exit 2
      * ProbeError         something could not be measured, read or reached     -> UNKNOWN, exit 3
        + WorkerError      a child process died, hung or answered nonsense
        + ReplayError      the recording does not hold this input
      * FormatError        a file is not what its name promises                 -> UNKNOWN, exit 3

Each says in one sentence what happened and where; ``remedy`` is the next step.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The same in every format but Nagios."""

    GO = 0
    NO_GO = 1
    USAGE = 2
    UNKNOWN = 3
    INTERRUPTED = 130


class KvprobeError(Exception):
    """Base of all errors that are shown without a traceback."""

    def __init__(self, reason: str, remedy: str = "", commands: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.commands = commands

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}".strip()


class UsageError(KvprobeError):
    """The command line, the environment or a configuration file asks for something impossible."""


class ProbeError(KvprobeError):
    """A fact could not be obtained; becomes an UNKNOWN finding in one place, the flow."""


class WorkerError(ProbeError):
    """A child process died, missed its deadline or answered nonsense."""


class ReplayError(ProbeError):
    """A replayed run asked for an input that was not recorded; kvprobe never guesses it."""


class FormatError(KvprobeError):
    """An input file is damaged or belongs to another format."""
