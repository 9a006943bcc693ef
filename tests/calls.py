"""kvprobe calls in shell lines, and whether the real command line takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from kvprobe.cli import cli


def calls(text: str) -> Iterator[list[str]]:
    """The words behind every ``kvprobe`` of a shell line, without redirections and what follows."""
    for match in re.finditer(r"(?<![\w/.-])(?:/usr/local/bin/)?kvprobe +([a-z][a-z-]*[^;|&)`\n]*)", text):
        words = shlex.split(match[1].strip().rstrip('"'), comments=True)
        end = next((i for i, w in enumerate(words) if re.match(r"\d?>", w)), len(words))
        yield words[:end]


def parse(words: list[str]) -> None:
    """Parse only; the command itself does not run. Raises click's error for a wrong command, option or value."""
    root = click.Context(cli, info_name="kvprobe")
    command = cli.get_command(root, words[0])
    if command is None:
        raise click.UsageError(f"kvprobe has no command {words[0]!r}")
    with command.make_context(words[0], list(words[1:]), parent=root):
        pass
