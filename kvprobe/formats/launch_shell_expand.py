"""Words of a script -> the fields the program would get: variables, defaults, arithmetic, ranges, word splitting."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from kvprobe.formats.launch_model import is_dynamic
from kvprobe.formats.launch_shell_lexer import BARE, SINGLE, Token

_NAME = re.compile(
    r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:(:?[-=+?])([^{}]*))?\}|([A-Za-z_][A-Za-z0-9_]*|[0-9@*]))"
)
_ARRAY = re.compile(r"^\$\{(!?)([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}$")
_ITEM = re.compile(r"\$\{(#?)([A-Za-z_][A-Za-z0-9_]*)\[([^\[\]{}]*)\]\}")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_BRACES = re.compile(r"^\{(-?\d{1,6})\.\.(-?\d{1,6})\}$")
_SEQ = re.compile(r"^\$\(seq (?:-w )?(-?\d{1,6})(?: (-?\d{1,6}))?\)$")
_RANGE_LIMIT = 64
_LENGTH_LIMIT = 1_000_000
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class Variables:
    """Shell variables, arrays and positional parameters of the script so far."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self.values: dict[str, str] = dict(values or {})
        self.arrays: dict[str, list[str]] = {}
        self.positional: tuple[str, ...] | None = None

    def get(self, name: str) -> str | None:
        """The value, or None if this text does not set it."""
        if name.isdigit():
            position = int(name)
            if self.positional is None or position == 0:
                return None
            return self.positional[position - 1] if position <= len(self.positional) else ""
        if name in ("@", "*"):
            return None if self.positional is None else " ".join(self.positional)
        return self.values.get(name)


def substitute(text: str, variables: Variables) -> str:
    """Replace what is known; what is not known stays as written, so that it reads as dynamic."""

    def one(match: re.Match[str]) -> str:
        name, how, word = match[1] or match[4], match[2] or "", match[3] or ""
        value = variables.get(name)
        if how.endswith("+"):
            return substitute(word, variables) if value else ""
        if value is None or (value == "" and how.startswith(":")):
            if how[-1:] in ("-", "="):
                value = substitute(word, variables)
                if how.endswith("="):
                    variables.values[name] = value
            elif value is None:
                return match[0]
        return value[:_LENGTH_LIMIT]

    text = _ITEM.sub(lambda m: _item(m, variables), text)
    text = _ARITHMETIC.sub(lambda m: _arithmetic(m[0], m[1], variables), text)
    return _NAME.sub(one, text)[:_LENGTH_LIMIT]


def _item(match: re.Match[str], variables: Variables) -> str:
    """``${NAME[2]}``, ``${NAME[@]}`` inside a longer word, ``${#NAME[@]}``."""
    items = variables.arrays.get(match[2])
    if items is None:
        return match[0]
    if match[1]:
        return str(len(items))
    if match[3] in ("@", "*"):
        return " ".join(items)
    index = substitute(
        match[3] if match[3].startswith("$") or match[3].isdigit() else f"${match[3]}", variables
    )
    return items[int(index)] if index.isdigit() and int(index) < len(items) else match[0]


def _arithmetic(whole: str, text: str, variables: Variables) -> str:
    filled = re.sub(
        r"\$?\b([A-Za-z_]\w*)\b", lambda m: variables.get(m[1]) or m[0], substitute(text, variables)
    )
    try:
        return str(_evaluate(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return whole


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if max(abs(left), abs(right)) < 10**9:
            return _SUMS[type(node.op)](left, right)
    raise ValueError("not a sum")


def expand(token: Token, variables: Variables) -> list[str]:
    """The fields of one word. An unquoted variable is split at blanks, its quotes stay literal: as in a shell."""
    if len(token.parts) == 1 and token.parts[0][1] != SINGLE:
        text = token.parts[0][0]
        if match := _ARRAY.match(text):
            if match[2] in variables.arrays:
                items = variables.arrays[match[2]]
                return [str(n) for n in range(len(items))] if match[1] else list(items)
        elif text in ("$@", "${@}", "$*") and variables.positional is not None:
            return list(variables.positional)
        elif token.parts[0][1] == BARE and (match := _BRACES.match(text)):
            return _numbers(int(match[1]), int(match[2]))
        elif token.parts[0][1] == BARE and (match := _SEQ.match(substitute(text, variables))):
            first, last = (int(match[1]), int(match[2])) if match[2] else (1, int(match[1]))
            return _numbers(first, last)
    fields: list[str] = [""]
    some = False
    for text, quote in token.parts:
        if quote == SINGLE:
            fields[-1] += text
            some = True
            continue
        value = substitute(text.replace("\\$", "\0"), variables).replace("\0", "$")
        if quote == BARE and value != text and not is_dynamic(value):
            pieces = value.split()
            if pieces:
                if value[:1].isspace() and fields[-1]:
                    fields.append("")
                fields[-1] += pieces[0]
                fields += pieces[1:]
                if value[-1:].isspace():
                    fields.append("")
            some = some or bool(pieces)
        else:
            fields[-1] += value
            some = some or bool(value) or quote != BARE
    if fields[-1] == "" and len(fields) > 1:
        fields.pop()
    return fields if some else []


def holds(test: list[Token], variables: Variables) -> bool | None:
    """Whether ``[ A = B ]``, ``[[ -n A ]]`` and the like are true; None if this text does not decide it."""
    words = [one_value(t, variables) for t in test if t.kind == "word"]
    if any(t.kind == "op" and t.text != "\n" and t.text != ";" for t in test) or len(words) < 3:
        return None
    if words[0] not in ("[", "[[", "test"):
        return None
    if words[1] in ("-z", "-n") and re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?", words[2]):
        words[2] = ""  # nobody set it here: what the script does by default is what is read
    if any(is_dynamic(w) for w in words):
        return None
    inner = words[1:-1] if words[0] != "test" else words[1:]
    negate = inner[:1] == ["!"]
    inner = inner[negate:]
    result: bool | None = None
    if len(inner) == 2 and inner[0] in ("-z", "-n"):
        result = bool(inner[1]) == (inner[0] == "-n")
    elif len(inner) == 3 and inner[1] in ("=", "==", "!=", "-eq", "-ne") and not set(inner[2]) & set("*?["):
        result = (inner[0] == inner[2]) == (inner[1] not in ("!=", "-ne"))
    return None if result is None else result != negate


def one_value(token: Token, variables: Variables) -> str:
    """The right side of an assignment: expanded, never split."""
    out = []
    for text, quote in token.parts:
        out.append(
            text if quote == SINGLE else substitute(text.replace("\\$", "\0"), variables).replace("\0", "$")
        )
    return "".join(out)


def _numbers(first: int, last: int) -> list[str]:
    step = 1 if last >= first else -1
    numbers = range(first, last + step, step)
    return [str(n) for n in numbers[:_RANGE_LIMIT]]
