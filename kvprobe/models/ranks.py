"""Who reads what from whom when both sides run tensor parallel; and how the ranks together compare with one alone.

As vLLM 0.33 pairs them (nixl/tp_mapping.py, nixl/base_worker.py): a decode rank reads from prefill rank
``rank * P // D``. With more decode than prefill ranks each takes its heads out of that rank's block, which lie together
in the block-contiguous layout (LBHNC, "HND"). With fewer it gathers its block from ``P / D`` prefill ranks. What every
rank holds whole (MLA, an indexer) is read whole, from one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.formats.ucx_proto import ProtocolRow, Transport, observed_transport
from kvprobe.models.descriptors import DescriptorPlan, TransferGroup
from kvprobe.models.kv_layout.types import Refused
from kvprobe.models.statistics import median

_WHOLE = ("mla", "indexer")
_STATE = "recurrent_state"


class GroupRead(msgspec.Struct, frozen=True, kw_only=True):
    """Out of each of ``regions`` regions, ``blocks`` pieces of ``piece_bytes``; offsets and strides in bytes."""

    regions: int
    blocks: int
    piece_bytes: int
    my_stride: int
    """A whole block of decode's rank."""
    my_offset: int
    their_stride: int
    """A whole block of prefill's rank."""
    their_offset: int


class RankRead(msgspec.Struct, frozen=True, kw_only=True):
    """What a decode rank reads from one prefill rank; None for a group that it reads from another one."""

    prefill_rank: int
    groups: tuple[GroupRead | None, ...]

    @property
    def descriptors(self) -> int:
        return sum(g.regions * g.blocks for g in self.groups if g)

    @property
    def bytes(self) -> int:
        return sum(g.regions * g.blocks * g.piece_bytes for g in self.groups if g)


def pair(
    decode: DescriptorPlan, prefill: DescriptorPlan, *, decode_tp: int, prefill_tp: int
) -> tuple[tuple[RankRead, ...], ...]:
    """The reads of each decode rank. Raises Refused where vLLM refuses, and where no rule is known."""
    large, small = max(decode_tp, prefill_tp), min(decode_tp, prefill_tp)
    if large % small:
        raise Refused(
            f"TP {decode_tp} on decode and TP {prefill_tp} on prefill do not divide one another; vLLM refuses the handshake.",
            "tp_not_divisible",
        )
    mine, theirs = decode.groups, prefill.groups
    if [(g.name, g.regions, g.blocks) for g in mine] != [(g.name, g.regions, g.blocks) for g in theirs]:
        raise Refused("The two TP sizes cut this model into unlike groups of regions.", "unlike_groups")
    if decode_tp != prefill_tp and any(g.name.startswith(_STATE) for g in mine):
        raise Refused(
            "How recurrent states are cut between unequal TP sizes is not modelled here.",
            "state_with_unequal_tp",
        )
    return tuple(_reads(rank, mine, theirs, decode_tp, prefill_tp) for rank in range(decode_tp))


def _reads(
    rank: int, mine: Sequence[TransferGroup], theirs: Sequence[TransferGroup], decode_tp: int, prefill_tp: int
) -> tuple[RankRead, ...]:
    by_source: dict[int, list[GroupRead | None]] = {}
    for number, (own, other) in enumerate(zip(mine, theirs, strict=True)):
        for source, piece, my_offset, their_offset in _pieces(rank, own, other, decode_tp, prefill_tp):
            groups = by_source.setdefault(source, [None] * len(mine))
            groups[number] = GroupRead(
                regions=own.regions,
                blocks=own.blocks,
                piece_bytes=piece,
                my_stride=own.descriptor_bytes,
                my_offset=my_offset,
                their_stride=other.descriptor_bytes,
                their_offset=their_offset,
            )
    return tuple(RankRead(prefill_rank=s, groups=tuple(g)) for s, g in sorted(by_source.items()))


def _pieces(
    rank: int, own: TransferGroup, other: TransferGroup, decode_tp: int, prefill_tp: int
) -> list[tuple[int, int, int, int]]:
    """``(prefill rank, bytes, offset in decode's block, offset in prefill's block)`` for one group."""
    mine, theirs = own.descriptor_bytes, other.descriptor_bytes
    source = rank * prefill_tp // decode_tp
    if decode_tp >= prefill_tp:
        ratio, cut = decode_tp // prefill_tp, theirs // mine if mine else 0
        if not cut or theirs % mine or ratio % cut:
            raise _uneven(own)
        # Fewer cuts than ranks: heads are copied on decode, and neighbours read the same slice.
        return [(source, mine, 0, (rank % ratio) * cut // ratio * mine)]
    if own.name in _WHOLE:
        return [(source, mine, 0, 0)]
    ratio = prefill_tp // decode_tp
    if theirs * ratio != mine:
        if mine % theirs or mine // theirs > ratio:
            raise _uneven(own)
        raise Refused(
            f"Prefill's TP {prefill_tp} exceeds the model's KV heads, so its ranks hold copies: vLLM refuses to gather them on TP {decode_tp}.",
            "replicated_heads_on_prefill",
            "Use a TP on prefill that is at most the number of KV heads, or at least as many ranks on decode.",
        )
    first = rank * ratio
    return [(first + i, theirs, i * theirs, 0) for i in range(ratio)]


def _uneven(group: TransferGroup) -> Refused:
    return Refused(f"The blocks of {group.name} are not whole multiples of each other under the two TP sizes.", "uneven_blocks")  # fmt: skip


class RankSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One decode rank. Seconds count from the common start of all ranks to this one's last byte."""

    rank: int
    reads_from: tuple[int, ...]
    """Prefill ranks."""
    place: str
    """``GPU 0 -> GPU 2`` (all its prefill GPUs), or ``host memory``."""
    bytes: int
    descriptors: int
    alone_seconds: tuple[float, ...] = ()
    """Warm samples with no other rank pulling."""
    together_seconds: tuple[float, ...] = ()
    """Warm samples with all ranks pulling."""
    cold_seconds: float | None = None
    late_seconds: tuple[float, ...] = ()
    """How far behind the common start this rank posted, per sample of ``together_seconds``."""
    verified: bool = False

    @property
    def slowdown(self) -> float | None:
        if not self.alone_seconds or not self.together_seconds:
            return None
        return median(self.together_seconds) / median(self.alone_seconds)


class RanksRun(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of one measurement."""

    memory: str
    decode_tp: int
    prefill_tp: int
    prompt_tokens: int
    order: str
    ranks: tuple[RankSeries, ...] = ()
    whole_seconds: tuple[float, ...] = ()
    """Per sample: until the last rank is done."""
    protocols: tuple[ProtocolRow, ...] = ()
    versions: dict[str, str] = {}
    failure: str | None = None
    failure_remedy: str = ""
    failure_log: str = ""

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.ranks)

    @property
    def together_bytes_per_second(self) -> float | None:
        return self.bytes / median(self.whole_seconds) if self.whole_seconds else None

    @property
    def slowest(self) -> RankSeries | None:
        known = [r for r in self.ranks if r.together_seconds]
        return max(known, key=lambda r: median(r.together_seconds), default=None)

    @property
    def imbalance(self) -> float | None:
        """The slowest rank's median over the median of all ranks' medians; None with fewer than two ranks."""
        known = [median(r.together_seconds) for r in self.ranks if r.together_seconds]
        return max(known) / median(known) if len(known) > 1 else None

    @property
    def slowdown(self) -> float | None:
        """The median over the ranks of together against alone."""
        known = [r.slowdown for r in self.ranks if r.slowdown is not None]
        return median(known) if known else None

    @property
    def transport(self) -> Transport | None:
        return observed_transport(self.protocols, "READ")
