"""The screen of ``kvprobe template``: where the turns part, and the matrix of chats."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.report import Report
from kvprobe.units import format_seconds

_CLIENT = {"returned": "sent back", "dropped": "dropped", "none": "none", "given": ""}


def blocks(report: Report, look: Look) -> list[Block]:
    """``turn 2 against turn 1``: one exchange as two lines of text, many as a table."""
    result = report.result
    body = _one(result, look) if len(result["cells"]) == 1 else _matrix(result, look)
    found = [Block(title=f"turn 2 against turn 1 ({result['compared'].replace('_', ' ')})", body=tuple(body))]
    cost = result.get("cost")
    if cost:
        found.append(Block(title="front end", body=(_cost(cost),)))
    return found


def _one(result: dict[str, Any], look: Look) -> list[RenderableType]:
    where = result["diverges"]
    if result["exact_prefix"] is None:
        return [Text("no prompt: the template refused the conversation")]
    if where is None:
        chars = result["turn1_prompt_chars"] + result["generated_chars"]
        return [Text(f"exact prefix: all {chars:,} characters of turn 1 and its answer")]
    place = where["in"].replace("_", " ")
    lines = [
        Text(f"the texts part at character {where['offset']:,} of the {place}", style=""),
        _side("turn 1", where["turn1_side"], look),
        _side("turn 2", where["turn2_side"], look),
        Text(
            f"{result['chars_not_reusable']:,} of {result['turn1_prompt_chars'] + result['generated_chars']:,} characters cannot be reused; cause: {result['cause']}"
        ),
    ]
    return list(lines)


def _side(name: str, text: str, look: Look) -> Text:
    shown = json.dumps(text, ensure_ascii=not look.unicode)
    return Text(f"  {name}  ... {shown}")


def _matrix(result: dict[str, Any], look: Look) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", expand=False)
    for column in ("chat", "reasoning", "switches", "prefix"):
        table.add_column(column, overflow="fold", no_wrap=column == "switches")
    for row in _rows(result["cells"]):
        table.add_row(*row)
    return [table]


def _rows(cells: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """One line an outcome; switches are named where they make the difference."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        safe = cell["bidirectional_safe"]
        if safe is None and not cell["default_switches"]:
            continue
        word = "holds" if safe else f"BROKEN: {cell['cause'].replace('_', ' ')}"
        if safe is None:
            word = f"{'refused' if cell['supported'] else 'not tested'}: {str(cell['template_error'])[:60]}"
        groups.setdefault((cell["title"], _CLIENT[cell["client"]], word), []).append(cell)
    settings = [c["switches"] for c in cells]
    rows = [
        (title, client, _switches([c["switches"] for c in members], settings), word)
        for (title, client, word), members in groups.items()
    ]
    titles = [c["title"] for c in cells]
    return sorted(rows, key=lambda r: titles.index(r[0]))


def _switches(members: list[dict[str, Any]], all_settings: list[dict[str, Any]]) -> str:
    """The values that a group of settings has in common and others have not; ``any`` if it makes no difference."""
    names = sorted({name for setting in all_settings for name in setting})
    told = []
    for name in names:
        mine = _values(name, members)
        if len(mine) < len(_values(name, all_settings)):
            told.append(f"{name}=" + "|".join(mine))
    return "\n".join(told) or ("any" if names else "")


def _values(name: str, settings: list[dict[str, Any]]) -> list[str]:
    found = [json.dumps(s[name], ensure_ascii=False) if name in s else "unset" for s in settings]
    return list(dict.fromkeys(found))


def _cost(cost: dict[str, Any]) -> RenderableType:
    about = "" if cost["tokens_origin"] == "measured" else "about "
    tokenise = cost["tokenise_seconds_median"]
    text = (
        f"CPU for a chat of {about}{cost['tokens']:,} tokens: render {format_seconds(cost['render_seconds_median'])}"
        f" (median of {cost['samples']}), tokenise "
        + (format_seconds(tokenise) if tokenise is not None else "not measured")
    )
    if cost["core_share"] is not None:
        text += f"; {cost['core_share'] * 100:.3g} % of a core at {cost['rate']:g} requests/s"
    return sentences(Text(text))
