"""Shell text -> words, operators and comments with their lines, quotes kept apart so that ``$X`` can be expanded later.

shlex splits words but forgets which quotes a piece stood in and on which line; both decide here:
``'$X'`` is not expanded, and a quote that never closes has to be shown where it opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BARE, SINGLE, DOUBLE = "", "'", '"'
_OPERATORS = (
    "<<-",
    "<<<",
    "&&",
    "||",
    ";;",
    "<<",
    ">>",
    "&>",
    ">&",
    "<&",
    "|&",
    ";",
    "&",
    "|",
    "(",
    ")",
    "<",
    ">",
    "\n",
)
_TOKEN_LIMIT = 200_000


class UnclosedQuote(Exception):
    """A quote opens on ``line`` and never closes."""

    def __init__(self, quote: str, line: int) -> None:
        super().__init__(quote)
        self.quote = quote
        self.line = line


class TooManyTokens(Exception):
    """The text is no launch script."""


@dataclass
class Token:
    """``kind`` is ``word``, ``op`` or ``comment``."""

    kind: str
    line: int
    text: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)
    """(text, quote) pieces of a word."""
    array: list[Token] | None = None
    """The items of ``NAME=( ... )``."""
    body: str = ""
    """The text of a here-document."""

    @property
    def plain(self) -> str:
        """The word without its quotes and without expansion."""
        return "".join(text for text, _ in self.parts) if self.kind == "word" else self.text


class Lexer:
    """One pass over the text. Raises UnclosedQuote or TooManyTokens."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text = text
        self.at = 0
        self.line = first_line
        self.tokens: list[Token] = []
        self._heredocs: list[tuple[Token, str, bool]] = []

    def run(self) -> list[Token]:
        """All tokens of the text."""
        while self.at < len(self.text):
            if len(self.tokens) > _TOKEN_LIMIT:
                raise TooManyTokens
            self._next(self.tokens)
        return self.tokens

    def _next(self, out: list[Token]) -> None:
        char = self.text[self.at]
        if char in " \t\r":
            self.at += 1
        elif self.text.startswith("\\\n", self.at) or self.text.startswith("\\\r\n", self.at):
            self.at = self.text.index("\n", self.at) + 1
            self.line += 1
        elif char == "#":
            end = self._find("\n")
            out.append(Token("comment", self.line, self.text[self.at + 1 : end].strip()))
            self.at = end
        elif operator := next((o for o in _OPERATORS if self.text.startswith(o, self.at)), None):
            self._operator(operator, out)
        else:
            self._word(out)

    def _operator(self, operator: str, out: list[Token]) -> None:
        token = Token("op", self.line, operator)
        out.append(token)
        self.at += len(operator)
        if operator == "\n":
            self.line += 1
            self._read_heredocs()
        elif operator in ("<<", "<<-"):
            start = len(out)
            while self.at < len(self.text) and len(out) == start and self.text[self.at] != "\n":
                self._next(out)
            if len(out) > start and out[-1].kind == "word":
                word = out.pop()
                quoted = any(quote for _, quote in word.parts)
                self._heredocs.append((token, word.plain, quoted))

    def _read_heredocs(self) -> None:
        for token, mark, _quoted in self._heredocs:
            lines: list[str] = []
            while self.at < len(self.text):
                end = self._find("\n")
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if line.strip("\t" if token.text == "<<-" else "").rstrip("\r") == mark:
                    break
                lines.append(line)
            token.body = "\n".join(lines)
        self._heredocs = []

    def _find(self, mark: str) -> int:
        end = self.text.find(mark, self.at)
        return len(self.text) if end < 0 else end

    def _word(self, out: list[Token]) -> None:
        token = Token("word", self.line)
        bare: list[str] = []

        def flush() -> None:
            if bare:
                token.parts.append(("".join(bare), BARE))
                bare.clear()

        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|<>)":
                break
            if char == "(":
                if bare and bare[-1] == "=" and not token.array:
                    flush()
                    token.array = self._array()
                    break
                break
            if char == "\\":
                if self.text.startswith(("\\\n", "\\\r\n"), self.at):
                    self.at = self.text.index("\n", self.at) + 1
                    self.line += 1
                    continue
                flush()
                token.parts.append((self.text[self.at + 1 : self.at + 2], SINGLE))
                self.at += 2
            elif char == "'":
                flush()
                self.at += 1
                token.parts.append((self._until("'", self.line), SINGLE))
            elif self.text.startswith("$'", self.at):
                flush()
                self.at += 2
                token.parts.append((self._ansi(), SINGLE))
            elif char == '"':
                flush()
                self.at += 1
                token.parts.append((self._double(), DOUBLE))
            elif char == "$" or char == "`":
                bare.append(self._expansion())
            else:
                bare.append(char)
                self.at += 1
        flush()
        if not token.parts and token.array is None:
            # An empty quoted word '' has a part; only a stray character such as "(" gets here.
            self.at += 1
            return
        out.append(token)

    def _array(self) -> list[Token]:
        self.at += 1
        items: list[Token] = []
        while self.at < len(self.text):
            if self.text[self.at] == ")":
                self.at += 1
                return [t for t in items if t.kind == "word"]
            self._next(items)
        raise UnclosedQuote("(", self.line)

    def _until(self, mark: str, opened: int) -> str:
        end = self.text.find(mark, self.at)
        while mark == "`" and end > 0 and self.text[end - 1] == "\\":
            end = self.text.find(mark, end + 1)
        if end < 0:
            raise UnclosedQuote(mark, opened)
        piece = self.text[self.at : end]
        self.line += piece.count("\n")
        self.at = end + 1
        return piece

    def _ansi(self) -> str:
        """``$'...'``, where a backslash escapes."""
        opened = self.line
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "'":
                self.at += 1
                return "".join(out)
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                out.append({"n": "\n", "t": "\t"}.get(following, following))
                self.at += 2
                continue
            self.line += char == "\n"
            out.append(char)
            self.at += 1
        raise UnclosedQuote("$'", opened)

    def _double(self) -> str:
        opened = self.line
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(out)
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following == "\n":
                    self.line += 1
                elif following == "$":
                    out.append("\\$")
                else:
                    out.append(following if following in '"\\`' else f"\\{following}")
                self.at += 2
            elif char in "$`":
                out.append(self._expansion())
            else:
                self.line += char == "\n"
                out.append(char)
                self.at += 1
        raise UnclosedQuote('"', opened)

    def _expansion(self) -> str:
        """``$NAME``, ``${...}``, ``$(...)``, ``$((...))`` or a back-tick command, as written."""
        start, opened = self.at, self.line
        if self.text[self.at] == "`":
            self.at += 1
            return f"`{self._until('`', opened)}`"
        self.at += 1
        bracket = self.text[self.at : self.at + 1]
        if bracket not in ("(", "{"):
            return "$"
        close, depth = {"(": ")", "{": "}"}[bracket], 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if bracket == "(" and char in "'\"":
                self.at += 1
                if char == "'":
                    self._until("'", self.line)
                else:
                    self._double()
                continue
            if bracket == "(" and char == "#" and self.text[self.at - 1].isspace():
                self.at = self._find("\n")
                continue
            if char == "\\":
                self.at += 2
                continue
            self.line += char == "\n"
            depth += (char == bracket) - (char == close)
            self.at += 1
            if depth == 0:
                return self.text[start : self.at]
        raise UnclosedQuote(f"${bracket}", opened)
