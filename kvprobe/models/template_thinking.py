"""Where the reasoning stands in a prompt or in generated text, for the families of marks that models use."""

from __future__ import annotations

import re

import msgspec


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How one family wraps its reasoning. ``opening`` to ``closing`` is the block that a template may drop."""

    name: str
    opening: str
    closing: str
    after_open: str = "\n"
    """What the family's models write behind the opening mark."""
    before_close: str = "\n"
    after_close: str = "\n\n"
    """What stands between the block and the answer."""
    answer_prefix: str = ""
    """A header that the model itself writes before the answer (harmony's final channel)."""


FAMILIES = (
    Marks(
        name="harmony analysis",
        opening="<|channel|>analysis<|message|>",
        closing="<|end|>",
        after_open="",
        before_close="",
        after_close="",
        answer_prefix="<|start|>assistant<|channel|>final<|message|>",
    ),
    Marks(name="think", opening="<think>", closing="</think>"),
    Marks(name="seed think", opening="<seed:think>", closing="</seed:think>", after_open="", before_close="", after_close=""),
    Marks(name="kimi think", opening="◁think▷", closing="◁/think▷", after_open="", before_close="", after_close=""),
    Marks(name="cohere thinking", opening="<|START_THINKING|>", closing="<|END_THINKING|>", after_open="", before_close="", after_close=""),
    Marks(name="magistral think", opening="[THINK]", closing="[/THINK]", after_open="", before_close="", after_close=""),
    Marks(name="gemma channel", opening="<|channel>thought\n", closing="<channel|>", after_open="", before_close="\n", after_close=""),
    Marks(name="apertus inner", opening="<|inner_prefix|>", closing="<|inner_suffix|>", after_open="", before_close="", after_close=""),
    Marks(name="longcat think", opening="<longcat_think>", closing="</longcat_think>"),
    Marks(name="minimax think", opening="<mm:think>", closing="</mm:think>"),
    Marks(name="thought", opening="<thought>", closing="</thought>"),
    Marks(name="thinking", opening="<thinking>", closing="</thinking>"),
    Marks(name="reasoning", opening="<reasoning>", closing="</reasoning>"),
    Marks(name="reason", opening="<reason>", closing="</reason>"),
)  # fmt: skip


BLOCK_LIMIT = 256


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of reasoning: ``start`` at its opening mark, ``end`` behind its closing mark."""

    start: int
    end: int
    inner_start: int
    inner_end: int
    marks: Marks

    def inner(self, text: str) -> str:
        return text[self.inner_start : self.inner_end]


def find_blocks(text: str) -> list[Block]:
    """The reasoning blocks in ``text``, in order, the last ``BLOCK_LIMIT`` of them.

    An unclosed one reaches to the end (cut off while thinking). Of several opening marks before one closing mark the
    last counts: the others are talk about the mark.
    """
    found: list[Block] = []
    for marks in FAMILIES:
        at = 0
        while (start := text.find(marks.opening, at)) >= 0:
            close = text.find(marks.closing, start + len(marks.opening))
            start = text.rfind(marks.opening, start, close if close >= 0 else len(text))
            inner = start + len(marks.opening)
            end, inner_end = (len(text), len(text)) if close < 0 else (close + len(marks.closing), close)
            found.append(Block(start=start, end=end, inner_start=inner, inner_end=inner_end, marks=marks))
            at = end
    return sorted(found, key=lambda b: b.start)[-BLOCK_LIMIT:]


def is_kept(block: Block, source: str, target: str) -> bool:
    """Whether the reasoning of a block of ``source`` stands as reasoning (closed by its mark) in ``target``."""
    inner = block.inner(source).strip()
    if not inner:
        # An empty block may also stand in the next generation prompt: only the same place counts.
        empty = r"\s*" + re.escape(block.marks.opening) + r"\s*" + re.escape(block.marks.closing)
        return re.match(empty, target) is not None
    if inner not in target:
        return False
    if block.inner_end == block.end:
        return True
    pattern = re.escape(inner) + r"\s*" + re.escape(block.marks.closing)
    return re.search(pattern, target) is not None


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What the model wrote, taken apart as a reasoning parser does."""

    reasoning: str | None
    """Raw reasoning; None when the model did not think."""
    answer: str
    """Raw text behind the reasoning, tool calls included, without the stop text."""
    body: str
    """All of it without the stop text, as a client without a reasoning parser sees it."""
    marks: Marks | None = None


def split_generated(prompt: str, generated: str, stop_text: str) -> Generated:
    """Take reasoning and answer apart; the prompt may already have opened the reasoning."""
    body = generated[: len(generated) - len(stop_text)] if stop_text else generated
    whole = prompt + body
    blocks = [b for b in find_blocks(whole) if b.end > len(prompt)]
    if not blocks:
        return Generated(reasoning=None, answer=body, body=body)
    block = blocks[0]
    if block.inner_end <= len(prompt):
        return Generated(reasoning=None, answer=body, body=body)
    reasoning = whole[max(block.inner_start, len(prompt)) : block.inner_end]
    answer = whole[block.end :]
    prefix = block.marks.answer_prefix
    if prefix and answer.startswith(prefix):
        answer = answer[len(prefix) :]
    return Generated(reasoning=reasoning, answer=answer, body=body, marks=block.marks)


def mentions_marks(text: str) -> bool:
    """Whether a text (what a client sent as content) carries reasoning marks."""
    return any(m.opening in text or m.closing in text for m in FAMILIES if m.name != "harmony analysis") or (
        "<|channel|>analysis" in text
    )


def family_of(template: str) -> Marks | None:
    """The family of marks that a template's own text names, the most frequent first; None without any."""
    counted = [(template.count(m.closing) + template.count(m.opening.strip()), m) for m in FAMILIES]
    if "<|channel|>analysis" in template:
        return FAMILIES[0]
    best = max(counted[1:], key=lambda c: c[0])
    return best[1] if best[0] else None
