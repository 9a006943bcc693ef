"""The matrices of ``nvidia-smi topo -m`` and ``topo -p2p``, with TABs or with the spaces of a pasted terminal."""

from __future__ import annotations

import re

import msgspec

P2P_WORDS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|INT|C2C")
_GPU = re.compile(r"GPU\d+")
_CELL = re.compile(rf"X|OK|CNS|GNS|TNS|NS|DR|U|N/A|[\d,-]+|{_LINK.pattern}")
# NICs were named by device before "NIC0": mlx5_0, mlx5_bond_0, bnxt_re0. A name that a narrow paste cut has no digit.
_DEVICE = re.compile(r"GPU\d+|NIC\d+|[a-z][\w.-]*\d\w*|\.\.\.|…")
_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_ELLIPSIS = ("...", "…")


class Table(msgspec.Struct, kw_only=True):
    """One matrix. ``cells`` holds ``GPU0>GPU1`` -> word; the row is the GPU that accesses, the column its peer."""

    kind: str
    """``p2p`` (permission), ``m`` (distance); ``none`` if the cells are not NVIDIA's words."""
    line: int
    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    cells: dict[str, str] = {}
    capability: str | None = None
    """r, w, n, a, p, rw; None for ``topo -m`` or if nothing says it."""
    host: str | None = None
    """From the prompt before it, if there is one."""
    cpu_affinity: dict[str, str | None] = {}
    numa: dict[str, str | None] = {}
    missing: tuple[str, ...] = ()
    """Rows and cells that the header promises and the text does not hold."""
    header_cut: bool = False
    """The text ends in the header, or a margin cut it: GPUs may be missing from it."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of the columns and, where the header was cut, of the rows."""
        return tuple(c for c in dict.fromkeys((*self.columns, *self.rows)) if _GPU.fullmatch(c))


class _Open:
    def __init__(self, line: int, header: str) -> None:
        self.line = line
        self.tabs = "\t" in header.strip()
        self.columns, self.affinity = _columns(header)
        self.rows: dict[str, dict[str, str]] = {}
        self.cpu: dict[str, str | None] = {}
        self.numa: dict[str, str | None] = {}
        self.refused: set[str] = set()
        self.capability: str | None = None
        self.host: str | None = None
        self.matrix_asked = False

    def complete(self) -> bool:
        return all(c in self.rows for c in self.columns if _is_device(c))


class TableReader:
    """Fed line by line; keeps finished tables."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.warnings: list[str] = []
        self.opened = False
        """True right after a line that began a table."""
        self._table: _Open | None = None

    def take(self, line: str, number: int, *, cut: bool) -> bool:
        """Whether the line belongs to a table. ``cut``: the text ends in this line, without a line end."""
        self.opened = False
        tokens = line.split()
        table = self._table
        if not tokens:
            # A blank line ends the table in nvidia-smi's own output; pastes with doubled line ends have it between rows.
            return False
        if table is not None and self._continues(table, tokens):
            return True
        if _is_header(tokens) and not (table and len(tokens) == 1 and not table.complete()):
            self.close()
            self._table = _Open(number, line)
            self.opened = True
            return True
        if table is None or (tokens[0] not in table.columns and not _GPU.fullmatch(tokens[0])):
            if not _DEVICE.fullmatch(tokens[0]):
                self._end_at(line)
            return False
        self._row(table, line, tokens, cut)
        return True

    def _continues(self, table: _Open, tokens: list[str]) -> bool:
        """A terminal narrower than the matrix breaks its lines: the rest of the header, or of the last row."""
        if not table.rows:
            if table.affinity or tokens[0] in table.columns or not _begins_header(tokens):
                return False
            columns, table.affinity = _columns(" ".join(tokens))
            table.columns += columns
            return True
        last = next(reversed(table.rows))
        rest = [c for c in table.columns if c not in table.rows[last]]
        words = [t for t in tokens if _known(t)]
        if last in table.refused or not rest or not words or not all(_CELL.fullmatch(t) for t in tokens):
            return False
        table.rows[last].update(zip(rest, words, strict=False))
        return True

    def _end_at(self, line: str) -> None:
        """Rows after a legend would belong to another table."""
        if self._table is not None and self._table.rows and line.strip():
            self.close()

    def label(self, capability: str | None, *, host: str | None, matrix_asked: bool) -> None:
        """What the surroundings say about the table that was just opened."""
        if self._table is not None:
            self._table.capability, self._table.host, self._table.matrix_asked = (
                capability,
                host,
                matrix_asked,
            )

    def close(self) -> None:
        """Finish the open table."""
        table, self._table = self._table, None
        if table is not None:
            self.tables.append(_finish(table))

    def _row(self, table: _Open, line: str, tokens: list[str], cut: bool) -> None:
        name = tokens[0]
        count = len(table.columns)
        if table.tabs and "\t" in line.strip():
            cells = [c.strip() for c in line.strip(" ").split("\t")][1:]
            if line.startswith("\t"):
                cells = [c.strip() for c in line.lstrip("\t ").split("\t")][1:]
            values, rest = cells[:count], cells[count:]
        else:
            values, rest = tokens[1 : 1 + count], _by_position(tokens[1 + count :])
        if cut and len(values) < count and values and not line.endswith(("\t", " ")):
            values.pop()  # the text ends inside this word
        found = {c: v for c, v in zip(table.columns, values, strict=False) if v and v not in _ELLIPSIS}
        if found.get(name, "X") != "X":
            self.warnings.append(
                f"row {name} of the table at line {table.line} has {found[name]!r} where X (itself) belongs: "
                "its columns are shifted, so the row was not used"
            )
            found = {}
            table.refused.add(name)
        table.rows[name] = found
        if _GPU.fullmatch(name) and table.affinity:
            for target, title in ((table.cpu, "CPU Affinity"), (table.numa, "NUMA Affinity")):
                if title in table.affinity:
                    index = table.affinity.index(title)
                    target[name] = (rest[index] if index < len(rest) else "") or None


def _known(word: str) -> bool:
    return word == "X" or word in P2P_WORDS or bool(_LINK.fullmatch(word))


def _by_position(tokens: list[str]) -> list[str]:
    """Affinity cells of a line without TABs: which one is missing cannot be told if there are fewer than two."""
    return (
        tokens if len(tokens) >= 2 and re.fullmatch(r"[\d,-]+", tokens[0]) and tokens[1].isdecimal() else []
    )


def _is_device(name: str) -> bool:
    return name not in _ELLIPSIS and bool(_DEVICE.fullmatch(name))


def _is_header(tokens: list[str]) -> bool:
    if not _GPU.fullmatch(tokens[0]):
        return False
    return len(tokens) == 1 or bool(_DEVICE.fullmatch(tokens[1])) or tokens[1:3] == ["CPU", "Affinity"]


def _begins_header(tokens: list[str]) -> bool:
    return bool(_DEVICE.fullmatch(tokens[0])) and _is_header(["GPU0", *tokens]) or tokens[1:2] == ["Affinity"]


def _columns(header: str) -> tuple[tuple[str, ...], list[str]]:
    text = header
    affinity = sorted((a for a in _AFFINITY if a in header), key=header.index)
    if affinity:
        text = header[: header.index(affinity[0])]
    return tuple(text.split()), affinity


def _fits(kind: str, word: str) -> bool:
    """A word that the cut of a paste left, or a column that slid, is no word of this kind of table."""
    return word in P2P_WORDS if kind == "p2p" else bool(_LINK.fullmatch(word))


def _finish(table: _Open) -> Table:
    words = [v for row, cells in table.rows.items() for c, v in cells.items() if c != row]
    p2p, link = sum(w in P2P_WORDS for w in words), sum(bool(_LINK.fullmatch(w)) for w in words)
    selfs = sum(cells.get(row) == "X" for row, cells in table.rows.items())
    if words and p2p + link < len(words) / 2:
        kind = "none"
    elif link > p2p or table.affinity or (not words and table.matrix_asked):
        kind = "m"
    elif p2p or selfs or not table.rows:
        kind = "p2p"
    else:
        kind = "none"
    if not table.rows and len(table.columns) < 2:
        kind = "none"
    cells = {
        f"{row}>{column}": word
        for row, found in table.rows.items()
        for column, word in found.items()
        if row != column and _is_device(column) and _fits(kind, word)
    }
    devices = [c for c in dict.fromkeys((*table.columns, *table.rows)) if _is_device(c)]
    missing = [f"{a}>{b}" for a in devices for b in devices if a != b and f"{a}>{b}" not in cells]
    if kind == "p2p":
        missing = [m for m in missing if "NIC" not in m]
    return Table(
        kind=kind,
        line=table.line,
        columns=tuple(c for c in table.columns if _is_device(c)),
        rows=tuple(table.rows),
        cells=cells,
        capability=table.capability if kind == "p2p" else None,
        host=table.host,
        cpu_affinity=table.cpu,
        numa=table.numa,
        missing=tuple(missing),
        header_cut=not table.rows or any(not _DEVICE.fullmatch(c) for c in table.columns),
    )
