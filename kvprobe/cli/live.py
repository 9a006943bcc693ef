"""`kvprobe live`: what the running deployment really adds."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION
from kvprobe.flows.live import live


class Lengths(click.ParamType):  # type: ignore[type-arg]  # generic only since Click 8.3
    """``512,2048,8192``."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple | list):
            return tuple(value)
        try:
            return tuple(int(part.replace("_", "")) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of prompt lengths such as 512,2048,8192.", param, ctx)


@click.command()
@click.option("--prefill", metavar="URL", help="The prefill server, such as http://node-a:8100.")
@click.option("--decode", metavar="URL", help="The decode server.")
@click.option("--proxy", metavar="URL", help="Your router in front of both; its own share is measured.")
@click.option("--colocated", metavar="URL", help="The same model without P/D, the other half of each pair (default: the decode server alone).")  # fmt: skip
@click.option("--render", metavar="URL", help="`vllm launch render`: measure render, prefill, decode, derender.")  # fmt: skip
@click.option("--prompt-tokens", type=Lengths(), default="512,2048,8192", show_default=True, help="Prompt lengths.")  # fmt: skip
@click.option("--requests", type=int, default=8, show_default=True, help="Pairs a prompt length.")
@click.option("--output-tokens", type=int, default=16, show_default=True, help="Tokens decoded a request.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Long prompts a second that disturb the streams; doubled until the colocated tail breaks.")  # fmt: skip
@click.option("--streams", type=int, default=2, show_default=True, help="Long decode streams under that load.")  # fmt: skip
@click.option("--load", "load_seconds", type=DURATION, default="8s", show_default=True, help="Length of one load window; 0s measures no load.")  # fmt: skip
@click.option("--ramp", type=int, default=3, show_default=True, help="Rates tried at most.")
@click.option("--turns", type=int, default=0, help="Also conversations of N turns, for bidirectional deployments; 5 is usual.")  # fmt: skip
@click.option("--ttft-slo", type=DURATION, help="The TTFT that P/D must keep, such as 500ms.")
@click.option("--tpot-slo", type=DURATION, help="The inter-token time that streams must keep (p99).")
@click.option("--report", metavar="FILE", help="A preflight report of this node: its prediction is held against the truth.")  # fmt: skip
@click.option("--kv-buffer-device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="As in the servers' kv_transfer_config.")  # fmt: skip
@click.option("--model", metavar="NAME", help="The served model name (default: the one they list).")
@click.option("--api", type=click.Choice(["completions", "generate"]), default="completions", show_default=True, help="generate: for servers with --tokens-only.")  # fmt: skip
@click.option("--settle/--no-settle", default=True, show_default=True, help="Short streams first, so that decode's free KV blocks lie mixed as traffic leaves them; then warm up twice.")  # fmt: skip
@click.option("--allow-busy", is_flag=True, help="Measure servers that already have requests in flight.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the bearer token; its value is never recorded.")  # fmt: skip
@click.option("--ca-file", metavar="FILE", help="Certificates to trust for https.")
@click.option("--insecure", is_flag=True, help="Do not check certificates.")
@click.option("--timeout", type=DURATION, default="60s", show_default=True, help="Longest silence of a server.")  # fmt: skip
@click.option("--max-time", "max_seconds", type=DURATION, default="300s", show_default=True, help="Start no further request after this.")  # fmt: skip
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """What does the running deployment really add to TTFT? Drives prefill and decode itself, and judges.

    Unique prompts both ways, through P/D and colocated, in random order; sends nothing to the side channel.

    \b
    kvprobe live --prefill http://node-a:8100 --decode http://node-b:8200
    kvprobe live --prefill URL --decode URL --proxy URL --ttft-slo 500ms --tpot-slo 30ms
    kvprobe live --prefill URL --decode URL --report preflight.json --load 0s
    """
    execute(ctx, common, params, live)
