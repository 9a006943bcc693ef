"""A program call -> what it starts (vLLM server, render, benchmark, Dynamo worker, proxy) and with which options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from kvprobe.formats.launch_model import base_name, is_dynamic
from kvprobe.formats.serve_command_surface import Version, option_name, options

_PYTHON = re.compile(r"^python[\d.]*$")
_PROXY = re.compile(
    r"(proxy|router|pd_server|load_balanc)[\w.-]*\.py$|^(?:vllm-router|toy_proxy_server|pd-sidecar)$"
)
_TRUE_FALSE = {"true", "false", "1", "0", "yes", "no", "on", "off", "none"}
_SERVER_MODULES = {
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
}


class Program(msgspec.Struct, frozen=True):
    """``kind``: serve, render, bench, dynamo, proxy, vllm (another subcommand); ``skip``: words before its arguments."""

    kind: str
    name: str
    skip: int


class Option(msgspec.Struct, frozen=True):
    """One option as written; ``name`` is the long form vLLM takes it for, None if it knows no such option."""

    written: str
    name: str | None
    value: str | None
    negated: bool = False


class ServeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed call."""

    program: Program
    model: str | None = None
    options: tuple[Option, ...] = ()
    strays: tuple[str, ...] = ()
    """Words that belong to no option: argparse refuses them."""
    unread: tuple[str, ...] = ()
    """Words such as ``$EXTRA_ARGS`` that hold more arguments, known only when it runs."""
    flags_with_value: tuple[tuple[str, str], ...] = ()
    """Yes/no options that were given a value, and the value."""
    nested: dict[str, dict[str, Any]] = {}
    """``--kv-transfer-config.kv_role X`` and the like, gathered by option."""

    def get(self, name: str) -> str | None:
        """The last value given to a long option; None if it is absent."""
        return next((o.value for o in reversed(self.options) if o.name == name), None)

    def switched(self, name: str) -> bool | None:
        """True for --x, False for --no-x, None if neither is given."""
        return next((not o.negated for o in reversed(self.options) if o.name == name), None)

    def has(self, name: str) -> bool:
        """Whether a long option is given at all."""
        return any(o.name == name for o in self.options) or name in self.nested

    def number(self, name: str, default: int) -> int | None:
        """An integer option; ``default`` if absent, None if it is not known here (``$TP``)."""
        text = self.get(name)
        if text is None:
            return default
        return int(text) if re.fullmatch(r"\d{1,9}", text.strip()) else None


def program_at(argv: tuple[str, ...]) -> Program | None:
    """What ``argv`` starts, or None if it is nothing that matters here."""
    head = base_name(argv[0])
    if head in ("vllm", "vllm-rs") and len(argv) > 1:
        if argv[1] == "serve":
            return Program("serve", "vllm serve", 2)
        if argv[1] == "launch":
            return Program("render", "vllm launch", 2 + (len(argv) > 2 and not argv[2].startswith("-")))
        if argv[1] == "bench":
            return Program("bench", " ".join(argv[:3]), 3)
        return None
    if _PYTHON.match(head):
        rest = [at for at, word in enumerate(argv) if at and not re.match(r"^-[uOBIsEq]+$", word)]
        if not rest:
            return None
        at = rest[0]
        if argv[at] == "-m" and at + 1 < len(argv):
            return _module(argv, at + 1)
        return _script(argv[at], at + 1)
    return _script(argv[0], 1)


def _module(argv: tuple[str, ...], at: int) -> Program | None:
    name = argv[at]
    if name in _SERVER_MODULES:
        return Program("serve", f"-m {name}", at + 1)
    if name.startswith("dynamo.vllm"):
        return Program("dynamo", f"-m {name}", at + 1)
    if name.startswith(("vllm_router", "dynamo.frontend")):
        return Program("proxy", name, at + 1)
    if name in ("vllm", "vllm.entrypoints.cli.main") and len(argv) > at + 1:
        inner = program_at(("vllm", *argv[at + 1 :]))
        return Program(inner.kind, inner.name, inner.skip + at) if inner else None
    return None


def _script(word: str, skip: int) -> Program | None:
    name = base_name(word)
    if name == "benchmark_serving.py":
        return Program("bench", name, skip)
    if _PROXY.search(name):
        return Program("proxy", name, skip)
    return None


def parse_command(
    argv: tuple[str, ...],
    version: Version | None,
    config: Callable[[str], dict[str, Any] | None] = lambda path: None,
    *,
    default_entrypoint: bool = False,
) -> ServeCommand | None:
    """Read the options as vLLM's argparse does; ``config`` gives the options of a ``--config`` file.

    ``default_entrypoint``: the words are arguments of the vLLM image's own entrypoint.
    """
    program = program_at(argv) if argv else None
    if default_entrypoint and program is None:
        program = Program("serve", "vllm serve (the image's entrypoint)", 0)
    if program is None:
        return None
    words = list(argv[program.skip :])
    found, strays, valued = _options(words, version, strict=program.kind in ("serve", "render"))
    nested: dict[str, dict[str, Any]] = {}
    for option in found:
        if option.name and "." in option.written.split("=")[0] and option.value is not None:
            _put(nested.setdefault(option.name, {}), option.written, option.value)
    plain = tuple(o for o in found if "." not in o.written.split("=")[0])
    given = {o.name for o in plain}
    path = next((o.value for o in plain if o.name == "--config" and o.value), None)
    from_file = config(path) if path else None
    for key, value in (from_file or {}).items():
        name = option_name(f"--{key}", version)
        if key in ("model", "model_tag"):
            strays = strays or [str(value)]
        elif name not in given:
            text = value if isinstance(value, str) else json.dumps(value)
            plain = (
                *plain,
                Option(f"--{key}", name, None if value is True else text, negated=value is False),
            )
    model = next((o.value for o in reversed(plain) if o.name == "--model"), None)
    if model is None and strays and program.kind in ("serve", "render"):
        model, strays = strays[0], strays[1:]
    unread = tuple(s for s in strays if is_dynamic(s))
    return ServeCommand(
        program=program,
        model=model,
        options=plain,
        strays=tuple(s for s in strays if not is_dynamic(s)),
        unread=unread,
        flags_with_value=tuple(valued),
        nested=nested,
    )


def _options(
    words: list[str], version: Version | None, strict: bool
) -> tuple[list[Option], list[str], list[tuple[str, str]]]:
    found: list[Option] = []
    strays: list[str] = []
    valued: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not re.match(r"^--?[A-Za-z]", word):
            if word != "--":
                strays.append(word)
            continue
        if re.match(r"^-O.+", word):
            found.append(Option(word, "--optimization-level", word[2:].lstrip("=")))
            continue
        key, equals, inline = word.partition("=")
        name = option_name(key.split(".")[0], version)
        negated = key.startswith(("--no-", "--no_")) and name is not None and not name.startswith("--no-")
        kind = options()[name].kind if name in options() else ""
        if "." in key:
            kind = "value"
        if not strict and name is None:
            kind = "guess"
        value: str | None = inline if equals else None
        following = words[at] if at < len(words) else None
        free = following is not None and not re.match(r"^--?[A-Za-z]", following)
        if kind in ("bool", "flag"):
            if value is None and free and following is not None and following.lower() in _TRUE_FALSE:
                value, at = following, at + 1
            if value is not None:
                valued.append((key, value))
        elif value is None and free and following is not None:
            if kind == "list":
                value, at = following, at + 1
                while at < len(words) and not re.match(r"^--?[A-Za-z]", words[at]):
                    at += 1
            elif kind in ("value", "opt", "guess") or (
                kind == "" and not _looks_like_model(following, words[at:], strays)
            ):
                value, at = following, at + 1
        found.append(Option(word, name, value, negated))
    return found, strays, valued


def _looks_like_model(word: str, rest: list[str], strays: list[str]) -> bool:
    """After an unknown option: the model, if none was seen yet and the word looks like a path or a hub id."""
    return not strays and "/" in word


def _put(table: dict[str, Any], written: str, value: str) -> None:
    path = written.split("=")[0].rstrip("+").split(".")[1:]
    node = table
    for key in path[:-1]:
        node = node.setdefault(key, {}) if isinstance(node.setdefault(key, {}), dict) else {}
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        parsed = value
    if path:
        node[path[-1]] = value.split(",") if written.split("=")[0].endswith("+") else parsed
