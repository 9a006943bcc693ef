"""One picture of a machine's GPUs, whether NVML told it or saved nvidia-smi texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvprobe.formats.nvidia_smi import SmiText
from kvprobe.formats.nvidia_smi_tables import Table
from kvprobe.formats.nvidia_smi_text import Foreign, ToolError
from kvprobe.formats.nvml import GpuFacts

NEAR_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Words of ``topo -m`` from near to far."""


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """What is known. ``matrix`` holds, per letter (r, w, n, a, p, rw; m for ``topo -m``; ? for a table
    whose letter nothing tells), ``GPU0>GPU1`` -> word: what GPU0 may do with GPU1.
    """

    source: str
    gpus: tuple[str, ...] = ()
    names: dict[str, str] = {}
    uuids: dict[str, tuple[str, ...]] = {}
    """The GPU's own and those of its MIG instances."""
    nics: dict[str, str] = {}
    matrix: dict[str, dict[str, str]] = {}
    missing: dict[str, tuple[str, ...]] = {}
    """Per letter the cells that the header promises and the text does not hold."""
    contradictions: dict[str, dict[str, tuple[str, ...]]] = {}
    """Per letter and cell the different words that different tables give."""
    cpu_affinity: dict[str, str | None] = {}
    numa: dict[str, str | None] = {}
    mig: tuple[str, ...] = ()
    """GPUs in MIG mode."""
    nvlink_bytes_per_second: dict[str, tuple[float, ...]] = {}
    """Each active link of a GPU, one direction."""
    errors: tuple[ToolError, ...] = ()
    errors_alone: bool = False
    """At least one file holds an error and nothing else."""
    foreign: Foreign | None = None
    header_cut: bool = False
    """A table's header is incomplete, so a GPU that is not in it may be there all the same."""
    warnings: tuple[str, ...] = ()
    recognised: bool = True

    def link(self, a: str, b: str) -> str | None:
        """``NV18``, ``PIX`` ... ``SYS`` between two devices; None if no ``topo -m`` tells."""
        return self.matrix.get("m", {}).get(f"{a}>{b}") or self.matrix.get("m", {}).get(f"{b}>{a}")

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """The NICs closest to a GPU, with their names: ``NIC0 (mlx5_0)``."""
        found: dict[str, list[str]] = {}
        for cell, word in self.matrix.get("m", {}).items():
            device, other = cell.split(">")
            if device == gpu and other not in self.gpus and word in NEAR_FIRST:
                found.setdefault(word, []).append(
                    f"{other} ({self.nics[other]})" if other in self.nics else other
                )
        return next((tuple(found[word]) for word in NEAR_FIRST if word in found), ())


def from_nvml(facts: GpuFacts) -> Topology:
    """The live machine, with nvidia-smi's names."""
    matrix: dict[str, dict[str, str]] = {letter: {} for letter in "rwnapm"}
    for pair in facts.pairs:
        cell = f"GPU{pair.a}>GPU{pair.b}"
        for letter, word in zip(
            "rwnap", (pair.read, pair.write, pair.nvlink, pair.atomics, pair.prop), strict=True
        ):
            matrix[letter][cell] = word
        distance = f"NV{pair.nvlinks}" if pair.nvlinks else pair.ancestor
        if distance:
            matrix["m"][cell] = distance
    links = {
        f"GPU{g.index}": (g.nvlinks.bytes_per_second_per_link,) * g.nvlinks.active
        for g in facts.gpus
        if g.nvlinks.bytes_per_second_per_link
    }
    return Topology(
        source="NVML",
        gpus=tuple(f"GPU{g.index}" for g in facts.gpus),
        names={f"GPU{g.index}": g.name for g in facts.gpus},
        uuids={f"GPU{g.index}": (g.uuid,) for g in facts.gpus},
        matrix={letter: cells for letter, cells in matrix.items() if cells},
        mig=tuple(f"GPU{g.index}" for g in facts.gpus if g.mig),
        nvlink_bytes_per_second={name: tuple(r for r in rates if r) for name, rates in links.items()},
    )


def from_texts(texts: Sequence[SmiText]) -> Topology:
    """All files together. A later table of one session replaces an earlier one; two files that differ contradict."""
    merged = _Merge()
    for text in texts:
        merged.add_file(text)
    gpus: dict[str, None] = {}
    for text in texts:
        for name in [g for t in text.tables for g in t.gpus] + [f"GPU{g.index}" for g in text.gpus]:
            gpus[name] = None
    listed = {f"GPU{g.index}": g for text in texts for g in text.gpus}
    tables = [table for text in texts for table in text.tables if table.kind == "m"]
    return Topology(
        source=", ".join(text.source for text in texts),
        gpus=tuple(sorted(gpus, key=lambda name: int(name[3:]))),
        names={name: g.name for name, g in listed.items()},
        uuids={name: (*((g.uuid,) if g.uuid else ()), *g.mig_uuids) for name, g in listed.items()},
        nics={name: device for text in texts for name, device in text.nics.items()},
        matrix=merged.matrix,
        missing={letter: tuple(cells) for letter, cells in merged.missing.items() if cells},
        contradictions=merged.contradictions,
        cpu_affinity={name: value for t in tables for name, value in t.cpu_affinity.items()},
        numa={name: value for t in tables for name, value in t.numa.items()},
        mig=tuple(name for name, g in listed.items() if g.mig),
        nvlink_bytes_per_second={
            f"GPU{i}": tuple(rate * 1e9 for rate in rates)
            for text in texts
            for i, rates in text.nvlink_gigabytes.items()
        },
        errors=tuple(error for text in texts for error in text.errors),
        errors_alone=any(text.errors and not (text.tables or text.gpus) for text in texts),
        foreign=next((text.foreign for text in texts if text.foreign), None),
        warnings=tuple(merged.warnings)
        + tuple(f"{t.source}: {w}" for t in texts if not t.foreign for w in t.warnings),
        header_cut=any(table.header_cut for text in texts for table in text.tables),
        recognised=any(not text.empty for text in texts),
    )


class _Merge:
    def __init__(self) -> None:
        self.matrix: dict[str, dict[str, str]] = {}
        self.missing: dict[str, list[str]] = {}
        self.contradictions: dict[str, dict[str, tuple[str, ...]]] = {}
        self.warnings: list[str] = []
        self._origin: dict[str, tuple[str, str | None]] = {}

    def add_file(self, text: SmiText) -> None:
        for table in text.tables:
            letter = "m" if table.kind == "m" else table.capability or "?"
            self._add(letter, table, text.source)
            origin = self._origin.get(letter)
            if origin and origin[1] and table.host and origin[1] != table.host:
                self.warnings.append(
                    f"the tables of {letter} come from {origin[1]} and {table.host}: two machines?"
                )
            self._origin[letter] = (text.source, table.host)

    def _add(self, letter: str, table: Table, source: str) -> None:
        known = self.matrix.setdefault(letter, {})
        origin = self._origin.get(letter)
        same_session = origin is None or (origin[0] == source and origin[1] == table.host)
        differing = [cell for cell, word in table.cells.items() if known.get(cell, word) != word]
        for cell in differing:
            words = (known[cell], table.cells[cell])
            if same_session:
                self.warnings.append(
                    f"{source}: {cell} of {_name(letter)} was {words[0]} first and {words[1]} later; the later counts"
                )
            else:
                told = self.contradictions.setdefault(letter, {})
                told[cell] = tuple(dict.fromkeys((*told.get(cell, ()), *words)))
        known.update(table.cells)
        gaps = self.missing.setdefault(letter, [])
        self.missing[letter] = [c for c in dict.fromkeys([*gaps, *table.missing]) if c not in known]


def _name(letter: str) -> str:
    return "topo -m" if letter == "m" else f"topo -p2p {letter}"


def pairs_with(matrix: dict[str, str], word: str, gpus: Iterable[str]) -> tuple[str, ...]:
    """The ordered pairs ``GPU0>GPU1`` of these GPUs that have a status."""
    names = set(gpus)
    return tuple(cell for cell, found in matrix.items() if found == word and set(cell.split(">")) <= names)
