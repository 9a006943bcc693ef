"""One simple command of a script: assignments, builtins, functions, or a program call."""

from __future__ import annotations

import re
from dataclasses import replace

from kvprobe.errors import FormatError
from kvprobe.formats.launch_model import Command, Setting, base_name
from kvprobe.formats.launch_shell import DEPTH_LIMIT, Script, read_script, walk
from kvprobe.formats.launch_shell_expand import Variables, expand, one_value
from kvprobe.formats.launch_shell_lexer import Token

_ITEM_LIMIT = 10_000
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


def run_statement(statement: list[Token], script: Script, hints: tuple[str, ...]) -> None:
    """Apply one statement to the script's state, or add the program it calls."""
    from kvprobe.formats.launch_wrappers import found  # the two call each other: `bash -c` holds a script

    words, targets, stdin, here = _redirects(statement)
    env: dict[str, Setting] = {}
    while words and (match := _ASSIGNMENT.match(words[0].plain)) and words[0].parts[:1]:
        token = words.pop(0)
        name = match[1]
        if token.array is not None:
            items = list(script.variables.arrays.get(name, [])) if match[2] else []
            for item in token.array:
                items += expand(item, script.variables)
                if len(items) > _ITEM_LIMIT:
                    text = f"{script.where(token.line)}: the array {name} grows beyond {_ITEM_LIMIT:,} items."
                    raise FormatError(text)
            script.variables.arrays[name] = items
            continue
        value = one_value(_without_name(token, len(match[0])), script.variables)
        if match[2]:
            value = (script.variables.get(name) or "") + value
        env[name] = Setting(value, script.where(token.line))
        if not words:
            for key, setting in env.items():
                script.assign(key, setting.value, token.line)
    if not words:
        return
    line, raw = words[0].line, " ".join(_written(t) for t in words)
    argv = [f for token in words for f in expand(token, script.variables)]
    if not argv or _builtin(argv, words, script, here):
        return
    if argv[0] == "eval":
        read_script(
            " ".join(argv[1:]), replace(script, depth=script.depth + 1, hints=(*hints, *script.hints)), line
        )
        return
    if argv[0] in script.functions and script.depth < DEPTH_LIMIT:
        script.called.add(argv[0])
        inner = replace(script, depth=script.depth + 1, hints=(*hints, *argv, *script.hints))
        inner.variables = Variables({**script.variables.values, **{k: s.value for k, s in env.items()}})
        inner.variables.arrays = script.variables.arrays
        inner.variables.positional = tuple(argv[1:])
        walk(script.functions[argv[0]], inner)
        return
    command = Command(
        argv=tuple(argv),
        env={**script.exported, **env},
        file=script.file,
        line=line,
        name=script.name,
        hints=(*hints, *targets, *script.hints),
        box=script.box,
        repeats=script.repeats,
        background=script.background,
        elsewhere=script.elsewhere,
        raw=raw,
    )
    found(command, script, stdin)


def _without_name(token: Token, length: int) -> Token:
    (first, quote), *rest = token.parts
    return Token("word", token.line, parts=[(first[length:], quote), *rest])


def _written(token: Token) -> str:
    return "".join(f"{quote}{text}{quote}" for text, quote in token.parts)


def _redirects(statement: list[Token]) -> tuple[list[Token], tuple[str, ...], str, Token | None]:
    """Words, names of files written to, here-document, here-string."""
    words: list[Token] = []
    targets: list[str] = []
    stdin = ""
    skip = ""
    here: Token | None = None
    for token in statement:
        if token.kind == "op":
            skip, stdin = token.text, token.body or stdin
            if token.text in (">", ">>", "&>", ">&") and words and words[-1].plain in ("1", "2"):
                words.pop()
        elif skip in (">", ">>", "&>", ">&", "<", "<&", "<<<"):
            if skip == "<<<":
                here = token
            elif skip in (">", ">>", "&>"):
                targets.append(base_name(token.plain))
            skip = ""
        else:
            words.append(token)
            skip = ""
    return words, tuple(targets), stdin, here


def _builtin(argv: list[str], words: list[Token], script: Script, here: Token | None) -> bool:
    head = argv[0]
    if head in ("export", "declare", "typeset", "local", "readonly"):
        export = head == "export" or any(a.startswith("-") and "x" in a for a in argv[1:])
        for token in words[1:]:
            if (match := _ASSIGNMENT.match(token.plain)) and token.parts:
                value = one_value(_without_name(token, len(match[0])), script.variables)
                script.assign(match[1], value, token.line, export)
            elif export and token.plain in script.variables.values:
                script.assign(token.plain, script.variables.values[token.plain], token.line, True)
        return True
    if head in ("read", "mapfile", "readarray") and here is not None:
        names = [a for a in argv[1:] if not a.startswith("-")]
        value = one_value(here, script.variables)
        if names and "$" not in value:
            script.variables.arrays[names[-1]] = [p for p in re.split(r"[\s,:;]+", value) if p]
        return True
    if head == "unset":
        for name in argv[1:]:
            script.variables.values.pop(name, None)
            script.exported.pop(name, None)
        return True
    if head == "set":
        script.export_all = (script.export_all or "-a" in argv or "allexport" in argv) and "+a" not in argv
        return True
    if head in (".", "source") and len(argv) > 1:
        _source(argv[1], script)
        return True
    return False


def _source(path: str, script: Script) -> None:
    text = script.resolve(path)
    if text is None:
        return
    name = base_name(path)
    script.read_files.add(name)
    inner = replace(script, file=name, depth=script.depth + 1)
    read_script(text, inner)
    script.export_all = inner.export_all
