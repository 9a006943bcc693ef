"""`kvprobe preflight`: the main job."""

from __future__ import annotations

from typing import Any

import click

from kvprobe.cli.case_options import case_options
from kvprobe.cli.common import Common, common_options, execute
from kvprobe.cli.types import DURATION, SIZE
from kvprobe.flows.preflight import preflight


@click.command()
@click.option(
    "--model", metavar="MODEL", help="Hub name, directory, config.json or one of the shipped models."
)
@click.option("--memory", type=click.Choice(["auto", "vram", "dram"]), default="auto", show_default=True, help="auto: the GPUs, and host memory instead where there are none (UNKNOWN then).")  # fmt: skip
@click.option("--prefill-gpu", type=click.IntRange(min=0), default=0, show_default=True, help="CUDA ordinal of the prefill GPU.")  # fmt: skip
@click.option("--decode-gpu", type=click.IntRange(min=0), default=1, show_default=True, help="CUDA ordinal of the decode GPU.")  # fmt: skip
@click.option("--all-pairs", is_flag=True, help="Measure every ordered pair of GPUs.")
@click.option("--connector", type=click.Choice(["pull", "push"]), default="pull", show_default=True, help="pull: decode READs (NixlConnector); push: prefill WRITEs (NixlPushConnector).")  # fmt: skip
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="As vllm serve's.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallel size; one rank's share is moved.")  # fmt: skip
@click.option(
    "--block-size", type=click.IntRange(min=1), help="As vllm serve's (default: what vLLM chooses)."
)
@click.option("--prompt-tokens", type=click.IntRange(min=1), multiple=True, help="Further prompt lengths (besides 512, 2048, 8192, 32768); repeatable.")  # fmt: skip
@click.option(
    "--budget", type=DURATION, default="20s", show_default=True, help="Time for measuring transfers."
)
@click.option("--max-memory", type=SIZE, help="Memory registered per side at most (default 8GiB of VRAM, 4GiB of DRAM).")  # fmt: skip
@click.option("--vllm-version", help="The vLLM that will serve (default: the one installed here).")
@click.option("--kv-buffer-device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="As in kv_transfer_config; cpu stages through host memory.")  # fmt: skip
@click.option("--calibration", metavar="FILE", help="Constants of this deployment from `kvprobe calibrate`.")
@click.option("--ttft-slo", type=DURATION, help="The TTFT you must keep, such as 500ms.")
@click.option("--base-ttft", type=DURATION, help="The TTFT you have without P/D at 8,192 tokens.")
@click.option("--ucx/--no-ucx", default=True, show_default=True, help="Measure rung 2, raw UCX, as well.")
@click.option("--diagnose", type=click.Choice(["auto", "off"]), default="auto", show_default=True, help="auto: when the transfer is far from the raw copy, find out why by experiment.")  # fmt: skip
@click.option("--diagnose-budget", type=DURATION, default="90s", show_default=True, help="Time for these experiments.")  # fmt: skip
@click.option(
    "--decode-log", metavar="FILE", help="The decode engine's log: rung 5 from its KV Transfer metrics."
)
@click.option("--prefill-url", metavar="URL", help="Running prefill server: rungs 5 and 6,")
@click.option("--decode-url", metavar="URL", help="together with the decode server")
@click.option(
    "--colocated-url", metavar="URL", help="and, if there is one, a colocated server to compare with."
)
@case_options
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> None:
    """Will P/D pay on this hardware for this model? Measures the ladder and judges it.

    \b
    kvprobe preflight --model Qwen/Qwen2.5-7B-Instruct
    kvprobe preflight --model ./config.json --prefill-gpu 2 --decode-gpu 3 --profile nvlink
    kvprobe preflight --replay samples/scenarios/h200-x2-nvlink
    """
    execute(ctx, common, params, preflight)
