"""The options with which a user states the case that the advice is for; shared by ``preflight`` and ``estimate``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvprobe.cli.types import DURATION

F = TypeVar("F", bound=Callable[..., Any])

CASE_PARAMS = ("itl_slo", "itl_p99", "rate", "turns", "traffic", "max_num_batched_tokens")
_OPTIONS = (
    click.option("--itl-slo", type=DURATION, help="The gap between tokens you must keep, such as 50ms."),
    click.option("--itl-p99", type=DURATION, help="The ITL p99 you measure today, colocated."),
    click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="R", help="Requests/s that one prefill instance (today: one server) gets."),
    click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Turns of a usual conversation."),
    click.option("--traffic", type=click.Choice(["low", "bursty", "steady"]), help="How requests arrive."),
    click.option("--max-num-batched-tokens", type=click.IntRange(min=1), metavar="N", help="As vllm serve's today (default: 8192, vLLM's for GPUs of 70 GiB or more)."),
)  # fmt: skip


def case_options(function: F) -> F:
    """Add them; their values are the parameters :data:`CASE_PARAMS`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
