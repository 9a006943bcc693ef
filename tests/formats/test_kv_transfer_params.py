"""``kv_transfer_params`` as vLLM answers them, and in every way in which decode would ignore them."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.formats.kv_transfer_params import inspect, is_loopback

GOOD: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[7, 8, 9]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "192.0.2.11",
    "remote_port": 5600,
    "remote_num_tokens": 40,
    "tp_size": 1,
}


def test_complete() -> None:
    found = inspect(GOOD)
    assert found.problem is None
    assert (found.host, found.port, found.blocks, found.prompt_tokens) == ("192.0.2.11", 5600, 3, 40)


def test_block_ids_of_vllm_before_several_groups() -> None:
    assert inspect({**GOOD, "remote_block_ids": [1, 2]}).blocks == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"remote_request_id": None}, "remote_request_id"),
        ({"remote_host": "", "remote_port": None}, "remote_host, remote_port"),
        ({"remote_block_ids": [[]]}, "nothing to fetch"),
        ({"remote_block_ids": None}, "nothing to fetch"),
        ({"do_remote_prefill": False}, "do_remote_prefill"),
    ],
)
def test_incomplete(change: dict[str, Any], says: str) -> None:
    found = inspect({**GOOD, **change})
    assert found.present
    assert says in (found.problem or "")


@pytest.mark.parametrize("value", [None, 5, "x", [], True])
def test_no_dict_at_all(value: Any) -> None:
    found = inspect(value)
    assert not found.present
    assert found.problem


def test_another_connector_names_no_blocks() -> None:
    assert (
        inspect({"do_remote_prefill": True, "transfer_id": "t", "remote_bootstrap_addr": "http://a"}).problem
        is None
    )


def test_wrong_types_do_not_pass_as_host_or_port() -> None:
    found = inspect({**GOOD, "remote_host": 5, "remote_port": True})
    assert (found.host, found.port) == (None, None)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", True),
        ("192.0.2.1", False),
        ("node-a", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
