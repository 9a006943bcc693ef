"""A run and the store: kept for `kvprobe last`, compared with a baseline."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from kvprobe.errors import UsageError
from kvprobe.finding import judge
from kvprobe.flows import Draft
from kvprobe.policy import Policy
from kvprobe.report import Report, Run, decode
from kvprobe.store import KEPT, Store


@contextlib.contextmanager
def kept(store: Store, command: str, *, replayed: bool) -> Iterator[Callable[[Report], None]]:
    """Keeps the run's report for ``kvprobe last``; a store that cannot be written costs one line on stderr."""
    if command not in KEPT or replayed:
        yield lambda report: None
        return

    def keep(report: Report) -> None:
        with _telling():
            store.keep(report)

    with contextlib.ExitStack() as stack:
        with _telling():
            stack.enter_context(store.running(command))
        yield keep


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        click.echo(f"kvprobe: not kept for `kvprobe last`: {error}", err=True)


def with_baseline(draft: Draft, command: str, asked: str, store: Store, policy: Policy) -> Draft:
    """The draft with the findings of the comparison. Raises UsageError or FormatError for an unusable FILE."""
    from kvprobe.rules.baseline import compare, told_by

    if asked == "stored":
        before = store.baseline(command)
    else:
        try:
            before = decode(Path(asked).read_bytes(), asked)
        except OSError as error:
            raise UsageError(f"--baseline {asked} cannot be read: {error.strerror}.") from None
    now = Report(
        run=Run(command=command),
        verdict=judge(draft.findings),
        subject=draft.subject,
        evidence=draft.evidence,
        result=draft.result,
    )
    findings = compare(told_by(now, before), policy)
    return dataclasses.replace(draft, findings=(*draft.findings, *findings))
