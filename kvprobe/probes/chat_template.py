"""Finds a chat template and has it rendered in a child process that cannot do anything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from kvprobe.errors import FormatError, ProbeError, UsageError, WorkerError
from kvprobe.evidence import Evidence, Origin
from kvprobe.formats.chat_template import (
    TEMPLATE_LIMIT_BYTES,
    TemplateSource,
    parse_json,
    parse_object,
    parse_plain,
    special_tokens,
)
from kvprobe.models.template_request import Render
from kvprobe.processes import WorkerJob
from kvprobe.system import System

_MEMORY_BYTES = 1 << 30
_MEMORY_WITH_TOKENIZER_BYTES = 4 << 30
CPU_SECONDS = 10
_START_SECONDS = 20.0
_JSON_FILES = ("chat_template.json", "tokenizer_config.json")
_EXTRA_DIR = "additional_chat_templates"


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker brought back; ``error`` alone when the template as a whole failed."""

    error: str | None = None
    inspection: dict[str, Any] = {}
    renders: dict[str, dict[str, Any]] = {}
    encoded: dict[str, list[int]] = {}
    cost: dict[str, Any] | None = None

    def text(self, id: str) -> str | None:
        """The prompt ``id``; None if the template refused it or it was not asked for."""
        return self.renders.get(id, {}).get("text")

    def refusal(self, id: str) -> str | None:
        """The template's own words about the prompt ``id``; None if it rendered."""
        error = self.renders.get(id, {}).get("error")
        return str(error["message"]) if error else None


def load(system: System, path: str, name: str | None = None) -> Evidence[TemplateSource]:
    """The template in a file or model directory, with special tokens and tokenizer that stand beside it.

    In a directory: ``chat_template.jinja``, then ``chat_template.json``, then ``tokenizer_config.json``; named ones in
    ``additional_chat_templates/``. Raises ProbeError, FormatError, UsageError.
    """
    kind = system.path_kind(path)
    if kind == "absent":
        raise ProbeError(
            f"{path} does not exist.",
            "Give a Jinja file, tokenizer_config.json, chat_template.json or a local model directory.",
        )
    folder = path if kind == "dir" else str(PurePath(path).parent)
    found = _in_directory(system, path, name) if kind == "dir" else _in_file(system, path, name)
    beside = str(PurePath(folder) / "tokenizer.json")
    tokens = {**_tokens_beside(system, folder), **found.special_tokens}
    found = msgspec.structs.replace(
        found, special_tokens=tokens, tokenizer=beside if system.path_kind(beside) == "file" else None
    )
    return Evidence(
        id="chat-template", kind="chat_template", origin=Origin.READ, source=found.source, facts=found
    )


def _in_file(system: System, path: str, name: str | None) -> TemplateSource:
    text = system.read_text(path, limit_bytes=16 * TEMPLATE_LIMIT_BYTES)
    if not path.endswith(".json"):
        if name not in (None, "default"):
            raise UsageError(f"{path} is one template, it holds no {name!r}.")
        return parse_plain(text, path)
    found = parse_json(text, path, name)
    if found is None:
        raise FormatError(
            f"{path} holds no chat_template.",
            "vLLM then needs --chat-template FILE; give that file. (Mistral's tokenizer and DeepSeek V3.2 have none.)",
        )
    return found


def _in_directory(system: System, path: str, name: str | None) -> TemplateSource:
    if name not in (None, "default"):
        extra = str(PurePath(path) / _EXTRA_DIR / f"{name}.jinja")
        if system.path_kind(extra) == "file":
            return msgspec.structs.replace(parse_plain(system.read_text(extra), extra), name=str(name))
    jinja = str(PurePath(path) / "chat_template.jinja")
    if name in (None, "default") and system.path_kind(jinja) == "file":
        return parse_plain(system.read_text(jinja), jinja)
    for file in _JSON_FILES:
        place = str(PurePath(path) / file)
        if system.path_kind(place) == "file":
            found = parse_json(system.read_text(place), place, name)
            if found is not None:
                return found
    raise ProbeError(
        f"{path} holds no chat template (chat_template.jinja, chat_template.json or tokenizer_config.json).",
        "Give the file that vLLM gets with --chat-template.",
    )


def _tokens_beside(system: System, folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        place = str(PurePath(folder) / file)
        if system.path_kind(place) == "file":
            found |= special_tokens(parse_object(system.read_text(place), place))
    return found


def render(
    system: System,
    template: TemplateSource,
    renders: Sequence[Render],
    *,
    tokens: dict[str, str],
    tokenizer: str | None = None,
    encode: dict[str, str] | None = None,
    cost: dict[str, Any] | None = None,
    extra_seconds: float = 0.0,
) -> Rendered:
    """Render prompts, encode texts and measure the cost in one child process.

    What the template does wrong (refuses, hangs, eats memory) comes back as an error of the result; WorkerError is
    raised only when the tokenizer cannot be used.
    """
    cpu = CPU_SECONDS + round(extra_seconds)
    job = WorkerJob(
        name="template",
        module="kvprobe.workers.template_render",
        args={
            "template": template.text,
            "special_tokens": tokens,
            "renders": msgspec.to_builtins(list(renders)),
            "encode": [{"id": k, "text": v} for k, v in (encode or {}).items()],
            "cost": cost,
            "tokenizer": tokenizer,
            "memory_bytes": _MEMORY_WITH_TOKENIZER_BYTES if tokenizer else _MEMORY_BYTES,
            "cpu_seconds": cpu,
        },
        env={"TOKENIZERS_PARALLELISM": "false"},
    )
    (outcome,) = system.run_workers([job], deadline_seconds=cpu + _START_SECONDS)
    if outcome.result is not None:
        error = outcome.result.get("error")
        if error is None:
            return msgspec.convert(outcome.result, Rendered)
        line = f" (line {error['line']})" if error.get("line") else ""
        what = "has a syntax error: " if error["kind"] == "syntax" else ""
        return Rendered(error=f"{what}{error['message']}{line}")
    if outcome.error_kind == "raised":
        raise WorkerError(outcome.error or "The template worker failed.", outcome.remedy)
    if outcome.error_kind == "interrupted":
        raise KeyboardInterrupt
    if outcome.error_kind == "timeout" or "SIGXCPU" in (outcome.error or ""):
        return Rendered(error=f"it did not end within {cpu} s of CPU time; the process was killed")
    return Rendered(error=f"it ended the process that rendered it ({outcome.error})")
