"""The rounds of rendering behind ``kvprobe template``: inspect, prompts, repaired prompts."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from kvprobe.flows.template_bench import Bench, Case, Judged, Rounds
from kvprobe.formats.chat_template_conversation import Conversation
from kvprobe.models import template_matrix as matrix
from kvprobe.models.template_facts import Cell, clock_of
from kvprobe.models.template_prefix import Outcome, compare, refused
from kvprobe.models.template_request import Render, as_sent, render_of, repaired
from kvprobe.probes.chat_template import Rendered


def _clock_renders(base: Render, now: str) -> list[Render]:
    """The same request at three times: a prompt that changes by itself breaks every longer chat."""
    start = datetime.datetime.fromisoformat(now)
    later = {
        "now": start,
        "minute": start + datetime.timedelta(minutes=1),
        "day": start + datetime.timedelta(days=1),
    }
    return [
        msgspec.structs.replace(base, id=f"clock:{name}", now=at.isoformat()) for name, at in later.items()
    ]


def clock(info: Rendered) -> str | None:
    texts = [info.text(f"clock:{name}") for name in ("now", "minute", "day")]
    if any(t is None for t in texts):
        return None
    return clock_of(*(t or "" for t in texts))


def given(bench: Bench, conversation: Conversation, fixed: dict[str, Any]) -> Rounds:
    """Judge the operator's own conversation."""

    def with_fixed(request: Any) -> Any:
        return msgspec.structs.replace(
            request, chat_template_kwargs={**fixed, **request.chat_template_kwargs}
        )

    turns = as_sent(with_fixed(conversation.turn1), with_fixed(conversation.turn2), bench.now)
    first = [
        render_of(turns.turn1, "turn1"),
        render_of(turns.turn1, "open", generation=False),
        render_of(turns.turn2, "turn2"),
    ]
    clock_base = turns.turn1.now or bench.now
    info = bench.render([*first, *_clock_renders(first[0], clock_base)])
    kwargs = turns.turn2.chat_template_kwargs

    def cell(outcome: Outcome) -> Cell:
        return Cell(
            exchange="given",
            title="the given conversation",
            client="given",
            switches=kwargs,
            default=True,
            outcome=outcome,
        )

    for number, id in ((1, "turn1"), (2, "turn2")):
        message = info.error or info.refusal(id)
        if message:
            return Rounds(judged=[Judged(cell=cell(refused(message, number)))], info=info)
    case = Case(
        id="given",
        turns=turns,
        generated=conversation.generated_text,
        stop_text=conversation.stop_text,
        turn1=info.text("turn1") or "",
        turn1_open=info.text("open"),
        exchange="given",
        title="the given conversation",
        client="given",
        switches=kwargs,
        default=True,
    )
    return Rounds(judged=_judge(bench, [case]), info=info)


def built_in(bench: Bench, fixed: dict[str, Any]) -> Rounds:
    """Judge the built-in chats under every setting of the switches."""
    looked = bench.render([])
    if looked.error:
        return Rounds(judged=[_unread(looked.error)], info=looked)
    settings, not_varied = matrix.settings(looked.inspection["switches"], fixed, bench.now)
    renders: list[Render] = []
    for setting in settings:
        for client in (matrix.RETURNED, matrix.DROPPED):
            turns = as_sent(setting.turn1(client), setting.turn2(client), bench.now)
            renders += [
                render_of(turns.turn1, f"{setting.id}:{client}:turn1"),
                render_of(turns.turn1, f"{setting.id}:{client}:open", generation=False),
                render_of(turns.turn2, f"{setting.id}:{client}:turn2"),
            ]
        for name, request in setting.probes().items():
            probe = as_sent(request, request, bench.now).turn1
            renders.append(render_of(probe, f"{setting.id}:{name}", generation=False))
    renders += _clock_renders(renders[0], bench.now)
    info = bench.render(renders)
    if info.error:
        return Rounds(judged=[_unread(info.error)], info=info, not_varied=not_varied)
    judged: list[Judged] = []
    cases: list[Case] = []
    for setting in settings:
        failed, ready = _prepare(bench, setting, info, default=setting.kwargs == fixed)
        judged += [Judged(cell=cell) for cell in failed]
        cases += ready
    judged += _judge(bench, cases)
    order = {(s.exchange.name, str(s.kwargs)): i for i, s in enumerate(settings)}
    clients = (matrix.NO_REASONING, matrix.RETURNED, matrix.DROPPED)
    judged.sort(key=lambda j: (order[j.cell.exchange, str(j.cell.switches)], clients.index(j.cell.client)))
    return Rounds(judged=judged, info=info, not_varied=not_varied)


def _unread(message: str) -> Judged:
    cell = Cell(
        exchange="plain",
        title="any chat",
        client=matrix.NO_REASONING,
        switches={},
        default=True,
        outcome=refused(message, 1),
    )
    return Judged(cell=cell)


def _prepare(
    bench: Bench, setting: matrix.Setting, info: Rendered, default: bool
) -> tuple[list[Cell], list[Case]]:
    """The cells that the template refuses or cannot express, and the cases that can be judged."""
    exchange = setting.exchange

    def cell(message: str, turn: int, supported: bool = True) -> Cell:
        return Cell(
            exchange=exchange.name,
            title=exchange.title,
            client=matrix.NO_REASONING,
            switches=setting.kwargs,
            default=default,
            outcome=refused(message, turn),
            supported=supported,
        )

    key = f"{setting.id}:{matrix.RETURNED}"
    for number, id in ((1, f"{key}:turn1"), (2, f"{key}:turn2")):
        message = info.refusal(id)
        if message:
            return [cell(message, number, supported=exchange.name == "plain")], []
    bare = info.text(f"{setting.id}:bare")
    written = None
    if bare is not None:
        written = matrix.written(
            setting,
            info.text(f"{key}:turn1") or "",
            info.text(f"{key}:open") or "",
            info.text(f"{setting.id}:{matrix.DROPPED}:open") or "",
            info.text(f"{setting.id}:self"),
            bare,
            bench.template.text,
            bench.tokens.get("eos_token", ""),
        )
    if written is None:
        return [cell("it does not print tool calls", 2, supported=exchange.name == "plain")], []
    clients = (matrix.RETURNED, matrix.DROPPED) if written.thinks else (matrix.NO_REASONING,)
    cases, failed = [], []
    for client in clients:
        source = matrix.DROPPED if client == matrix.NO_REASONING else client
        message = info.refusal(f"{setting.id}:{source}:turn1")
        if message:
            failed.append(msgspec.structs.replace(cell(message, 1), client=client))
            continue
        cases.append(
            Case(
                id=f"{setting.id}:{client}",
                turns=as_sent(setting.turn1(client), setting.turn2(client), bench.now),
                generated=written.text,
                stop_text=written.stop_text,
                turn1=info.text(f"{setting.id}:{source}:turn1") or "",
                turn1_open=info.text(f"{setting.id}:{source}:open"),
                exchange=exchange.name,
                title=exchange.title,
                client=client,
                switches=setting.kwargs,
                default=default,
            )
        )
    return failed, cases


def _judge(bench: Bench, cases: list[Case]) -> list[Judged]:
    """Render every repaired turn N+1 of every case in one go, and compare."""
    renders: list[Render] = []
    plans: list[dict[frozenset[str], str]] = []
    for case in cases:
        plan = {}
        for number, (names, request) in enumerate(repaired(case.turns, case.split).items()):
            plan[names] = f"{case.id}:{number}"
            renders.append(render_of(request, plan[names]))
        first, second = case.turns.turn1, case.turns.turn2
        inside = [*first.messages, *second.messages[len(first.messages) : len(first.messages) + 1]]
        renders.append(
            render_of(msgspec.structs.replace(first, messages=inside), f"{case.id}:inside", generation=False)
        )
        plans.append(plan)
    done = bench.render(renders)
    judged = []
    for case, plan in zip(cases, plans, strict=True):
        prompts = {names: text for names, id in plan.items() if (text := done.text(id)) is not None}
        if frozenset() in prompts:
            outcome = compare(
                case.turns, case.generated, case.stop_text, case.split, prompts, case.turn1, case.turn1_open,
                done.text(f"{case.id}:inside"),
            )  # fmt: skip
        else:
            outcome = refused(done.error or done.refusal(plan[frozenset()]) or "no prompt came back", 2)
        cell = Cell(
            exchange=case.exchange,
            title=case.title,
            client=case.client,
            switches=case.switches,
            default=case.default,
            outcome=outcome,
        )
        judged.append(Judged(cell=cell, case=case, turn2=prompts.get(frozenset())))
    return judged
