"""Which failures a log shows, each once with its count, and which of them are consequences of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvprobe.formats.log_lines import Head
from kvprobe.formats.log_signatures import Signature

_KEY_LIMIT = 10_000
_EXCERPT = 300
_CONTEXT = re.compile(r"'request_id': (?:'([^']*)'|None)")
_REQUIRED_PARAMS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_ANSWER = re.compile(r'HTTP/1\.\d" (\d{3})')
_REACTION = ("due to KV load failure", "Recovered from KV load failure")


class Occurrence:
    """One kind of failure in the whole input."""

    def __init__(self, signature: Signature, file: str) -> None:
        self.signature = signature
        self.file = file
        self.count = 0
        self.line: int | None = None
        self.text = ""
        self.source: str | None = None
        self.first: str | None = None
        self.last: str | None = None
        self.fields: dict[str, Any] = {}
        self.files: dict[str, int] = {}
        self._keys: set[str] = set()
        self._anonymous = 0

    def see(self, file: str, line: int, text: str, head: Head, groups: dict[str, str | None]) -> None:
        if not self.files:
            self.line, self.text, self.source = line, text[:_EXCERPT], head.source
        self.files[file] = self.files.get(file, 0) + 1
        for name, value in groups.items():
            if value is not None:
                self.fields.setdefault(name, value)
        self.first = self.first or head.timestamp
        self.last = head.timestamp or self.last
        self._count(text)

    def _count(self, text: str) -> None:
        if not self.signature.count_by:
            self.count += 1
            return
        match = _CONTEXT.search(text)
        if match is None or match[1] is None:
            # vLLM logs a second entry without the request for one handshake.
            self._anonymous += 1
        elif len(self._keys) < _KEY_LIMIT:
            self._keys.add(match[1])
        self.count = max(len(self._keys), 1 if self._anonymous else 0)

    def conclude(self, count: int, **fields: Any) -> None:
        """Seen in counters or combinations, not in a line of its own."""
        self.count += count
        self.fields.update(fields)


class Doctor:
    """Fed with the lines that hold a literal; :meth:`failures` in the end."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = tuple(signatures)
        self._by_code = {s.code: s for s in self.signatures}
        self._order = {s.code: number for number, s in enumerate(self.signatures)}
        by_literal: dict[bytes, list[Signature]] = {}
        for signature in self.signatures:
            for literal in signature.literals:
                by_literal.setdefault(literal.encode(), []).append(signature)
        self.literals = tuple(by_literal)
        self._by_needle = [tuple(found) for found in by_literal.values()]
        self.seen: dict[str, Occurrence] = {}
        self._answers_after_failure: list[str] = []

    def take(
        self, file: str, line: int, needles: Iterable[int], text: str, head: Head, before: bytes, after: bytes
    ) -> list[Signature]:
        """Judge one plain line; the signatures that match it."""
        matched: list[Signature] = []
        for signature in dict.fromkeys(s for n in needles for s in self._by_needle[n]):
            around = ("", "")
            if signature.near or signature.preceded_by:
                around = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
            match = signature.matches(text, *around)
            if match is None:
                continue
            matched.append(signature)
            groups = {**match.groupdict(), **_missing_params(match.groupdict().get("params"))}
            groups.pop("params", None)
            self._occurrence(signature.code, file).see(file, line, text, head, groups)
            if signature.topic == "transfer" and len(self._answers_after_failure) < 1000:
                self._look_at_answers(after)
        return matched

    def _occurrence(self, code: str, file: str) -> Occurrence:
        if code not in self.seen:
            self.seen[code] = Occurrence(self._by_code[code], file)
        return self.seen[code]

    def files_of(self, code: str) -> frozenset[str]:
        """Files with lines of this failure."""
        return frozenset(self.seen[code].files) if code in self.seen else frozenset()

    def _look_at_answers(self, after: bytes) -> None:
        text = after.decode("utf-8", "replace")
        if any(word in text for word in _REACTION):
            return
        self._answers_after_failure += _ANSWER.findall(text)[:1]

    def conclude(self, code: str, count: int, file: str, **fields: Any) -> None:
        """Add what counters or combinations tell; no signature of that name, no failure."""
        if count and code in self._by_code:
            self._occurrence(code, file).conclude(count, **fields)

    def conclude_answers(self) -> None:
        """Requests answered 200 right after a failed transfer, with no line of the scheduler about it."""
        reacted = {"kv_load_failed", "kv_load_recovered", "request_failed_internally"} & set(self.seen)
        ok = sum(a == "200" for a in self._answers_after_failure)
        failed = any(
            s.signature.topic == "transfer" and s.signature.severity == "fail" for s in self.seen.values()
        )
        if failed and ok and not reacted and "500" not in self._answers_after_failure:
            file = next(s.file for s in self.seen.values() if s.signature.topic == "transfer")
            self.conclude("failed_request_returned_200", ok, file)

    def root_of(self, code: str) -> str | None:
        """The seen cause that explains ``code``, or None if it stands for itself."""
        trail = [code]
        while (cause := self._cause(trail[-1])) is not None:
            if cause in trail:
                # Two that name each other: the one that was seen first stands for both.
                first = next(c for c in self.seen if c in trail[trail.index(cause) :])
                return None if first == code else first
            trail.append(cause)
        return trail[-1] if len(trail) > 1 else None

    def _cause(self, code: str) -> str | None:
        mine = self._by_code[code]
        for wanted in mine.consequence_of:
            for other in self.seen:
                if other != code and self._explains(self._by_code[other], mine, wanted):
                    return other
        return None

    def _explains(self, other: Signature, mine: Signature, wanted: str) -> bool:
        if other.derived or other.severity == "info":
            return False
        if not wanted.startswith("topic:"):
            return other.code == wanted
        # Advice and what was recovered do not explain a loss; within a topic causes stand in front of consequences.
        if other.topic != wanted.removeprefix("topic:") or other.severity != "fail":
            return False
        return other.topic != mine.topic or self._order[other.code] < self._order[mine.code]

    def failures(self) -> list[dict[str, Any]]:
        """Causes first, then consequences; notes (severity info) are not among them."""
        rows = [self._row(o) for o in self.seen.values() if o.signature.severity != "info"]
        return sorted(rows, key=lambda r: (r["consequence_of"] is not None, r["severity"] != "fail"))

    def notes(self) -> list[dict[str, Any]]:
        return [self._row(o) for o in self.seen.values() if o.signature.severity == "info"]

    def _row(self, o: Occurrence) -> dict[str, Any]:
        s = o.signature
        return {
            "code": s.code,
            "topic": s.topic,
            "title": s.title,
            "severity": s.severity,
            "count": o.count,
            "file": o.file,
            "line": o.line,
            "source": o.source,
            "side": s.side or None,
            "first": o.first,
            "last": o.last,
            "cause": s.cause,
            "first_remedy": s.remedy,
            "commands": list(s.commands),
            "reference": s.source,
            "since": s.since or None,
            "until": s.until or None,
            "consequence_of": self.root_of(s.code),
            "excerpt": o.text or None,
            "files": o.files,
            **{k: v for k, v in o.fields.items() if k not in ("title", "code", "count")},
        }


def _missing_params(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    missing = [key for key in _REQUIRED_PARAMS if f"'{key}'" not in text]
    return {"missing": missing} if missing else {}
