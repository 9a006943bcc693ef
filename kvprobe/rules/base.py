"""What a rule is: a pure function of facts and policy with a stable id."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvprobe.finding import Finding
from kvprobe.policy import Policy

F = TypeVar("F")


@dataclass(frozen=True)
class Rule(Generic[F]):
    """One registry line. ``check`` returns the findings on its subject; none when it does not apply.

    ``F`` is the topic's facts: a frozen struct of evidence. A fact that could not be obtained is None there,
    and the rule turns that into UNKNOWN or SKIP; it never catches exceptions.
    """

    id: str
    name: str
    check: Callable[[F, Policy], Iterable[Finding]]

    @property
    def claim(self) -> str:
        """The first line of the rule's docstring."""
        return (inspect.getdoc(self.check) or self.name).splitlines()[0]


def run_rules(rules: Sequence[Rule[F]], facts: F, policy: Policy) -> list[Finding]:
    """All findings of the rules on the facts, ordered by id."""
    found = [finding for rule in rules for finding in rule.check(facts, policy)]
    return sorted(found, key=lambda f: f.id)
