"""Where a chat template may stand: a Jinja file, tokenizer_config.json, chat_template.json.

Formats: transformers' ``tokenizer_config.json`` (``chat_template`` is a text or a list of named texts, special
tokens are texts or ``{"content": ...}``) and ``chat_template.json`` of processors, see
https://huggingface.co/docs/transformers/chat_templating.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.errors import FormatError, UsageError

TEMPLATE_LIMIT_BYTES = 1024 * 1024
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True):
    """One chat template with the special tokens that it may print."""

    text: str
    source: str
    """The file that holds it."""
    name: str = "default"
    """Its name where the file holds several (``default``, ``tool_use``, ``rag``)."""
    special_tokens: dict[str, str] = {}
    other_names: tuple[str, ...] = ()
    """Names of further templates in the same file."""
    tokenizer: str | None = None
    """Path of the ``tokenizer.json`` that belongs to it; None when there is none at hand."""


class NamedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    template: str


def parse_plain(text: str, source: str) -> TemplateSource:
    """A bare Jinja template. Raises FormatError for what cannot be one."""
    if not text.strip():
        raise FormatError(f"{source} is empty, so there is no template to test.")
    if "\x00" in text or text.count("�") > max(8, len(text) // 200):
        raise FormatError(
            f"{source} is binary, not a Jinja template.", "Name the .jinja or tokenizer_config.json file."
        )
    _check_size(text, source)
    return TemplateSource(text=text, source=source)


def parse_json(text: str, source: str, name: str | None = None) -> TemplateSource | None:
    """The template in ``tokenizer_config.json`` or ``chat_template.json``; None if the file holds none.

    ``name`` picks one of several. Raises FormatError for damaged files, UsageError for an unknown name.
    """
    data = parse_object(text, source)
    found = data.get("chat_template")
    if found is None:
        return None
    tokens = special_tokens(data)
    if isinstance(found, str):
        if not found.strip():
            return None
        if name not in (None, "default"):
            raise UsageError(f"{source} holds one unnamed chat template, not {name!r}.")
        _check_size(found, source)
        return TemplateSource(text=found, source=source, special_tokens=tokens)
    try:
        named = msgspec.convert(found, list[NamedTemplate])
    except msgspec.ValidationError:
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise FormatError(
                f"{source}: chat_template is neither a text nor a list of named texts."
            ) from None
        named = [NamedTemplate(name=str(k), template=v) for k, v in found.items()]
    if not named:
        return None
    wanted = name or ("default" if any(n.name == "default" for n in named) else named[0].name)
    names = tuple(n.name for n in named)
    chosen = next((n for n in named if n.name == wanted), None)
    if chosen is None:
        raise UsageError(f"{source} holds no chat template {wanted!r}.", f"It holds: {', '.join(names)}.")
    _check_size(chosen.template, source)
    return TemplateSource(
        text=chosen.template,
        source=source,
        name=wanted,
        special_tokens=tokens,
        other_names=tuple(n for n in names if n != wanted),
    )


def parse_object(text: str, source: str) -> dict[str, Any]:
    """A JSON object. Raises FormatError that names the file."""
    try:
        data = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"{source} is not valid JSON: {str(error)[:200]}.") from None
    if not isinstance(data, dict):
        raise FormatError(f"{source} holds a JSON {type(data).__name__}, not an object.")
    return data


def special_tokens(data: dict[str, Any]) -> dict[str, str]:
    """The special tokens of a tokenizer configuration or ``special_tokens_map.json``, as texts."""
    found = {}
    for key in SPECIAL_TOKENS:
        value = data.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[key] = value
    return found


def _check_size(text: str, source: str) -> None:
    if len(text) > TEMPLATE_LIMIT_BYTES:
        raise FormatError(
            f"{source}: a template of {len(text):,} characters; at most {TEMPLATE_LIMIT_BYTES:,} are tested."
        )
