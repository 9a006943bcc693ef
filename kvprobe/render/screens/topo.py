"""``topo``: the pair in words, then the matrices with the deciding cell marked."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block
from kvprobe.report import Report
from kvprobe.units import format_bytes, format_rate

_TITLES = {
    "r": "topo -p2p r (read)", "w": "topo -p2p w (write)", "rw": "topo -p2p rw (read and write)",
    "n": "topo -p2p n (nvlink)", "a": "topo -p2p a (atomics)", "p": "topo -p2p p (pcie)",
    "m": "topo -m (distance)", "?": "a P2P table whose letter nothing tells",
}  # fmt: skip
_STYLE = {"OK": "green", "X": "dim", "U": "magenta", "?": "magenta"}
_REFUSED = {"CNS", "GNS", "TNS", "NS", "DR"}


def blocks(report: Report, look: Look) -> list[Block]:
    """The pair, the deciding matrix and ``topo -m``; every letter with ``-v``."""
    result = report.result
    conclusion = result["conclusion"]
    drawn = [Block("pair", tuple(_pair(result)))]
    deciding = conclusion["letter"] if conclusion["letter"] in result["matrix"] else None
    for letter, cells in result["matrix"].items():
        if (
            not look.verbose
            and letter not in (deciding, "m")
            and (deciding or letter != next(iter(result["matrix"])))
        ):
            continue
        marked = conclusion["cell"] if letter == deciding else None
        body = _matrix(result["gpus"], cells, marked, look)
        if body:
            drawn.append(Block(_TITLES.get(letter, letter), tuple(body)))
    return drawn


def _pair(result: dict[str, Any]) -> list[RenderableType]:
    conclusion, names, nvml = result["conclusion"], result["names"], result.get("nvml")
    rows = []
    for role in ("prefill", "decode"):
        gpu = conclusion[role]
        details = [names[gpu]] if gpu in names else []
        details += _nvml_details(gpu, nvml)
        if gpu not in result["gpus"]:
            details = ["not seen"]
        rows.append((role, "  ".join([gpu, ", ".join(details)]).rstrip()))
    if conclusion["status"]:
        actor, peer = conclusion["cell"].split(">")
        rows.append(
            (
                "access",
                f"{actor} to {peer}: {conclusion['status']} ({conclusion['meaning'] or 'unknown word'})",
            )
        )
    if conclusion["link"]:
        rows.append(("link", f"{conclusion['link']} ({conclusion['link_meaning'] or 'unknown word'})"))
    ceiling = result["link"]
    if ceiling:
        rate = ceiling["bytes_per_second"]
        told = f"{format_rate(rate)} one direction" if rate else "not known"
        rows.append(("ceiling", f"{told}: {ceiling['basis']}"))
    near = {
        gpu: nics
        for gpu, nics in result["nearest_nics"].items()
        if gpu in (conclusion["prefill"], conclusion["decode"])
    }
    rows += [("nics", f"{gpu} is nearest to {', '.join(nics)}") for gpu, nics in near.items()]
    if nvml:
        rows.append(("driver", f"{nvml['driver'] or 'unknown'}, CUDA {nvml['cuda'] or 'unknown'}"))
    return [_row(label, text) for label, text in rows]


def _nvml_details(gpu: str, nvml: dict[str, Any] | None) -> list[str]:
    found = next((g for g in (nvml or {}).get("gpus", []) if f"GPU{g['index']}" == gpu), None)
    if found is None:
        return []
    details = []
    if found["memory_total_bytes"]:
        free = found["memory_free_bytes"]
        total = format_bytes(found["memory_total_bytes"])
        details.append(f"{format_bytes(free)} of {total} free" if free is not None else total)
    pcie = found["pcie"]
    if pcie["generation_max"] and pcie["width"]:
        details.append(f"PCIe {pcie['generation_max']}.0 x{pcie['width']}")
    if found["nvlinks"]["active"]:
        details.append(f"{found['nvlinks']['active']} NVLinks up")
    return details


def _row(label: str, text: str) -> Text:
    line = Text(f"{label:<9}", style="dim")
    line.append(text)
    return line


def _matrix(gpus: list[str], cells: dict[str, str], marked: str | None, look: Look) -> list[RenderableType]:
    """Rows access columns; the deciding cell in brackets. What does not fit the width is left out, and said so."""
    room = max(2, (look.width - 8) // 7)
    pair = set(marked.split(">")) if marked else set()
    columns = sorted(sorted(gpus, key=lambda g: (g not in pair, gpus.index(g)))[:room], key=gpus.index)
    lines: list[RenderableType] = [Text("       " + "".join(f" {gpu:<6}" for gpu in columns), style="dim")]
    for row in gpus:
        line = Text(f"{row:<7}")
        for column in columns:
            word = "X" if row == column else cells.get(f"{row}>{column}", "?")
            style = _STYLE.get(word, "red" if word in _REFUSED else "")
            shown = f"[{word}]" if f"{row}>{column}" == marked else f" {word}"
            line.append(f"{shown:<7}", style=style)
        lines.append(line)
    if len(columns) < len(gpus):
        lines.append(
            Text(f"{len(gpus) - len(columns)} more columns do not fit; --format json has all", style="dim")
        )
    notes = ["the row's GPU accesses the column's"] if marked else []
    if any(f"{a}>{b}" not in cells for a in gpus for b in gpus if a != b):
        notes.append("? = not in the text")
    if notes and len(gpus) > 1:
        lines.append(Text("; ".join(notes), style="dim"))
    return lines if len(gpus) > 1 else []
