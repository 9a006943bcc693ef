"""The one door to the outside: commands, files, environment, clock and workers, live, recorded or replayed.

Everything goes through :meth:`System.observe`, so whatever a run looked at can be written down
(``--record DIR``) and given back elsewhere (``--replay DIR``). A replayed run never looks outside:
an input that was not recorded is a ReplayError.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvprobe import errors, processes
from kvprobe.errors import ProbeError, ReplayError, UsageError
from kvprobe.files import write_atomically as write_atomically
from kvprobe.processes import Event, WorkerJob, WorkerOutcome
from kvprobe.redact import Redactor as Redactor
from kvprobe.redact import hide_passwords as hide_passwords

T = TypeVar("T")

INPUTS = "inputs.jsonl"
REQUEST = "request.json"
_FILE_LIMIT_BYTES = 64 * 1024 * 1024


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ran to its end."""

    returncode: int
    stdout: str
    stderr: str


class System:
    """Looks at the live machine. Subclasses change :meth:`observe` only."""

    replayed_from: str | None = None
    interrupted = False

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        """One look at the outside: the JSON-able value of ``look()``, identified by ``kind`` and ``key``."""
        return look()

    def observe_many(self, kind: str, key: Any, look: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """The same for a long sequence that is used as it comes: a log must not have to fit into memory."""
        yield from look()

    def run(self, argv: Sequence[str], *, timeout_seconds: float = 20.0, stdin: str = "") -> Completed:
        """Run a command without a shell. Raises ProbeError if it is absent or does not end in time."""

        def look() -> dict[str, Any]:
            try:
                done = subprocess.run(
                    list(argv),
                    capture_output=True,
                    input=stdin.encode(),
                    timeout=timeout_seconds,
                    check=False,
                )
            except FileNotFoundError:
                raise ProbeError(f"{argv[0]} is not installed here.") from None
            except OSError as error:
                raise ProbeError(f"{argv[0]} could not be started: {error.strerror}.") from None
            except subprocess.TimeoutExpired:
                raise ProbeError(f"{' '.join(argv)} did not end within {timeout_seconds:.0f} s.") from None
            return {
                "returncode": done.returncode,
                "stdout": done.stdout.decode("utf-8", "replace"),
                "stderr": done.stderr.decode("utf-8", "replace"),
            }

        return msgspec.convert(self.observe("run", list(argv), look), Completed)

    def read_text(self, path: str | Path, *, limit_bytes: int = _FILE_LIMIT_BYTES) -> str:
        """The text of a file. Raises ProbeError that names it when it is absent, unreadable or too large."""

        def look() -> str:
            file = Path(path)
            try:
                if file.is_dir():
                    raise ProbeError(f"{path} is a directory, not a file.")
                with file.open("rb") as stream:
                    data = stream.read(limit_bytes + 1)
            except FileNotFoundError:
                raise ProbeError(f"{path} does not exist.") from None
            except OSError as error:
                raise ProbeError(f"{path} cannot be read: {error.strerror}.") from None
            if len(data) > limit_bytes:
                raise ProbeError(f"{path} is larger than {limit_bytes // 1024**2} MiB.")
            return data.decode("utf-8", "replace")

        return str(self.observe("file", str(path), look))

    def path_kind(self, path: str | Path) -> str:
        """``file``, ``dir`` or ``absent``."""

        def look() -> str:
            place = Path(path)
            try:
                return "dir" if place.is_dir() else "file" if place.exists() else "absent"
            except OSError as error:
                raise ProbeError(f"{str(path)[:80]} cannot be looked at: {error.strerror}.") from None

        return str(self.observe("path", str(path), look))

    def list_dir(self, path: str | Path) -> list[str]:
        """Sorted names in a directory; empty if there is none."""
        return list(self.observe("dir", str(path), lambda: sorted(p.name for p in Path(path).glob("*"))))

    def environ(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the named environment variables that are set."""
        wanted = sorted(names)
        return dict(
            self.observe("environ", wanted, lambda: {n: os.environ[n] for n in wanted if n in os.environ})
        )

    def secret(self, name: str) -> str | None:
        """An environment variable that must not be recorded: a recording keeps only whether it was set."""
        known = self.observe("secret", name, lambda: name in os.environ)
        return os.environ.get(name) if known and self.replayed_from is None else None

    def secret_file(self, path: str | Path) -> str | None:
        """The text of a file, without blanks around it, that must not be recorded; None in a replay. Raises ProbeError."""

        def read() -> str:
            try:
                with Path(path).open(encoding="utf-8") as stream:
                    return stream.read(65536).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ProbeError(
                    f"{path} cannot be read: {getattr(error, 'strerror', 'not text')}."
                ) from None

        self.observe("secret_file", str(path), lambda: bool(read()))
        return read() if self.replayed_from is None else None

    def hide(self, names: Mapping[str, str]) -> None:
        """Names of other machines -> what a recording says instead."""

    def now(self) -> datetime.datetime:
        """UTC now."""
        text = self.observe("clock", None, lambda: datetime.datetime.now(datetime.UTC).isoformat())
        return datetime.datetime.fromisoformat(text)

    def hostname(self) -> str:
        return str(self.observe("hostname", None, socket.gethostname))

    def monotonic(self) -> float:
        """Seconds for deadlines; never part of a result."""
        return time.monotonic()

    def run_workers(
        self,
        jobs: Sequence[WorkerJob],
        *,
        deadline_seconds: float,
        silence_seconds: float | None = None,
        on_event: Callable[[str, Event], None] = lambda name, event: None,
        key: Any = None,
        sockets: Mapping[str, socket.socket] | None = None,
    ) -> list[WorkerOutcome]:
        """See :func:`kvprobe.processes.run_workers`.

        ``key`` identifies the run in a recording (default: the jobs). Give what is measured, not how the job says
        it, so that old recordings outlive a change of the job's format.
        """

        def look() -> Any:
            return msgspec.to_builtins(
                processes.run_workers(
                    jobs,
                    deadline_seconds=deadline_seconds,
                    silence_seconds=silence_seconds,
                    on_event=on_event,
                    sockets=sockets,
                )
            )

        found = self.observe("workers", msgspec.to_builtins(list(jobs)) if key is None else key, look)
        outcomes = msgspec.convert(found, list[WorkerOutcome])
        if any(o.error_kind == "interrupted" for o in outcomes):
            self.interrupted = True
        return outcomes

    def close(self) -> None:
        """Finish what :meth:`observe` collected."""


class RecordingSystem(System):
    """Looks at the live machine and writes every input to ``folder``, identities replaced."""

    def __init__(self, folder: Path, request: dict[str, Any]) -> None:
        self._folder = folder
        self._request = request
        self._lines: list[dict[str, Any]] = []
        self._hidden: dict[str, str] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--record {folder}: {error.strerror}.") from None

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        try:
            value = look()
        except errors.KvprobeError as error:
            told = {"class": type(error).__name__, "reason": error.reason, "remedy": error.remedy}
            self._lines.append({"kind": kind, "key": key, "error": told})
            raise
        self._lines.append({"kind": kind, "key": key, "value": value})
        return value

    def observe_many(self, kind: str, key: Any, look: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        items: list[Any] = []
        entry: dict[str, Any] = {"kind": kind, "key": key, "value": items}
        try:
            for item in look():
                items.append(item)
                yield item
        except errors.KvprobeError as error:
            told = {"class": type(error).__name__, "reason": error.reason, "remedy": error.remedy}
            entry = {"kind": kind, "key": key, "error": told}
            raise
        finally:
            # Also when the reader stops half-way: what it saw is what a replay must give.
            self._lines.append(entry)

    def hide(self, names: Mapping[str, str]) -> None:
        self._hidden |= names

    def close(self) -> None:
        redact = Redactor(self._hidden)
        text = "".join(json.dumps(redact(line), ensure_ascii=False) + "\n" for line in self._lines)
        write_atomically(self._folder / INPUTS, text.encode())
        write_atomically(self._folder / REQUEST, json.dumps(redact(self._request), indent=2).encode() + b"\n")


class ReplaySystem(System):
    """Answers from a recording. The same question asked again gets the next recorded answer, then the last."""

    def __init__(self, folder: Path) -> None:
        self.replayed_from = str(folder)
        self._answers: dict[str, list[dict[str, Any]]] = {}
        try:
            with (folder / INPUTS).open(encoding="utf-8") as stream:
                for line in stream:
                    entry = json.loads(line)
                    self._answers.setdefault(_identity(entry["kind"], entry["key"]), []).append(entry)
            self.request: dict[str, Any] = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is not a recording: {error.filename} is missing.") from None
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{folder} is not a readable recording: {error}.") from None

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        answers = self._answers.get(_identity(kind, key))
        if not answers:
            text = f"The recording holds no {kind} {json.dumps(key)[:200]}."
            raise ReplayError(text, "Record the run again with this kvprobe and these options.")
        entry = answers.pop(0) if len(answers) > 1 else answers[0]
        if "error" in entry:
            told = entry["error"]
            raise getattr(errors, told["class"], ProbeError)(told["reason"], told["remedy"])
        return entry["value"]

    def observe_many(self, kind: str, key: Any, look: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        yield from self.observe(kind, key, lambda: list(look()))


def _identity(kind: str, key: Any) -> str:
    return f"{kind} {json.dumps(key, sort_keys=True)}"
