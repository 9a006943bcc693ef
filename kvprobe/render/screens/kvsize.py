"""``kvsize``: the sizes, the layers they come from, what moves per prompt, and what was assumed."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.render import Look
from kvprobe.render.screens import Block, sentences
from kvprobe.report import Report
from kvprobe.units import format_bytes


def blocks(report: Report, look: Look) -> list[Block]:
    """Sizes, layers, transfer, assumptions; the arithmetic and the second opinions where they were asked for."""
    result = report.result
    if result["status"] != "ok":
        other = result.get("cross_check")
        return [Block("vLLM's own", (_cross_check(other),))] if other and not other.get("error") else []
    drawn = [Block("size", (_sizes(result),)), Block("layers", (_layers(result["layer_groups"], look),))]
    drawn.append(Block("NixlConnector, pull, each decode rank", _transfer(result["nixl_transfer"])))
    if result.get("check_against_log"):
        drawn.append(Block("decode log", (_log(result["check_against_log"]),)))
    if result.get("cross_check") and not result["cross_check"].get("error"):
        drawn.append(Block("vLLM's own", (_cross_check(result["cross_check"]),)))
    if result.get("explain"):
        drawn.append(Block("arithmetic", (sentences(*map(Text, result["explain"])),)))
    if result["assumptions"] or result["notes"]:
        drawn.append(Block("assumed", (_assumed(result),)))
    if look.verbose:
        keys = [
            Text(f"{name}: {', '.join(found)}", style="dim") for name, found in result["config_keys"].items()
        ]
        drawn.append(Block("config keys", (sentences(*keys),)))
    return drawn


def _plain_table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return table


def _number(value: float) -> str:
    return f"{value:,}" if float(value).is_integer() else f"{value:,.1f}"


def _sizes(result: dict[str, Any]) -> RenderableType:
    table = _plain_table("", "each rank", "all ranks", left=("",))
    per_token, growth = result["bytes_per_token"], result["growth_bytes_per_token"]
    state = result["state_bytes_per_sequence"]
    if per_token["per_rank"]:
        table.add_row("a token, inside its window" if growth != per_token else "a token", *_pair(per_token))
    if growth != per_token:
        table.add_row("a token, for as long as it lives", *_pair(growth))
    if state["per_rank"]:
        table.add_row("a sequence, constant", *_pair(state))
    table.add_row("block", f"{result['block_size_tokens']:,} tokens", "")
    return table


def _pair(pair: dict[str, float]) -> tuple[str, str]:
    return f"{_number(pair['per_rank'])} B", f"{_number(pair['all_ranks'])} B"


def _layers(groups: list[dict[str, Any]], look: Look) -> RenderableType:
    table = _plain_table("", "layers", "heads", "K + V", "B/token/layer", "B/token", left=("",))
    for group in groups:
        if "state" in group:
            shapes = " + ".join(" x ".join(str(n) for n in shape) for shape in group["state_shapes_per_rank"])
            name = f"state ({group['state'].replace('_', ' ')}, {shapes})"
            size = f"{group['state_bytes_per_layer_per_rank']:,} B/sequence"
            table.add_row(name, f"{group['layers']}", "", "", size, "")
        else:
            table.add_row(
                _kind(group),
                f"{group['layers']}",
                f"{group['kv_heads_per_rank']}",
                f"{group['head_size']} + {group['head_size_v']}"
                if group["head_size_v"]
                else f"{group['head_size']}",
                f"{group['bytes_per_token_per_layer_per_rank']:,}",
                f"{group['bytes_per_token_per_rank']:,}",
            )
        if look.verbose:
            table.add_row(Text(f"  {group['layer_index']}", style="dim"), "", "", "", "", "")
    return table


def _kind(group: dict[str, Any]) -> str:
    kind = str(group["kind"])
    words = {"mla": "MLA", "indexer": "index keys"}.get(kind, kind.replace("_", " "))
    if group.get("window"):
        words += f" of {group['window']:,}"
    return words + (", on every rank" if group.get("replicated") else "")


def _transfer(transfer: dict[str, Any]) -> tuple[RenderableType, ...]:
    if transfer["status"] != "ok":
        return (sentences(Text(transfer["reason"] or transfer["status"], style="yellow")),)
    table = _plain_table("prompt", "bytes", "descriptors", "largest", "all ranks", "", left=("",))
    refused: list[Text] = []
    for tokens, entry in transfer["prompts"].items():
        if entry["status"] != "ok":
            table.add_row(f"{int(tokens):,}", Text("refused", style="yellow"), "", "", "", "")
            refused.append(Text(entry["reason"], style="yellow"))
            continue
        largest = max(group["descriptor_bytes"] for group in entry["groups"])
        note = Text("longer than the model takes", style="yellow") if entry["longer_than_model"] else ""
        table.add_row(
            f"{int(tokens):,}",
            format_bytes(entry["per_rank"]),
            f"{entry['descriptors_per_rank']:,}",
            format_bytes(largest),
            format_bytes(entry["all_ranks"]),
            note,
        )
    told = "descriptors before NIXL merges neighbours"
    if transfer["needs"]:
        told += f"; both sides need {', '.join(transfer['needs'])}"
    return (table, sentences(*refused, Text(told, style="dim")))


def _assumed(result: dict[str, Any]) -> RenderableType:
    lines = [Text(f"{a['what']} = {a['value']}: {a['why']}") for a in result["assumptions"]]
    return sentences(*lines, *(Text(note, style="dim") for note in result["notes"]))


def _log(agreement: dict[str, Any]) -> RenderableType:
    table = _plain_table("line", "transfers", "logged, mean", "computed", "tokens", "", left=("",))
    for line in agreement["lines"][:20]:
        computed, tokens = line["computed_bytes"], line["implied_tokens"]
        table.add_row(
            f"{line['line']:,}",
            f"{line['transfers']:,}",
            format_bytes(line["logged_bytes"]),
            format_bytes(computed) if computed is not None else "",
            f"{tokens:,.0f}" if tokens is not None and tokens >= 0 else "",
            f"{line['verdict']}: {line['explanation']}",
        )
    if len(agreement["lines"]) > 20:
        table.add_row("...", "", "", "", "", f"{len(agreement['lines']) - 20} more lines in --format json")
    return table


def _cross_check(comparison: dict[str, Any]) -> RenderableType:
    found = comparison["vllm"]
    table = _plain_table("", "", left=("",))
    table.add_row(f"vLLM {comparison['version']}, layers with a cache", f"{found['layers']:,}")
    table.add_row("a token, each rank", f"{found['bytes_per_token']['per_rank']:,} B")
    if found["state_bytes_per_sequence"]["per_rank"]:
        table.add_row("a sequence, each rank", f"{found['state_bytes_per_sequence']['per_rank']:,} B")
    table.add_row("block", f"{found['block_size_tokens']:,} tokens")
    return table
