"""`kvprobe template` as a user runs it: the case collection, the matrix, exit codes and bad inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.cli import main
from kvprobe.report import decode

ROOT = Path(__file__).parent.parent
CASES = sorted(p.parent for p in (ROOT / "cases" / "templates").glob("*/expected.json"))
SAMPLES = ROOT.parent / "samples" / "templates"
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def template(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
        code = main(
            ["template", *map(str, arguments), "--format", "json", "--progress", "off", "--cost-tokens", "0"]
        )
        out = capsys.readouterr()
        decode(out.out.encode())
        return code, json.loads(out.out), out.err

    return run


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_case(case: Path, template: Run) -> None:
    expected = json.loads((case / "expected.json").read_text())
    path = next(p for p in (case / "template.jinja", case / "tokenizer_config.json") if p.exists())
    code, document, _ = template(path, "--conversation", case / "conversation.json")
    result = document["result"]
    for key in (
        "exact_prefix",
        "exact_prefix_without_stop_text",
        "thinking_dropped",
        "bidirectional_safe",
        "cause",
    ):
        assert result[key] == expected.get(key), key
    for key in (
        "turn1_prompt_chars",
        "generated_chars",
        "common_prefix_chars",
        "chars_not_reusable",
        "diverges",
    ):
        if key in expected:
            assert result[key] == expected[key], key
    said = json.dumps(document, ensure_ascii=False).lower()
    assert [w for w in expected["must_mention"] if w.lower() not in said] == []
    assert code == {True: 0, False: 1, None: 3}[expected["bidirectional_safe"]]


def test_without_bidirectional_transfer_a_broken_prefix_is_a_note(template: Run) -> None:
    sample = SAMPLES / "thinking-dropped.jinja"
    code, document, _ = template(
        sample, "--conversation", SAMPLES / "thinking-dropped.json", "--no-bidirectional"
    )
    (finding,) = [f for f in document["findings"] if f["id"] == "KVP301"]
    assert code == 0 and finding["status"] == "pass" and "prefix-cache" in finding["title"]
    assert finding["measured"]["value"] == pytest.approx(82 / 161)
    assert document["result"]["bidirectional_safe"] is False


def test_matrix_of_a_dropping_template(template: Run) -> None:
    code, document, _ = template(SAMPLES / "thinking-dropped.jinja")
    cells = {
        (c["exchange"], c["client"], json.dumps(c["switches"])): c["cause"]
        for c in document["result"]["cells"]
    }
    assert code == 1
    assert cells["plain", "returned", "{}"] == "thinking_dropped_by_template"
    assert (
        cells["plain", "none", '{"enable_thinking": false}'] == "empty_think_block_only_in_generation_prompt"
    )


def test_a_switch_and_a_client_that_returns_reasoning_make_it_safe(template: Run) -> None:
    sample, switch = SAMPLES / "preserve-thinking.jinja", '{"preserve_thinking": true}'
    code, document, _ = template(sample)
    assert code == 1
    assert {"switches": {"preserve_thinking": True}, "client": "returns"} in document["result"][
        "safe_settings"
    ]
    assert switch in document["findings"][0]["remedy"]["text"]
    code, document, _ = template(sample, "--chat-template-kwargs", switch)
    assert (code, document["result"]["cause"]) == (1, "client_dropped_reasoning")
    code, document, _ = template(sample, "--chat-template-kwargs", switch, "--client", "returns")
    assert (code, document["result"]["bidirectional_safe"]) == (0, True)


def test_a_model_directory_is_read_like_transformers_does(template: Run, tmp_path: Path) -> None:
    code, document, _ = template(SAMPLES / "keeps-prefix")
    assert code == 0 and {c["exchange"] for c in document["result"]["cells"]} == {
        "plain",
        "tool_step",
        "after_tool",
    }
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ raise_exception(\'old\') }}"}')
    (tmp_path / "chat_template.jinja").write_text((SAMPLES / "thinking-dropped.jinja").read_text())
    assert template(tmp_path)[1]["subject"]["template"].endswith("chat_template.jinja")


def test_named_templates(template: Run, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    plain = json.loads((SAMPLES / "keeps-prefix" / "tokenizer_config.json").read_text())["chat_template"]
    named = [
        {"name": "default", "template": "{{ raise_exception('no') }}"},
        {"name": "tool_use", "template": plain},
    ]
    path.write_text(json.dumps({"chat_template": named}))
    assert template(path)[0] == 3
    assert template(path, "--template-name", "tool_use")[0] == 0
    code, document, err = template(path, "--template-name", "rag")
    assert code == 2 and "default, tool_use" in err


def test_token_ids_decide_where_a_tokenizer_is_at_hand(template: Run, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={"<e>": 0, "a": 1, "b": 2, ":": 3, " ": 4, ":b": 5}, merges=[(":", "b")]
    ))  # fmt: skip
    made.add_special_tokens(["<e>"])
    made.save(str(tmp_path / "tokenizer.json"))
    text = "{% for m in messages %}{{ 'a:' ~ m.content ~ '<e>' }}{% endfor %}{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(text)
    turns = {
        "turn1": {"messages": [{"role": "user", "content": "a"}]}, "generated_text": "b<e>", "stop_text_in_generated": "<e>",
        "turn2": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]},
    }  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(turns))
    code, document, _ = template(tmp_path, "--conversation", tmp_path / "c.json")
    result = document["result"]
    assert (code, result["cause"], result["compared"]) == (1, "retokenised_at_boundary", "token_ids")
    assert result["exact_prefix"] is True and result["bidirectional_safe"] is False
    code, document, _ = template(tmp_path, "--conversation", tmp_path / "c.json", "--no-tokens")
    assert (code, document["result"]["compared"]) == (0, "text")


BAD = {
    "binary": (b"\x00\xff\x00\xff" * 100, "binary"),
    "empty": (b"  \n", "empty"),
    "huge": (b"x" * (2 * 1024 * 1024), "at most"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_templates_get_a_clear_error(name: str, template: Run, tmp_path: Path) -> None:
    data, word = BAD[name]
    (tmp_path / "t.jinja").write_bytes(data)
    code, document, err = template(tmp_path / "t.jinja")
    assert code == 3 and word in document["error"]["reason"] and "Traceback" not in err


BAD_JSON = {
    "no template": ('{"bos_token": "<s>"}', "holds no chat_template"),
    "list": ("[1]", "not an object"),
    "number": ('{"chat_template": 7}', "neither a text nor"),
    "recursive": ("[" * 100000, "JSON"),
    "cut off": ('{"chat_template": "', "not valid JSON"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_configurations_get_a_clear_error(name: str, template: Run, tmp_path: Path) -> None:
    text, word = BAD_JSON[name]
    (tmp_path / "tokenizer_config.json").write_text(text)
    code, document, err = template(tmp_path / "tokenizer_config.json")
    assert code == 3 and word in document["error"]["reason"] and "Traceback" not in err


BAD_TURNS = {
    "missing": ("{}", "turn1"),
    "role": ('{"turn1": {"messages": [{"role": "boss"}]}, "turn2": {"messages": []}, "generated_text": ""}', "boss"),
    "no messages": ('{"turn1": {"messages": []}, "turn2": {"messages": []}, "generated_text": ""}', "no messages"),
    "stop": (
        '{"turn1": {"messages": [{"role": "user"}]}, "turn2": {"messages": [{"role": "user"}]}, "generated_text": "a", "stop_text_in_generated": "b"}',
        "does not end",
    ),
    "clock": (
        '{"turn1": {"messages": [{"role": "user"}], "now": "today"}, "turn2": {"messages": [{"role": "user"}]}, "generated_text": "a"}',
        "ISO 8601",
    ),
    "far future": (
        '{"turn1": {"messages": [{"role": "user"}], "now": "9999-12-31"}, "turn2": {"messages": [{"role": "user"}]}, "generated_text": "a"}',
        "ISO 8601",
    ),
    "wrong type": ('{"turn1": 1, "turn2": 2, "generated_text": 3}', "object"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TURNS)
def test_bad_conversations_get_a_clear_error(name: str, template: Run, tmp_path: Path) -> None:
    text, word = BAD_TURNS[name]
    (tmp_path / "c.json").write_text(text)
    code, document, err = template(SAMPLES / "thinking-dropped.jinja", "--conversation", tmp_path / "c.json")
    assert code == 3 and word in document["error"]["reason"] and "Traceback" not in err


def test_usage_errors(template: Run, tmp_path: Path) -> None:
    code, _, err = template(SAMPLES / "thinking-dropped.jinja", "--chat-template-kwargs", "[1]")
    assert code == 2 and "JSON object" in err
    code, document, _ = template(tmp_path / "absent")
    assert code == 3 and "does not exist" in document["error"]["reason"]


def test_a_directory_without_a_template(template: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, document, _ = template(tmp_path / "empty")
    assert code == 3 and "holds no chat template" in document["error"]["reason"]


def test_the_screen_names_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    sample, turns = SAMPLES / "thinking-dropped.jinja", SAMPLES / "thinking-dropped.json"
    assert main(["template", str(sample), "--conversation", str(turns), "--progress", "off"]) == 1
    out = capsys.readouterr().out
    assert "character 0 of the generated text" in out and '"9.9 is larger.<|im_end|>"' in out
    assert "CPU for a chat of about 9," in out and "tokenise not measured" in out
    assert out.strip().splitlines()[-1].startswith("NO-GO")


def test_recorded_and_replayed(tmp_path: Path, template: Run) -> None:
    record = tmp_path / "record"
    first = template(SAMPLES / "thinking-dropped.jinja", "--record", record)
    again = template(SAMPLES / "thinking-dropped.jinja", "--replay", record)
    assert again[1]["result"] == first[1]["result"] and again[1]["run"]["replayed_from"] == str(record)
