"""``kvprobe template``."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from kvprobe.cli.common import Common, common_options, execute
from kvprobe.flows.template import run


@click.command("template")
@click.argument("path", metavar="TEMPLATE")
@click.option(
    "--conversation", metavar="FILE", help="Your own two turns (JSON) instead of the built-in chats."
)
@click.option(
    "--bidirectional/--no-bidirectional",
    default=True,
    show_default=True,
    help="Is bidirectional KV transfer on? Off: a broken prefix is a note, not a NO-GO.",
)
@click.option(
    "--client",
    type=click.Choice(["any", "returns", "drops"]),
    default="any",
    show_default=True,
    help="Do your clients send the reasoning back? (built-in chats)",
)
@click.option(
    "--chat-template-kwargs",
    metavar="JSON",
    help="Template arguments that hold in every request, as vLLM's --default-chat-template-kwargs.",
)
@click.option(
    "--template-name",
    metavar="NAME",
    help="Which template, where a file holds several (default, tool_use, rag).",
)
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="A tokenizer.json, to compare token ids (default: the one beside the template).",
)
@click.option("--no-tokens", is_flag=True, help="Compare text even if a tokenizer is at hand.")
@click.option(
    "--cost-tokens",
    type=click.IntRange(0, 200_000),
    default=9000,
    show_default=True,
    help="Measure the CPU time of a chat of so many tokens; 0: do not measure.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests per second, to tell the share of a core.",
)
@click.option(
    "--samples", type=click.IntRange(5, 1000), default=20, show_default=True, help="Samples of the CPU time."
)
@common_options
def command(ctx: click.Context, common: Common, **params: Any) -> NoReturn:
    """Is bidirectional KV transfer safe with this chat template?

    TEMPLATE is a Jinja file, tokenizer_config.json, chat_template.json or a local model directory. Two turns of a
    chat are rendered in a sandbox; turn 2 must begin with turn 1 and what the model generated. vLLM compares only
    counts there: with bidirectional transfer a difference gives wrong output, silently.

    \b
    kvprobe template ./Qwen3-8B                                     all built-in chats and switches
    kvprobe template tokenizer_config.json --conversation chat.json your own two turns
    kvprobe template ./model --client returns --rate 50             and the CPU share at 50 requests/s
    """
    execute(ctx, common, params, run)
