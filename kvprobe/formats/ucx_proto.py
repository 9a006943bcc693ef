"""UCX's protocol tables (``UCX_PROTO_INFO=used``): the only reliable witness of the transport.

A table has a title row, such as ``remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[2]``, and a
row per range of message sizes: use count, range, protocol, lanes. ``active message`` tables are NIXL's control
traffic and say nothing about the data (nixl#366).
"""

from __future__ import annotations

import re

import msgspec

_ROW = re.compile(r"\]\s+(\|.*\|)\s*$")
_SIZE = re.compile(r"^(\d+)([KMGT]?)$")
_POWERS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


class ProtocolRow(msgspec.Struct, frozen=True, kw_only=True):
    """One used protocol: ``how`` is UCX's word (``zero-copy``, ``software emulation``), ``via`` the lanes."""

    operation: str
    """``READ``, ``WRITE`` or UCX's own title if it is neither."""
    title: str
    count: int
    low_bytes: int
    high_bytes: int | None
    """None: no upper end."""
    how: str
    via: str


def parse_protocol_tables(text: str) -> tuple[ProtocolRow, ...]:
    """The rows of remote-memory operations that were used at least once; equal rows are added up."""
    found: dict[tuple[str, int, int | None, str, str], int] = {}
    title = ""
    for line in text.splitlines():
        match = _ROW.search(line)
        if match is None:
            continue
        cells = [cell.strip() for cell in match[1].strip("|").split("|")]
        if len(cells) == 1:
            title = title if "cfg#" in cells[0] else cells[0]
        elif len(cells) >= 4 and cells[0].isdigit() and int(cells[0]) and "active message" not in title:
            low, _, high = cells[1].partition("..")
            key = (title, _bytes(low) or 0, _bytes(high), cells[2], cells[3])
            found[key] = found.get(key, 0) + int(cells[0])
    return tuple(
        ProtocolRow(
            operation=_operation(key[0]),
            title=key[0],
            count=count,
            low_bytes=key[1],
            high_bytes=key[2],
            how=key[3],
            via=key[4],
        )
        for key, count in found.items()
    )


def _bytes(text: str) -> int | None:
    match = _SIZE.match(text.strip())
    return int(match[1]) * _POWERS[match[2]] if match else None


def _operation(title: str) -> str:
    if "ucp_get" in title or "memory read" in title:
        return "READ"
    if "ucp_put" in title or "memory write" in title:
        return "WRITE"
    return title


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """The transport that carried most of an operation's messages."""

    name: str
    """``cuda_ipc``, ``cma``, ``tcp``, ``rc_mlx5`` ...; several joined with ``+``."""
    how: str
    via: str
    emulated: bool
    """True: no zero-copy path; UCX copies through active messages (the silent cliff)."""
    share: float
    """Its share of the operation's messages, 0 to 1."""

    @property
    def label(self) -> str:
        """``cuda_ipc, zero-copy`` or ``tcp/lo, software emulation``."""
        if "rndv" in self.how:
            return f"{self.name}, rendezvous pipeline through host memory"
        return f"{self.via if self.emulated else self.name}, {self.how}"


def observed_transport(rows: tuple[ProtocolRow, ...], operation: str) -> Transport | None:
    """The dominant transport of READ or WRITE; None when no table names the operation.

    Emulation rules as soon as it carries a tenth of the messages: a mean over both would hide the slow path.
    """
    mine = [row for row in rows if row.operation == operation]
    total = sum(row.count for row in mine)
    if not total:
        return None
    emulated = [row for row in mine if "emulation" in row.how]
    pool = emulated if sum(r.count for r in emulated) * 10 >= total else mine
    top = max(pool, key=lambda row: row.count)
    same = sum(r.count for r in mine if (r.how, r.via) == (top.how, top.via))
    names = re.findall(r"([a-z][a-z0-9_]*)/", top.via)
    return Transport(
        name="+".join(dict.fromkeys(names)) or top.via,
        how=top.how,
        via=top.via,
        emulated=top in emulated,
        share=same / total,
    )
