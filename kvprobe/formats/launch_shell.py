"""A shell script -> the program calls in it, each with the environment it would get.

Not a shell: conditions are not evaluated (both branches are read), loops over known items are unrolled,
functions are entered at their calls. What only the running shell knows stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvprobe.errors import FormatError
from kvprobe.formats.launch_model import Box, Command, Problem, Setting, base_name
from kvprobe.formats.launch_shell_expand import Variables, expand, one_value
from kvprobe.formats.launch_shell_lexer import Lexer, Token, TooManyTokens, UnclosedQuote

Resolve = Callable[[str], str | None]
"""File name in the script -> its text if it is at hand."""

_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_KEYWORDS = {
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "do",
    "done",
    "while",
    "until",
    "{",
    "}",
    "!",
    "time",
    "esac",
}
_ENDS = {";", "&", "&&", "||", "|", "|&", "\n", ";;"}
_CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f"
_PLAIN = {ord(c): "'" if c in "\u2018\u2019\u201a\u201b" else '"' for c in _CURLY}
_DEPTH_LIMIT = 8
_COMMAND_LIMIT = 5_000


@dataclass
class Script:
    """The state of one script while it is read; nested texts share it."""

    file: str
    resolve: Resolve = lambda name: None
    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Setting] = field(default_factory=dict)
    export_all: bool = False
    functions: dict[str, list[Token]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    read_files: set[str] = field(default_factory=set)
    hints: tuple[str, ...] = ()
    box: Box | None = None
    name: str = ""
    repeats: bool = False
    depth: int = 0

    def where(self, line: int) -> str:
        return f"{self.file} line {line}"

    def assign(self, name: str, value: str, line: int, export: bool = False) -> None:
        """``NAME=value``, exported if asked for or if it already was."""
        self.variables.values[name] = value
        if export or self.export_all or name in self.exported:
            self.exported[name] = Setting(value, self.where(line))


def read_script(text: str, script: Script, first_line: int = 1) -> Script:
    """Walk ``text`` with ``script``'s state and add what is found to it. Raises FormatError for hostile text."""
    if script.depth > _DEPTH_LIMIT:
        raise FormatError(f"{script.file}: scripts are nested more than {_DEPTH_LIMIT} levels deep.")
    tokens = _tokens(text, script, first_line)
    walk(tokens, script)
    if script.depth == 0:
        for name in [n for n in script.functions if n not in script.called]:
            walk(script.functions[name], replace(script, hints=(name, *script.hints)))
    return script


def _tokens(text: str, script: Script, first_line: int) -> list[Token]:
    try:
        return Lexer(text, first_line).run()
    except TooManyTokens:
        raise FormatError(f"{script.file} has more than 200,000 words; that is no launch script.") from None
    except UnclosedQuote as unclosed:
        lines = text.splitlines()
        line = lines[unclosed.line - first_line] if 0 < unclosed.line - first_line + 1 <= len(lines) else ""
        near = next((n for n, t in enumerate(lines, first_line) if _has_curly(t)), None)
        if near is not None:
            mark = next(c for c in lines[near - first_line] if c in _CURLY)
            script.problems.append(
                Problem(
                    code="typographic_quote",
                    where=script.where(near),
                    text=f"{mark} (U+{ord(mark):04X}) is a typographic quote, not a shell quote: the text that opens "
                    f"with {unclosed.quote} on line {unclosed.line} never closes where it seems",
                    fix="Type a plain ' (U+0027) in its place.",
                )
            )
            try:
                return Lexer(text.translate(_PLAIN), first_line).run()
            except (UnclosedQuote, TooManyTokens):
                return []
        script.problems.append(
            Problem(
                code="unclosed_quote",
                where=script.where(unclosed.line),
                text=f"{unclosed.quote} opens on line {unclosed.line} and never closes: {line.strip()[:80]}",
                fix="Close the quote; the shell refuses the script as it is.",
            )
        )
        try:
            cut = "\n".join(lines[: unclosed.line - first_line])
            return Lexer(cut, first_line).run()
        except (UnclosedQuote, TooManyTokens):
            return []


def _has_curly(line: str) -> bool:
    return not line.lstrip().startswith("#") and any(c in line for c in _CURLY)


def walk(tokens: list[Token], script: Script) -> None:
    """Every statement of a token list."""
    at, comment, case_hint = 0, "", ""
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "comment":
            comment, at = token.text, at + 1
        elif token.kind == "op":
            if token.text == ";;":
                case_hint = ""
            at += 1
        elif token.plain in ("for", "select") and at + 2 < len(tokens):
            at = _loop(tokens, at, script, comment)
            comment = ""
        elif token.plain == "case":
            at = _skip_to(tokens, at, "in")
        elif (name := _function_at(tokens, at)) is not None:
            body, at = _body(tokens, at, "{", "}")
            script.functions[name] = body
        else:
            statement, at = _statement(tokens, at)
            if at < len(tokens) and tokens[at].text == ")" and len(statement) == 1:
                case_hint, at = statement[0].plain, at + 1
                continue
            hints = tuple(h for h in (case_hint, comment) if h)
            _run(statement, script, hints)
            if len(script.commands) > _COMMAND_LIMIT:
                raise FormatError(f"{script.file} starts more than {_COMMAND_LIMIT:,} programs.")
            if statement:
                comment = ""


def _function_at(tokens: list[Token], at: int) -> str | None:
    texts = [t.plain for t in tokens[at : at + 4]]
    if texts[:1] == ["function"] and len(texts) > 1:
        return texts[1]
    if texts[1:3] == ["(", ")"] and re.fullmatch(r"[A-Za-z_][\w-]*", texts[0]):
        return texts[0]
    return None


def _body(tokens: list[Token], at: int, opening: str, closing: str) -> tuple[list[Token], int]:
    start = _skip_to(tokens, at, opening)
    depth, at = 1, start
    while at < len(tokens) and depth:
        word = tokens[at].plain if tokens[at].kind == "word" else ""
        depth += (word == opening) - (word == closing)
        at += 1
    return tokens[start : at - 1], at


def _skip_to(tokens: list[Token], at: int, word: str) -> int:
    while at < len(tokens) and tokens[at].plain != word:
        at += 1
    return at + 1


def _loop(tokens: list[Token], at: int, script: Script, comment: str) -> int:
    variable = tokens[at + 1].plain
    items: list[str] = []
    position = at + 2
    while position < len(tokens) and tokens[position].plain != "do":
        if tokens[position].kind == "word" and tokens[position].plain != "in":
            items += expand(tokens[position], script.variables)
        position += 1
    body, after = _body(tokens, position, "do", "done")
    known = bool(items) and not any("$" in item for item in items)
    for item in items[:64] if known else [f"${{{variable}}}"]:
        if known:
            script.variables.values[variable] = item
        else:
            script.variables.values.pop(variable, None)
        before = script.repeats
        script.repeats = before or not known
        walk(body, script)
        script.repeats = before
    return after


def _statement(tokens: list[Token], at: int) -> tuple[list[Token], int]:
    out: list[Token] = []
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "comment" or (token.kind == "op" and token.text in _ENDS):
            break
        if token.kind == "op" and token.text in "()":
            break
        if token.kind == "word" and token.plain in _KEYWORDS and not out:
            at += 1
            continue
        out.append(token)
        at += 1
    if not out and at < len(tokens):
        at += 1
    return out, at


def _run(statement: list[Token], script: Script, hints: tuple[str, ...]) -> None:
    from kvprobe.formats.launch_wrappers import found  # the two call each other: `bash -c` holds a script

    words, targets, stdin = _redirects(statement)
    env: dict[str, Setting] = {}
    while words and (match := _ASSIGNMENT.match(words[0].plain)) and words[0].parts[:1]:
        token = words.pop(0)
        name = match[1]
        if token.array is not None:
            items = [f for item in token.array for f in expand(item, script.variables)]
            script.variables.arrays[name] = (
                script.variables.arrays.get(name, []) if match[2] else []
            ) + items
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
    if not argv or _builtin(argv, words, script):
        return
    if argv[0] in script.functions and script.depth < _DEPTH_LIMIT:
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
        raw=raw,
    )
    found(command, script, stdin)


def _without_name(token: Token, length: int) -> Token:
    (first, quote), *rest = token.parts
    return Token("word", token.line, parts=[(first[length:], quote), *rest])


def _written(token: Token) -> str:
    return "".join(f"{quote}{text}{quote}" for text, quote in token.parts)


def _redirects(statement: list[Token]) -> tuple[list[Token], tuple[str, ...], str]:
    words: list[Token] = []
    targets: list[str] = []
    stdin = ""
    skip = ""
    for token in statement:
        if token.kind == "op":
            skip, stdin = token.text, token.body or stdin
            if token.text in (">", ">>", "&>", ">&") and words and words[-1].plain in ("1", "2"):
                words.pop()
        elif skip in (">", ">>", "&>", ">&", "<", "<&", "<<<"):
            if skip in (">", ">>", "&>"):
                targets.append(base_name(token.plain))
            skip = ""
        else:
            words.append(token)
            skip = ""
    return words, tuple(targets), stdin


def _builtin(argv: list[str], words: list[Token], script: Script) -> bool:
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
