"""Hostile templates: none may hang, read, fill the memory or bring kvprobe down."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.formats.chat_template import TemplateSource
from kvprobe.models.template_request import Render
from kvprobe.probes import chat_template
from kvprobe.probes.chat_template import Rendered
from kvprobe.system import System

HOSTILE = {
    "endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "huge power": "{{ 10 ** (10 ** 9) }}",
    "memory in one text": "{{ 'x' * 10 ** 11 }}",
    "memory by doubling": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "endless output": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "wide format": "{{ '%999999999999d' % 1 }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "object walk": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['os'].environ }}",
    "code object": "{{ strftime_now.__code__.co_consts }}",
    "file": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os.environ }}",
    "change the messages": "{{ messages.append(1) }}",
    "format string": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
}


def render(template: str) -> Rendered:
    source = TemplateSource(text=template, source="test")
    prompt = Render(
        id="p", messages=[{"role": "user", "content": "x"}], tools=None, kwargs={}, now="2026-01-01"
    )
    return chat_template.render(System(), source, [prompt], tokens={})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_gets_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 2)
    done = render(HOSTILE[name])
    assert done.text("p") is None
    told = done.error or done.refusal("p") or ""
    assert told and "Traceback" not in told and "root:" not in told and "PATH" not in told


def test_an_endless_template_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    assert "did not end" in (render(HOSTILE["endless loop"]).error or "")


def test_many_long_prompts_are_limited_together() -> None:
    source = TemplateSource(text="{{ messages[0].content * 1000 }}", source="test")
    prompts = [
        Render(
            id=str(i),
            messages=[{"role": "user", "content": "x" * 4000}],
            tools=None,
            kwargs={},
            now="2026-01-01",
        )
        for i in range(6)
    ]
    done = chat_template.render(System(), source, prompts, tokens={})
    assert done.text("0") is not None and "in all" in (done.refusal("5") or "")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ {'k': 'ü'} | tojson }}", '{"k": "ü"}'),
        ("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "x"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2026"),
        ("{% for part in messages[0].content %}{{ part.type }}:{{ part.text }}{% endfor %}", "text:x"),
        ("{{ documents is none }}{{ add_generation_prompt }}", "TrueTrue"),
    ],
)
def test_the_environment_is_that_of_vllm(template: str, text: str) -> None:
    assert render(template).text("p") == text


def test_a_parts_content_becomes_text_for_a_template_that_wants_text() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "b"},
    ]
    prompt = Render(
        id="p", messages=[{"role": "user", "content": parts}], tools=None, kwargs={}, now="2026-01-01"
    )
    source = TemplateSource(text="{{ messages[0].content }}", source="test")
    assert chat_template.render(System(), source, [prompt], tokens={}).text("p") == "a\nb"


def test_switches_are_the_names_that_the_caller_may_set() -> None:
    template = (
        "{%- set ns = namespace(x=1) %}{%- set keep = keep if keep is defined else true %}{%- set own = 1 %}"
        "{%- macro f(arg) %}{{ arg }}{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}a{% endif %}{% if own %}b{% endif %}"
        "{% if level == 'high' %}c{% elif level in ['low'] %}d{% endif %}{{ date_string }}{% for t in builtin_tools or [] %}{% endfor %}"
    )
    found = {s["name"]: s["values"] for s in render(template).inspection["switches"]}
    assert found["enable_thinking"] == [True, False]
    assert set(found["level"]) == {"high", "low"}
    assert found["date_string"] == []
    assert "own" not in found and "arg" not in found and "keep" in found


def test_clocks_are_found() -> None:
    inspection = render("{{ strftime_now('%H:%M') }}{{ strftime_now(messages[0].content) }}").inspection
    assert inspection["strftime"] == ["%H:%M", "(computed)"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE(unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["assistant: 9.9 is larger"] * 50, trainer)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def test_texts_are_encoded(tokenizer: Path) -> None:
    source = TemplateSource(text="x", source="test")
    done = chat_template.render(
        System(), source, [], tokens={}, tokenizer=str(tokenizer), encode={"a": "9.9<|im_end|>"}
    )
    assert done.encoded["a"][-1] == 1 and len(done.encoded["a"]) > 1


def test_cost_keeps_every_sample(tokenizer: Path) -> None:
    source = TemplateSource(text="{% for m in messages %}{{ m.content }}{% endfor %}", source="test")
    job = {
        "tokens": 300, "turn": [{"role": "user", "content": "9.9 is larger"}, {"role": "assistant", "content": "no"}],
        "request": {"tools": None, "kwargs": {}, "now": "2026-01-01", "add_generation_prompt": True},
        "samples": 6, "budget_seconds": 5.0,
    }  # fmt: skip
    done = chat_template.render(System(), source, [], tokens={}, tokenizer=str(tokenizer), cost=job)
    assert done.cost is not None and done.cost["tokens_origin"] == "measured"
    assert 200 < done.cost["tokens"] < 400
    assert len(done.cost["render_seconds"]) == len(done.cost["tokenise_seconds"]) == 6
    assert all(s > 0 for s in [*done.cost["render_seconds"], *done.cost["tokenise_seconds"]])
