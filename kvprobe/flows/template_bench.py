"""What the rounds of ``kvprobe template`` hand on, and the last of them: token ids and CPU cost."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.flows import Door
from kvprobe.formats.chat_template import TemplateSource
from kvprobe.models import template_matrix as matrix
from kvprobe.models.template_facts import Cell, Cost, check_tokens
from kvprobe.models.template_request import Render, Turns
from kvprobe.models.template_thinking import Generated, split_generated
from kvprobe.probes import chat_template
from kvprobe.probes.chat_template import Rendered

COST_SECONDS = 5.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange to judge: both requests, the generated text, and where it belongs."""

    id: str
    turns: Turns
    generated: str
    stop_text: str
    turn1: str
    turn1_open: str | None
    exchange: str
    title: str
    client: str
    switches: dict[str, Any]
    default: bool

    @property
    def split(self) -> Generated:
        return split_generated(self.turn1, self.generated, self.stop_text)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with what it was judged from; neither case nor prompt when the template refused."""

    cell: Cell
    case: Case | None = None
    turn2: str | None = None


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the rounds brought to light."""

    judged: list[Judged]
    info: Rendered
    not_varied: tuple[str, ...] = ()


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """What the last round adds: token ids in the cells, the cost, and why either is missing."""

    cells: list[Cell]
    cost: Cost | None = None
    cost_error: str | None = None
    tokens_note: str | None = None


class Bench:
    """The template, ready to be rendered."""

    def __init__(self, door: Door, template: TemplateSource, tokens: dict[str, str], now: str) -> None:
        self.door = door
        self.template = template
        self.tokens = tokens
        self.now = now

    def render(self, renders: list[Render], **more: Any) -> Rendered:
        return chat_template.render(self.door.system, self.template, renders, tokens=self.tokens, **more)


def last(bench: Bench, rounds: Rounds, request: dict[str, Any] | None, tokenizer: str | None) -> Last:
    """Token ids of the exchanges that decide, and the CPU cost of a long chat."""
    encode: dict[str, str] = {}
    for number, judged in enumerate(rounds.judged):
        case = judged.case
        if tokenizer and case and judged.turn2 is not None and judged.cell.default:
            kept = case.generated[: len(case.generated) - len(case.stop_text)]
            encode |= {f"{number}:1": case.turn1, f"{number}:g": kept, f"{number}:2": judged.turn2}
            encode[f"{number}:stop"] = case.stop_text
    cells = [j.cell for j in rounds.judged]
    if not encode and not request:
        return Last(cells=cells)
    done = bench.render(
        [], tokenizer=tokenizer, encode=encode, cost=request, extra_seconds=2 * COST_SECONDS if request else 0
    )
    foreign = [encode[key] for key, ids in done.encoded.items() if key.endswith(":stop") and len(ids) > 1]
    for number in range(len(cells)):
        if f"{number}:1" in done.encoded and not foreign:
            ids = (done.encoded[f"{number}:{part}"] for part in "1g2")
            cells[number] = msgspec.structs.replace(cells[number], tokens=check_tokens(*ids))
    note = None
    if foreign:
        note = f"the tokenizer does not know the stop token {foreign[0]}: it does not belong to this template"
    if done.error or done.cost is None or "error" in done.cost:
        return Last(cells=cells, cost_error=done.error or (done.cost or {}).get("error"), tokens_note=note)
    return Last(cells=cells, cost=msgspec.convert(done.cost, Cost), tokens_note=note)


def cost_request(bench: Bench, tokens: int, samples: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The worker's job: a chat of ordinary questions and answers, about ``tokens`` tokens long."""
    turn = [
        {"role": "user", "content": matrix.LONG_QUESTION},
        {"role": "assistant", "content": matrix.LONG_ANSWER},
    ]
    request = {"tools": None, "kwargs": kwargs, "now": bench.now, "add_generation_prompt": True}
    return {
        "tokens": tokens,
        "turn": turn,
        "request": request,
        "samples": samples,
        "budget_seconds": COST_SECONDS,
    }
