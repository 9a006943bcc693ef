"""Which series to measure: the model's plan at several prompt lengths, the judged one first, within memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.models.descriptors import DescriptorPlan, plan
from kvprobe.models.kv_layout import KvLayout
from kvprobe.models.transfer import Step, StepGroup

POOL_SLACK = 1.25
"""Registered blocks over moved blocks: shuffled ids need room to scatter."""
LENGTHS = (512, 2048, 8192, 32768)
JUDGED_TOKENS = 8192


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, and which prompt lengths did not fit."""

    steps: tuple[Step, ...]
    plans: dict[int, DescriptorPlan]
    """Every wanted prompt length, measured or not."""
    left_out: tuple[int, ...] = ()
    """Lengths whose KV cache does not fit into the memory allowed."""
    needed_bytes: int = 0
    """Registered per side for the steps."""


def step_groups(planned: DescriptorPlan) -> tuple[StepGroup, ...]:
    return tuple(
        StepGroup(regions=g.regions, descriptor_bytes=g.descriptor_bytes, blocks=g.blocks)
        for g in planned.groups
    )


def pool_bytes(planned: DescriptorPlan) -> int:
    """Memory per side that measuring this plan registers."""
    return int(planned.bytes * POOL_SLACK)


def plans_of(layout: KvLayout, prompt_tokens: Sequence[int]) -> dict[int, DescriptorPlan]:
    """The usual prompt lengths and the wanted ones, shortest first."""
    return {n: plan(layout, n) for n in sorted({*LENGTHS, *prompt_tokens})}


def select(
    layout: KvLayout,
    prompt_tokens: Sequence[int],
    *,
    memory_bytes: int,
    operation: str = "READ",
    samples: int = 10,
    seconds_per_step: float = 3.0,
) -> Selection:
    """READ (or WRITE) shuffled and contiguous at every length that fits; the other direction at the judged one.

    The shortest shuffled series comes first: it takes UCX's wire-up, which is first contact and not the cost of
    a prompt. The judged length follows, then the rest, the longest last.
    """
    plans = plans_of(layout, prompt_tokens)
    fitting = [n for n in plans if pool_bytes(plans[n]) <= memory_bytes]
    judged = JUDGED_TOKENS if JUDGED_TOKENS in fitting else max(fitting, default=0)
    other = "WRITE" if operation == "READ" else "READ"
    order: list[tuple[str, str, int]] = []
    if fitting:
        rest = [n for n in fitting if n not in (fitting[0], judged)]
        order = [
            (operation, "shuffled", fitting[0]),
            (operation, "shuffled", judged),
            (operation, "contiguous", judged),
        ]
        order += [(operation, "shuffled", n) for n in rest if n < judged]
        order += [(other, "shuffled", judged), (operation, "contiguous", fitting[0])]
        order += [(operation, "shuffled", n) for n in rest if n > judged]
        order += [(operation, "contiguous", n) for n in rest]
    steps = [
        Step(
            id=f"{op.lower()}-{shape}-{n}",
            op=op,
            order=shape,
            prompt_tokens=n,
            groups=step_groups(plans[n]),
            samples=samples,
            max_seconds=seconds_per_step,
        )
        for op, shape, n in dict.fromkeys(order)
    ]
    return Selection(
        steps=tuple(steps),
        plans=plans,
        left_out=tuple(n for n in plans if n not in fitting),
        needed_bytes=max((pool_bytes(plans[n]) for n in fitting), default=0),
    )
