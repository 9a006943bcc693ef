"""vLLM's answers, whole and streamed, healthy and damaged."""

from __future__ import annotations

import json

import pytest

from kvprobe.formats.completion import error_text, read_completion, read_stream
from kvprobe.formats.http_answer import Answer, explain


def test_a_stream_is_timed_by_the_end_of_each_line() -> None:
    # As vLLM 0.30 sends it; the second event arrives in two pieces.
    found = read_stream([
        (1.0, b'data: {"choices":[{"index":0,"text":" t5","finish_reason":null}]}\n\n'),
        (2.0, b'data: {"choices":[{"index":0,"text":" t6",'),
        (3.0, b'"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'),
    ])  # fmt: skip
    assert [(t.at_seconds, t.text) for t in found.tokens] == [(1.0, " t5"), (3.0, " t6")]
    assert found.complete
    assert found.finish_reason == "length"


def test_token_ids_and_chat_deltas_and_empty_text_count() -> None:
    found = read_stream([
        (1.0, b'data: {"choices":[{"index":0,"token_ids":[1,2],"finish_reason":null}]}\n\n'),
        (2.0, b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'),
        (3.0, b'data: {"choices":[{"text":"","finish_reason":null}]}\n\n'),
        (4.0, b'data: {"choices":[],"usage":{}}\n\n: comment\n\ndata: [DONE]\n\n'),
    ])  # fmt: skip
    assert [t.ids for t in found.tokens] == [(1, 2), (), ()]
    assert len(found.tokens) == 3


def test_a_stream_without_an_end_is_not_complete() -> None:
    found = read_stream([(1.0, b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n')])
    assert not found.complete
    assert read_stream([]).tokens == ()


def test_an_error_event_after_200() -> None:
    found = read_stream(
        [(1.0, b'data: {"error":{"message":"Internal server error","type":"x","code":500}}\n\n')]
    )
    assert (found.error, found.error_code, found.complete) == ("Internal server error", 500, False)


@pytest.mark.parametrize(
    "data", [b"data: {\n", b"data: [1,2]\n", b"data: " + b"[" * 100_000 + b"\n", b"data: \xff\xfe\n"]
)
def test_a_damaged_stream_says_so(data: bytes) -> None:
    found = read_stream([(1.0, data)])
    assert found.error is not None
    assert "not JSON" in found.error
    assert len(found.error) < 300


def test_hostile_shapes_do_not_break_the_reader() -> None:
    for value in (
        {"choices": 5},
        {"choices": [1, None]},
        {"choices": [{"text": 3, "token_ids": "x", "finish_reason": 4}]},
    ):
        assert read_stream([(1.0, b"data: " + json.dumps(value).encode() + b"\n")]).error is None


def test_a_whole_answer() -> None:
    body = json.dumps({
        "choices": [{"text": " t9", "token_ids": [9]}],
        "kv_transfer_params": {"do_remote_prefill": True},
    })  # fmt: skip
    found = read_completion(body)
    assert (found.text, found.ids, found.kv_transfer_params) == (" t9", (9,), {"do_remote_prefill": True})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"object": "error", "message": "no such model"}', "no such model"),
        ('{"error": {"message": "too long"}}', "too long"),
        ('{"detail": 1}', "no choices"),
    ],
)
def test_a_damaged_whole_answer_says_so(body: str, says: str) -> None:
    assert says in (read_completion(body).error or "")


def test_error_texts_are_one_line_and_short() -> None:
    assert error_text("<html>\n<body>502\n" + "x" * 5000) == ("<html> <body>502 " + "x" * 5000)[:400]
    assert error_text('{"detail":"Not Found"}') == "Not Found"


def answer(**fields: object) -> Answer:
    return Answer(started=0.0, ended=1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (answer(failure="connect", detail="refused"), "unreachable"),
        (answer(failure="tls"), "tls_failed"),
        (answer(failure="timeout"), "timeout"),
        (answer(failure="cut", status=200), "stream_cut"),
        (answer(failure="cut"), "connection_closed"),
        (answer(failure="protocol"), "protocol_error"),
        (answer(failure="too_large", status=200), "answer_too_large"),
        (answer(status=401), "unauthorized"),
        (
            answer(status=403, body='{"error":{"message":"Scale-out endpoints are disabled."}}'),
            "scale_out_disabled",
        ),
        (answer(status=404), "not_found"),
        (answer(status=400, body='{"error":{"message":"max_model_len"}}'), "request_refused"),
        (answer(status=500), "kv_load_failed"),
        (answer(status=503), "upstream_failed"),
        (answer(status=302), "request_refused"),
        (answer(status=200, stream=read_stream([])), "stream_cut"),
        (answer(status=200, stream=read_stream([(1.0, b"data: [DONE]\n")])), "no_tokens"),
    ],
)
def test_every_failure_is_explained_with_a_next_step(given: Answer, code: str) -> None:
    found = explain("decode (http://node-b:8200)", given)
    assert found is not None
    assert found.code == code
    assert found.reason.startswith("decode (http://node-b:8200)")
    assert found.remedy


def test_what_went_well_is_not_explained() -> None:
    whole = read_stream([(1.0, b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n')])
    assert explain("decode", answer(status=200)) is None
    assert explain("decode", answer(status=200, stream=whole)) is None
    part = read_stream([(1.0, b'data: {"choices":[{"text":"a"}]}\n')])
    assert explain("decode", answer(status=200, stream=part, left=True)) is None
