"""A shell script -> the program calls in it, each with the environment it would get.

Not a shell: a condition that the text does not decide is read in both branches, loops over known items are
unrolled, functions are entered at their calls. What only the running shell knows stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvprobe.errors import FormatError
from kvprobe.formats.launch_model import Box, Command, Problem, Setting
from kvprobe.formats.launch_shell_expand import Variables, expand, holds
from kvprobe.formats.launch_shell_lexer import Lexer, Token, TooManyTokens, UnclosedQuote

Resolve = Callable[[str], str | None]
"""File name in the script -> its text if it is at hand."""

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
_LAUNCH = re.compile(r"vllm|dynamo|docker")
_ENDS = {";", "&", "&&", "||", "|", "|&", "\n", ";;"}
_CURLY = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f"
_PLAIN = {ord(c): "'" if c in "\u2018\u2019\u201a\u201b" else '"' for c in _CURLY}
DEPTH_LIMIT = 8
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
    background: bool = False
    elsewhere: bool = False
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
    if script.depth > DEPTH_LIMIT:
        raise FormatError(f"{script.file}: scripts are nested more than {DEPTH_LIMIT} levels deep.")
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
        if script.depth and not _LAUNCH.search(text):
            return []  # a message inside a command, nobody's launch
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
                fix="Close the quote; `bash -n FILE` shows whether the shell sees it too.",
                sure=False,
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
    from kvprobe.formats.launch_shell_run import run_statement  # the two call each other

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
        elif token.plain == "if":
            at = _condition(tokens, at, script)
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
            beside = at < len(tokens) and tokens[at].text == "&"
            run_statement(statement, replace(script, background=True) if beside else script, hints)
            if len(script.commands) > _COMMAND_LIMIT:
                raise FormatError(f"{script.file} starts more than {_COMMAND_LIMIT:,} programs.")
            if statement:
                comment = ""


def _condition(tokens: list[Token], at: int, script: Script) -> int:
    """``if``: the branch that is taken where the test can be told from the text, all branches where it cannot."""
    branches: list[tuple[list[Token], list[Token]]] = []
    test: list[Token] = []
    body: list[Token] = []
    depth, in_test = 0, True
    at += 1
    while at < len(tokens):
        token = tokens[at]
        word = token.plain if token.kind == "word" else ""
        starts = at == 0 or tokens[at - 1].kind != "word" or tokens[at - 1].plain in _KEYWORDS
        at += 1
        if depth == 0 and starts and word in ("then", "elif", "else", "fi"):
            if word == "then":
                in_test = False
                continue
            branches.append((test, body))
            test, body, in_test = [], [], word == "elif"
            if word == "fi":
                break
            continue
        depth += (word == "if" and starts) - (word == "fi" and starts)
        (test if in_test else body).append(token)
    else:
        branches.append((test, body))
    for test, body in branches:
        truth = holds(test, script.variables) if test else True
        if not truth and truth is not None:
            continue
        if truth is None:
            walk(test, script)
        walk(body, script)
        if truth:
            break
    return at


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
