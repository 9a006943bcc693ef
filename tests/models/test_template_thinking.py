"""Reasoning blocks: found, kept, taken out of generated text."""

from __future__ import annotations

import pytest

from kvprobe.models.template_thinking import (
    BLOCK_LIMIT,
    FAMILIES,
    family_of,
    find_blocks,
    is_kept,
    split_generated,
)


@pytest.mark.parametrize("marks", FAMILIES, ids=lambda m: m.name)
def test_every_family_is_found(marks: object) -> None:
    text = f"a{marks.opening}why{marks.closing}b"  # type: ignore[attr-defined]
    (block,) = find_blocks(text)
    assert block.inner(text) == "why" and text[: block.start] == "a" and text[block.end :] == "b"


def test_unclosed_and_nested_marks() -> None:
    (block,) = find_blocks("x<think>cut off")
    assert block.inner("x<think>cut off") == "cut off"
    text = "write <think> tags: <think>why</think>ok"
    assert [b.inner(text) for b in find_blocks(text)] == ["why"]


def test_a_flood_of_marks_ends_in_time() -> None:
    assert len(find_blocks("<think>a</think>" * 50_000)) == BLOCK_LIMIT
    assert len(find_blocks("<think>" * 200_000 + "</think>")) == 1


def test_kept_means_closed_by_its_mark() -> None:
    source = "<think>\nwhy\n</think>\n\nanswer"
    (block,) = find_blocks(source)
    assert is_kept(block, source, "<think>\n\nwhy</think>x")
    assert not is_kept(block, source, "the answer says why, plainly")
    assert not is_kept(block, source, "answer")


def test_generated_text_is_taken_apart() -> None:
    opened = split_generated("user<think>\n", "why\n</think>\n\n9.9<e>", "<e>")
    assert (opened.reasoning, opened.answer) == ("\nwhy\n"[1:], "\n\n9.9")
    own = split_generated("user", "<think>why</think>9.9", "")
    assert (own.reasoning, own.answer, own.body) == ("why", "9.9", "<think>why</think>9.9")
    none = split_generated("user<think>\n\n</think>\n\n", "9.9<e>", "<e>")
    assert (none.reasoning, none.answer) == (None, "9.9")
    harmony = split_generated(
        "<|start|>assistant",
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>9.9<|return|>",
        "<|return|>",
    )
    assert (harmony.reasoning, harmony.answer) == ("why", "9.9")
    cut = split_generated("user<think>\n", "still thin", "")
    assert (cut.reasoning, cut.answer) == ("still thin", "")


def test_family_of_a_template() -> None:
    assert family_of("plain") is None
    found = family_of("{{ '<think>' ~ m.reasoning ~ '</think>' }}")
    assert found is not None and found.name == "think"
    channel = family_of("{{ '<|channel|>analysis<|message|>' }}")
    assert channel is not None and channel.name == "harmony analysis"
