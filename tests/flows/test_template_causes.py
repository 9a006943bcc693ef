"""Every cause that `kvprobe template` can name, each from a small template and conversation of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.assets import profile_path
from kvprobe.flows import Door
from kvprobe.flows.template import run
from kvprobe.policy import parse_policy
from kvprobe.system import System

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- '<tool_call>\\n' ~ ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) ~ '\\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TRIMMED = CHATML.replace("m.content }}", "(m.content | trim) }}")
ALWAYS_THINKS = CHATML.replace(
    "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content }}",
    "{{- '<|im_start|>' ~ m.role ~ '\\n' }}{%- if m.role == 'assistant' %}{{- '<think>\\n' ~ (m.reasoning or '') ~ '\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}",
).replace("assistant\\n' }}{%- endif %}", "assistant\\n<think>\\n' }}{%- endif %}")
HARMONY = (
    "{%- for m in messages %}{{- '<|start|>' ~ m.role ~ ('<|channel|>final' if m.role == 'assistant' else '') ~ '<|message|>' ~ m.content ~ '<|end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
DATED = "{{- 'Today: ' ~ (date_string or 'unknown') ~ '\\n' }}" + CHATML
TOOLED = "{%- for t in tools or [] %}{{- t | tojson }}{%- endfor %}" + CHATML
LAST_USER_ONLY = CHATML.replace(
    "m.content }}", "m.content ~ (' (be kind)' if loop.last and m.role == 'user' else '') }}", 1
)
ALTERNATES = (
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}{{- m.content }}{%- endfor %}"
)

ASK = {"role": "user", "content": "Which is larger?"}
NEXT = {"role": "user", "content": "And now?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def call(arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "call00001", "type": "function", "function": {"name": "get", "arguments": arguments}}]


def say(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CASES: dict[str, tuple[str, dict[str, Any], str, str, dict[str, Any], dict[str, Any]]] = {
    # name: template, turn 1, generated, stop, turn 2, expected
    "exact": (
        CHATML, {"messages": [ASK]}, "9.9<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "none", "bidirectional_safe": True, "exact_prefix": True, "thinking_dropped": False},
    ),
    "reasoning is kept": (
        ALWAYS_THINKS, {"messages": [ASK]}, "Hm.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9", reasoning="Hm."), NEXT]},
        {"cause": "none", "bidirectional_safe": True, "thinking_dropped": False},
    ),
    "client drops the reasoning": (
        ALWAYS_THINKS, {"messages": [ASK]}, "Hm.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "client_dropped_reasoning", "bidirectional_safe": False, "thinking_dropped": True},
    ),
    "client drops what a plain template would print": (
        CHATML, {"messages": [ASK]}, "<think>\nHm.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "client_dropped_reasoning", "thinking_dropped": True},
    ),
    "client sends raw text, printed twice": (
        ALWAYS_THINKS, {"messages": [ASK]}, "Hm.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("<think>\nHm.\n</think>\n\n9.9"), NEXT]},
        {"cause": "client_sent_inline_thinking", "bidirectional_safe": False, "thinking_dropped": False},
    ),
    "reasoning field that the template ignores": (
        CHATML, {"messages": [ASK]}, "<think>\nHm.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9", reasoning_content="Hm."), NEXT]},
        {"cause": "thinking_dropped_by_template", "thinking_dropped": True},
    ),
    "tool arguments in another form": (
        CHATML, {"messages": [ASK]}, '<tool_call>\n{"name":"get","arguments":{"city":"Malmö"}}\n</tool_call><|im_end|>', "<|im_end|>",
        {"messages": [ASK, say(None, tool_calls=call('{"city":"Malmö"}')), {"role": "tool", "content": "4"}]},
        {"cause": "tool_call_reserialised", "bidirectional_safe": False},
    ),
    "tool arguments in another order": (
        CHATML, {"messages": [ASK]}, '<tool_call>\n{"name": "get", "arguments": {"b": 1, "a": 2}}\n</tool_call><|im_end|>', "<|im_end|>",
        {"messages": [ASK, say("", tool_calls=call({"a": 2, "b": 1})), {"role": "tool", "content": "4"}]},
        {"cause": "tool_call_reserialised"},
    ),
    "tool arguments as the model wrote them": (
        CHATML, {"messages": [ASK]}, '<tool_call>\n{"name": "get", "arguments": {"city": "Malmö"}}\n</tool_call><|im_end|>', "<|im_end|>",
        {"messages": [ASK, say(None, tool_calls=call('{"city": "Malm\\u00f6"}')), {"role": "tool", "content": "4"}]},
        {"cause": "none", "bidirectional_safe": True},
    ),
    "tool arguments edited": (
        CHATML, {"messages": [ASK]}, '<tool_call>\n{"name": "get", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>', "<|im_end|>",
        {"messages": [ASK, say("", tool_calls=call({"city": "Rome"})), {"role": "tool", "content": "4"}]},
        {"cause": "client_rewrote_history"},
    ),
    "two calls of one tool, compact": (
        CHATML, {"messages": [ASK]},
        '<tool_call>\n{"name":"get","arguments":{"c":1}}\n</tool_call><tool_call>\n{"name":"get","arguments":{"c":2}}\n</tool_call><|im_end|>',
        "<|im_end|>",
        {"messages": [ASK, say("", tool_calls=[*call({"c": 1}), *call({"c": 2})]), {"role": "tool", "content": "4"}]},
        {"cause": "tool_call_reserialised"},
    ),
    "reasoning effort changed": (
        "{{- 'Effort: ' ~ (reasoning_effort or 'low') ~ '\\n' }}" + CHATML, {"messages": [ASK]}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9"), NEXT], "chat_template_kwargs": {"reasoning_effort": "high"}},
        {"cause": "system_prompt_changed"},
    ),
    "tool result shortened": (
        CHATML, {"messages": [ASK, say("", tool_calls=call({})), {"role": "tool", "content": "long result"}]}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("", tool_calls=call({})), {"role": "tool", "content": "..."}, say("9.9"), NEXT]},
        {"cause": "client_rewrote_history"},
    ),
    "reasoning of an earlier step dropped by the client": (
        ALWAYS_THINKS, {"messages": [ASK, say("", reasoning="Hm.", tool_calls=call({})), {"role": "tool", "content": "4"}]},
        "So.\n</think>\n\n9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("", tool_calls=call({})), {"role": "tool", "content": "4"}, say("9.9", reasoning="So."), NEXT]},
        {"cause": "client_dropped_reasoning", "thinking_dropped": True},
    ),
    "template trims": (
        TRIMMED, {"messages": [ASK]}, " 9.9 \n<|im_end|>", "<|im_end|>", {"messages": [ASK, say(" 9.9 \n"), NEXT]},
        {"cause": "whitespace_trimmed", "bidirectional_safe": False},
    ),
    "template trims the end": (
        TRIMMED, {"messages": [ASK]}, "9.9\n\n<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9\n\n"), NEXT]},
        {"cause": "whitespace_trimmed"},
    ),
    "parser trims": (
        CHATML, {"messages": [ASK]}, "\n9.9<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "whitespace_trimmed"},
    ),
    "only the stop token": (
        HARMONY, {"messages": [ASK]}, "<|channel|>final<|message|>9.9<|return|>", "<|return|>",
        {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "stop_text_rewritten", "bidirectional_safe": True, "exact_prefix": False, "exact_prefix_without_stop_text": True},
    ),
    "system text": (
        CHATML, {"messages": [SYSTEM, ASK]}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [{"role": "system", "content": "Be long."}, ASK, say("9.9"), NEXT]},
        {"cause": "system_prompt_changed"},
    ),
    "system text appears": (
        CHATML, {"messages": [ASK]}, "9.9<|im_end|>", "<|im_end|>", {"messages": [SYSTEM, ASK, say("9.9"), NEXT]},
        {"cause": "system_prompt_changed"},
    ),
    "tools": (
        TOOLED, {"messages": [ASK], "tools": [tool("a")]}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9"), NEXT], "tools": [tool("a"), tool("b")]},
        {"cause": "system_prompt_changed"},
    ),
    "date argument": (
        DATED, {"messages": [ASK], "chat_template_kwargs": {"date_string": "1 Jan"}}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [ASK, say("9.9"), NEXT], "chat_template_kwargs": {"date_string": "2 Jan"}},
        {"cause": "date_changed"},
    ),
    "answer edited": (
        CHATML, {"messages": [ASK]}, "9.9 is larger<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9 is bigger"), NEXT]},
        {"cause": "client_rewrote_history"},
    ),
    "question edited": (
        CHATML, {"messages": [SYSTEM, ASK]}, "9.9<|im_end|>", "<|im_end|>",
        {"messages": [SYSTEM, {"role": "user", "content": "Which is smaller?"}, say("9.9"), NEXT]},
        {"cause": "client_rewrote_history"},
    ),
    "answer cut off by the client": (
        CHATML, {"messages": [ASK]}, "9.9 is larger<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "client_rewrote_history"},
    ),
    "last user message marked": (
        LAST_USER_ONLY, {"messages": [ASK]}, "9.9<|im_end|>", "<|im_end|>", {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "template_rewrote_history", "bidirectional_safe": False},
    ),
    "second turn refused": (
        ALTERNATES, {"messages": [ASK]}, "9.9", "", {"messages": [ASK, NEXT]},
        {"cause": "template_error", "bidirectional_safe": None, "exact_prefix": None, "template_error": "roles must alternate"},
    ),
    "not a template": (
        "{% if %}", {"messages": [ASK]}, "9.9", "", {"messages": [ASK, say("9.9"), NEXT]},
        {"cause": "template_error", "exact_prefix": None, "thinking_dropped": None},
    ),
    "cut off while thinking": (
        ALWAYS_THINKS, {"messages": [ASK]}, "Hm, let me", "", {"messages": [ASK, say("", reasoning="Hm, let me"), NEXT]},
        {"cause": "none", "bidirectional_safe": True},
    ),
}  # fmt: skip


def door() -> Door:
    return Door(system=System(), policy=parse_policy(profile_path("default").read_text(), "test"))


def options(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "path": str(path), "conversation": None, "bidirectional": True, "client": "any", "chat_template_kwargs": None,
        "template_name": None, "tokenizer": None, "no_tokens": False, "cost_tokens": 0, "rate": None, "samples": 5, **more,
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cause(name: str, tmp_path: Path) -> None:
    template, turn1, generated, stop, turn2, expected = CASES[name]
    path, conversation = tmp_path / "template.jinja", tmp_path / "conversation.json"
    path.write_text(template)
    told = {"turn1": turn1, "generated_text": generated, "stop_text_in_generated": stop, "turn2": turn2}
    conversation.write_text(json.dumps(told))
    draft = run(door(), options(path, conversation=str(conversation)))
    assert {key: draft.result[key] for key in expected} == expected
