"""Which rank reads what from which: held against the heads that each rank must end up with."""

from __future__ import annotations

import itertools

import pytest

from kvprobe.models.descriptors import DescriptorPlan, TransferGroup
from kvprobe.models.kv_layout.types import Refused
from kvprobe.models.ranks import RankSeries, RanksRun, pair

HEAD = 1024


def heads_of(rank: int, tp: int, heads: int) -> list[int]:
    """vLLM: whole heads per rank, or one head copied over tp / heads ranks."""
    if tp >= heads:
        return [rank * heads // tp]
    each = heads // tp
    return list(range(rank * each, (rank + 1) * each))


def planned(tp: int, heads: int, *more: TransferGroup) -> DescriptorPlan:
    size = HEAD * max(1, heads // tp)
    group = TransferGroup(name="full_attention", regions=3, descriptor_bytes=size, blocks=5)
    return DescriptorPlan(
        prompt_tokens=80, block_size_tokens=16, groups=(group, *more), bytes_all_ranks=tp * group.bytes
    )


SIZES = [(d, p, k) for d, p, k in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16), (1, 2, 4, 8)) if p <= k or d >= p]  # fmt: skip


@pytest.mark.parametrize(("d", "p", "k"), SIZES)
def test_every_rank_gets_exactly_its_heads(d: int, p: int, k: int) -> None:
    reads = pair(planned(d, k), planned(p, k), decode_tp=d, prefill_tp=p)
    assert len(reads) == d
    for rank, own in enumerate(reads):
        block: dict[int, int] = {}
        for read in own:
            source = heads_of(read.prefill_rank, p, k)
            (group,) = [g for g in read.groups if g is not None]
            assert group.their_stride == HEAD * len(source)
            for offset in range(0, group.piece_bytes, HEAD):
                slot = (group.my_offset + offset) // HEAD
                assert slot not in block
                block[slot] = source[(group.their_offset + offset) // HEAD]
        assert [block[slot] for slot in sorted(block)] == heads_of(rank, d, k)
        assert sum(r.bytes for r in own) == planned(d, k).bytes


def test_more_prefill_ranks_multiply_the_descriptors_and_more_decode_ranks_do_not() -> None:
    gathered = pair(planned(2, 8), planned(8, 8), decode_tp=2, prefill_tp=8)
    assert [r.prefill_rank for r in gathered[1]] == [4, 5, 6, 7]
    assert sum(r.descriptors for r in gathered[1]) == 4 * planned(2, 8).descriptors
    sliced = pair(planned(8, 8), planned(2, 8), decode_tp=8, prefill_tp=2)
    assert [(own[0].prefill_rank, own[0].groups[0].their_offset // HEAD) for own in sliced if own[0].groups[0]] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]  # fmt: skip
    assert sliced[0][0].descriptors == planned(8, 8).descriptors


@pytest.mark.parametrize(("d", "p", "sources"), [(4, 2, [0, 0, 1, 1]), (2, 8, [0, 4]), (2, 2, [0, 1])])
def test_mla_is_read_whole_from_one_rank(d: int, p: int, sources: list[int]) -> None:
    group = TransferGroup(name="mla", regions=61, descriptor_bytes=18432, blocks=4)
    whole = DescriptorPlan(
        prompt_tokens=64, block_size_tokens=16, groups=(group,), bytes_all_ranks=d * group.bytes
    )
    reads = pair(whole, whole, decode_tp=d, prefill_tp=p)
    assert [[r.prefill_rank for r in own] for own in reads] == [[s] for s in sources]
    assert all(own[0].bytes == group.bytes for own in reads)


def test_mixed_models_read_each_group_by_its_own_rule() -> None:
    indexer = TransferGroup(name="indexer", regions=2, descriptor_bytes=512, blocks=5)
    reads = pair(planned(1, 2, indexer), planned(2, 2, indexer), decode_tp=1, prefill_tp=2)
    assert [[g is not None for g in r.groups] for r in reads[0]] == [[True, True], [True, False]]


@pytest.mark.parametrize(
    ("d", "p", "code"), [(2, 3, "tp_not_divisible"), (2, 8, "replicated_heads_on_prefill"), (1, 8, "replicated_heads_on_prefill")]
)  # fmt: skip
def test_what_vllm_refuses_is_refused(d: int, p: int, code: str) -> None:
    with pytest.raises(Refused) as caught:
        pair(planned(d, 4), planned(p, 4), decode_tp=d, prefill_tp=p)
    assert caught.value.reason_code == code


def test_states_are_paired_with_equal_sizes_only() -> None:
    state = TransferGroup(name="recurrent_state ssm", regions=2, descriptor_bytes=512, blocks=1)
    assert len(pair(planned(2, 4, state), planned(2, 4, state), decode_tp=2, prefill_tp=2)) == 2
    with pytest.raises(Refused, match="recurrent"):
        pair(planned(4, 4, state), planned(2, 4, state), decode_tp=4, prefill_tp=2)


def series(rank: int, alone: float, together: float) -> RankSeries:
    return RankSeries(
        rank=rank, reads_from=(rank,), place="host memory", bytes=1000, descriptors=10,
        alone_seconds=(alone,) * 5, together_seconds=(together,) * 5, verified=True,
    )  # fmt: skip


def test_together_against_alone() -> None:
    ranks = (series(0, 1.0, 2.0), series(1, 1.0, 2.0), series(2, 1.0, 5.0))
    run = RanksRun(memory="vram", decode_tp=3, prefill_tp=3, prompt_tokens=16, order="shuffled", ranks=ranks, whole_seconds=(5.0,) * 5)  # fmt: skip
    assert run.together_bytes_per_second == 600 and run.slowdown == 2.0
    assert run.slowest is not None and run.slowest.rank == 2 and run.imbalance == 2.5
    nothing = RanksRun(memory="vram", decode_tp=3, prefill_tp=3, prompt_tokens=16, order="shuffled")
    assert (nothing.together_bytes_per_second, nothing.slowdown, nothing.slowest, nothing.imbalance, nothing.transport) == (None,) * 5  # fmt: skip
