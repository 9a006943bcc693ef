"""URLs that are taken or refused, prompts that no cache has seen, and a side channel to which nothing is sent."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from kvprobe.errors import UsageError
from kvprobe.formats.kv_transfer_params import ASK_PREFILL
from kvprobe.probes.pd_endpoint import Access, Endpoints, check_url, host_of
from kvprobe.probes.pd_endpoint_drive import cache_salt, make_ask, request_id
from kvprobe.probes.pd_endpoint_facts import ask_server, read_greeting
from kvprobe.system import System
from tests.simulator.engine import salt_refused
from tests.simulator.running import deployment


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://node-a:8100", "http://node-a:8100"),
        ("https://node-a/", "https://node-a"),
        ("http://node-a:8100/v1/", "http://node-a:8100"),
        ("http://[2001:db8::1]:8100/pd", "http://[2001:db8::1]:8100/pd"),
    ],
)
def test_a_base_url(given: str, kept: str) -> None:
    assert check_url("prefill", given) == kept


@pytest.mark.parametrize(
    "given",
    [
        "node-a:8100",
        "",
        "http://",
        "ftp://node-a",
        "http://node-a:x",
        "http://a?x=1",
        "http://a#x",
        "\x00",
        "http://me:pw@a",
    ],
)
def test_what_is_no_base_url(given: str) -> None:
    with pytest.raises(UsageError, match="--prefill") as caught:
        check_url("prefill", given)
    assert "pw" not in str(caught.value)


def test_hosts_are_compared_without_case_and_brackets() -> None:
    assert host_of("http://NODE-A:1") == "node-a"
    assert host_of("http://[::1]:1") == "::1"


def test_bodies_of_both_apis() -> None:
    ask = make_ask(7, "pair 0", 5, "m", "completions")
    body = json.loads(ask.body(16, stream=True, way="pd", params=ASK_PREFILL))
    assert len(body["prompt"]) == 5
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]) == (
        16,
        0.0,
        True,
        True,
    )
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    token = json.loads(make_ask(7, "pair 0", 5, "m", "generate").body(1, stream=False, way="pd"))
    assert token["token_ids"] == body["prompt"]
    assert token["sampling_params"]["max_tokens"] == 1
    assert "kv_transfer_params" not in token


def test_no_two_requests_share_a_cache() -> None:
    one, two = make_ask(7, "pair 0", 64, "m", "completions"), make_ask(7, "pair 1", 64, "m", "completions")
    other_run = make_ask(8, "pair 0", 64, "m", "completions")
    assert len({one.prompt, two.prompt, other_run.prompt}) == 3
    salts = {
        json.loads(a.body(1, stream=False, way=w))["cache_salt"]
        for a in (one, two, other_run)
        for w in ("pd", "alone")
    }
    assert len(salts) == 6


@pytest.mark.parametrize(
    "text",
    [
        "kvprobe-a-load pd 1/s arrival 0-pd",
        "a@b",
        "back\\slash",
        "nul\x00",
        "x" * 129,
        "x" * 300 + "/",
        "é\ud800",
    ],
)
def test_vllm_takes_every_salt(text: str) -> None:
    assert salt_refused(cache_salt(text)) is None
    assert cache_salt(text) == cache_salt(text) != cache_salt(text + "1")


def test_salts_that_differ_in_one_odd_character_stay_apart() -> None:
    assert len({cache_salt(s) for s in ("a/b", "a@b", "a-b", "a b", "x" * 128, "x" * 129)}) == 6
    assert salt_refused("load 1/s") and salt_refused("x" * 129) and salt_refused("")


def test_request_ids_hold_no_odd_characters() -> None:
    assert request_id("kvprobe-a", "load pd 0.5/s é", "x") == {"X-Request-Id": "kvprobe-a-load-pd-0.5-s--x"}


def test_the_greeting_is_read_and_nothing_is_sent() -> None:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(bytes.fromhex("ff00000000000000017f"))
                while piece := link.recv(100):
                    got.append(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        found = read_greeting(System(), "127.0.0.1", listener.getsockname()[1])
        thread.join()
    assert (found.connected, found.zmq) == (True, True)
    assert got == []


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 300, "bad host"])
def test_a_side_channel_that_cannot_be_reached(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = read_greeting(System(), host, port)
    assert (found.connected, found.zmq) == (False, False)
    assert found.detail


def test_a_server_by_its_own_account(tmp_path: Path) -> None:
    with deployment(tmp_path, running=2) as place:
        ends = Endpoints(System(), {"decode": place.url("decode")}, Access())
        found = ask_server(ends, "decode")
        ends.close()
    assert (found.version, found.models, found.max_model_len) == ("0.30.0", ("m",), 32768)
    assert (found.requests_running, found.requests_waiting, found.prefix_caching) == (2.0, 0.0, False)
    assert found.failure is None


def test_a_socket_that_is_no_http_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 4)

        thread = threading.Thread(target=serve)
        thread.start()
        ends = Endpoints(System(), {"decode": f"http://127.0.0.1:{listener.getsockname()[1]}"}, Access())
        found = ask_server(ends, "decode")
        ends.close()
        thread.join()
    assert found.failure is not None
    assert found.failure.code == "connection_closed"
