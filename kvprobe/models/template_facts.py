"""What is known about a template once its prompts are rendered: the facts that the rules judge."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.models.template_matrix import DROPPED, NO_REASONING, RETURNED
from kvprobe.models.template_prefix import Outcome, common_prefix

ANY, RETURNS, DROPS = "any", "returns", "drops"


class TokenCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The same question on token ids: turn N, the generated text and turn N+1, each encoded on its own."""

    turn1: int
    generated: int
    common: int
    """Ids that agree from the start."""
    exact: bool
    """Turn N+1 begins with the ids of turn N and of the generated text without its stop text."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with one client and one setting of the switches."""

    exchange: str
    title: str
    client: str
    """``returned``, ``dropped`` or ``none`` (no reasoning was generated)."""
    switches: dict[str, Any]
    default: bool
    """The switches stand as the operator left them."""
    outcome: Outcome
    tokens: TokenCheck | None = None
    supported: bool = True
    """False: the template cannot express this exchange (it knows no tool calls)."""

    @property
    def safe(self) -> bool | None:
        """None when the template refused; token ids decide where they are known."""
        if self.outcome.safe and self.tokens is not None:
            return self.tokens.exact
        return self.outcome.safe

    @property
    def cause(self) -> str:
        return "retokenised_at_boundary" if self.outcome.safe and self.safe is False else self.outcome.cause


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time of one request's prompt, every sample kept."""

    tokens: int
    tokens_origin: str
    """``measured`` with a tokenizer, ``assumed`` (four characters a token) without."""
    chars: int
    messages: int
    render_seconds: list[float]
    tokenise_seconds: list[float] | None


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that :mod:`kvprobe.rules.template` judges."""

    source: str
    bidirectional: bool
    client: str
    """``any``, ``returns`` or ``drops``: which clients the operator has."""
    given: bool
    """The conversation was given, not built in."""
    cells: tuple[Cell, ...]
    switches: tuple[dict[str, Any], ...] = ()
    not_varied: tuple[str, ...] = ()
    strftime: tuple[str, ...] = ()
    reasoning_fields: tuple[str, ...] = ()
    """Message fields for reasoning that the template reads."""
    clock: str | None = None
    """``minute`` or ``day``: how soon the rendered prompt changes by itself; None if it does not."""
    harmony: bool = False
    tokens_note: str | None = None
    """Why token ids were not compared; None when they were."""
    special_tokens_assumed: tuple[str, ...] = ()
    """Special tokens that the template prints and nobody told: rendered with stand-ins."""
    cost: Cost | None = None
    cost_error: str | None = None
    rate: float | None = None
    """Requests per second that the front end has to take."""

    def judged(self) -> tuple[Cell, ...]:
        """The cells that decide: the operator's switches, the operator's clients."""
        wanted = {ANY: (RETURNED, DROPPED), RETURNS: (RETURNED,), DROPS: (DROPPED,)}[self.client]
        return tuple(
            c
            for c in self.cells
            if c.default and c.supported and (self.given or c.client in (*wanted, NO_REASONING))
        )

    def decisive(self) -> Cell:
        """The cell that the answer is about: the first unsafe one, else a refused one, else the first."""
        cells = self.judged() or self.cells
        return next(
            (c for c in cells if c.safe is False), next((c for c in cells if c.safe is None), cells[0])
        )

    def safe_settings(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Settings of the switches under which every exchange keeps the prefix, with the client they need."""
        found: list[tuple[dict[str, Any], str]] = []
        for switches in (
            s
            for i, s in enumerate(c.switches for c in self.cells)
            if s not in [x.switches for x in self.cells[:i]]
        ):
            mine = [c for c in self.cells if c.switches == switches and c.supported]
            if mine and all(c.safe for c in mine):
                found.append((switches, ANY))
            elif mine and all(c.safe for c in mine if c.client != DROPPED):
                found.append((switches, RETURNS))
        return tuple(found)


def check_tokens(turn1: list[int], generated: list[int], turn2: list[int]) -> TokenCheck:
    """Compare ids; the generated text stands without its stop text."""
    expected = [*turn1, *generated]
    common = next(
        (i for i, (a, b) in enumerate(zip(expected, turn2, strict=False)) if a != b),
        min(len(expected), len(turn2)),
    )
    return TokenCheck(
        turn1=len(turn1), generated=len(generated), common=common, exact=common == len(expected)
    )


def clock_of(now: str, minute_later: str, day_later: str) -> str | None:
    """How soon a prompt changes by itself: three renderings of the same request at three times."""
    if common_prefix(now, minute_later) < max(len(now), len(minute_later)):
        return "minute"
    return "day" if now != day_later else None
