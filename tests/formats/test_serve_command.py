"""Options as vLLM's argparse takes them, and the JSON of --kv-transfer-config however it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.formats.kv_transfer_config import parse_config, read_config
from kvprobe.formats.kv_transfer_config_connectors import nearest_connector
from kvprobe.formats.serve_command import ServeCommand, parse_command
from kvprobe.formats.serve_command_surface import (
    nearest_option,
    nearest_variable,
    option_name,
    options,
    parse_version,
    variables,
)


def parsed(*argv: str) -> ServeCommand:
    command = parse_command(("vllm", "serve", *argv), (0, 33, 0))
    assert command is not None
    return command


def test_spellings_of_one_option() -> None:
    for words in (
        ("m", "--tensor-parallel-size", "2"), ("--tensor_parallel_size=2", "m"), ("m", "-tp", "2"),
        ("m", "-tp=2"), ("--tensor-parallel", "2", "m"),
    ):  # fmt: skip
        command = parsed(*words)
        assert (command.number("--tensor-parallel-size", 1), command.model) == (2, "m")


def test_switches_lists_and_the_last_one_wins() -> None:
    command = parsed(
        "--enable-prefix-caching",
        "m",
        "--no-enable-prefix-caching",
        "--served-model-name",
        "a",
        "b",
        "--port",
        "1",
        "--port",
        "2",
    )
    assert command.switched("--enable-prefix-caching") is False
    assert (command.model, command.get("--port"), command.strays) == ("m", "2", ())


def test_what_only_the_shell_knows() -> None:
    command = parsed("$MODEL", "$EXTRA", "-tp", "$TP")
    assert (command.model, command.unread, command.number("--tensor-parallel-size", 1)) == (
        "$MODEL",
        ("$EXTRA",),
        None,
    )


def test_values_of_switches_and_stray_words() -> None:
    command = parsed("m", "--enable-chunked-prefill", "False", "--enforce-eager", "stray")
    assert command.flags_with_value == (("--enable-chunked-prefill", "False"),)
    assert command.strays == ("stray",)


def test_dotted_options_make_the_json() -> None:
    command = parsed("m", "--kv-transfer-config.kv_connector", "NixlConnector", "--kv-transfer-config.kv_role=kv_both",
                     "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration", "60")  # fmt: skip
    config = read_config(command)
    assert config is not None and (config.connector, config.role) == ("NixlConnector", "kv_both")
    assert config.extra == {"kv_lease_duration": 60}


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), "serve"),
        (("/opt/venv/bin/vllm", "serve", "m"), "serve"),
        (("vllm", "launch", "render", "m"), "render"),
        (("vllm", "bench", "serve"), "bench"),
        (("python3", "-m", "dynamo.vllm", "--model", "m"), "dynamo"),
        (("python", "x/toy_proxy_server.py"), "proxy"),
        (("vllm", "complete"), None),
        (("python", "train.py"), None),
    ],
)
def test_programs(argv: tuple[str, ...], kind: str | None) -> None:
    command = parse_command(argv, None)
    assert (command.program.kind if command else None) == kind


def test_tables_of_the_released_wheels() -> None:
    assert len(options()) > 300 and len(variables()) > 400
    assert options()["--enable-scale-out"].known_absent((0, 28, 0))
    assert not options()["--enable-scale-out"].known_absent((0, 33, 0))
    # Between two looked-at versions nothing is claimed.
    assert not options()["--enable-scale-out"].known_absent((0, 29, 0))
    assert variables()["VLLM_NIXL_ABORT_REQUEST_TIMEOUT"].known_absent((0, 22, 0))


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("--chunked-prefill", "--enable-chunked-prefill (on by default)"),
        ("--disable-prefix-caching", "--no-enable-prefix-caching"),
        ("--tensor-parallelism-size", "--tensor-parallel-size"),
        ("--something-of-a-plugin", None),
    ],
)
def test_near_options(written: str, instead: str | None) -> None:
    assert option_name(written, (0, 33, 0)) is None
    assert nearest_option(written) == instead


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("UCX_NET_DEVICE", "UCX_NET_DEVICES"), ("UCX_TL", "UCX_TLS"), ("VLLM_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_HOST"), ("VLLM_USE_V2", None), ("NIXL_SIDE_CHANNEL_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
        ("VLLM_NIXL_SIDE_CHANNEL_HOSTS", "VLLM_NIXL_SIDE_CHANNEL_HOST"), ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("UCX_NET_DEVICES", None), ("UCX_RC_RETRY_COUNT", None), ("UCX_DC_RETRY_COUNT", None), ("UCX_MAX_RMA_LANES", None),
        ("UCX_RCACHE_MAX_SIZE", None), ("VLLM_HOST", None), ("MY_VLLM_IMAGE", None), ("HF_TOKEN", None), ("NCCL_IB_HCA", None),
    ],
)  # fmt: skip
def test_near_variables(name: str, meant: str | None) -> None:
    assert nearest_variable(name) == meant


@pytest.mark.parametrize(
    ("text", "fault", "connector"),
    [
        ('{"kv_connector":"NixlConnector"}', "", "NixlConnector"),
        ("{kv_connector:NixlConnector,kv_role:kv_producer}", "quotes_lost", "NixlConnector"),
        ('\'{"kv_connector":"NixlConnector"}\'', "quotes_lost", "NixlConnector"),
        ('{\\"kv_connector\\":\\"NixlConnector\\"}', "quotes_lost", "NixlConnector"),
        ("{“kv_connector”:“NixlConnector”}", "typographic", "NixlConnector"),
        ("{'kv_connector': 'NixlConnector', 'x': True}", "invalid", "NixlConnector"),
        ('{"kv_connector":"NixlConnector",}', "invalid", "NixlConnector"),
        ("[]", "invalid", ""),
        ('{"kv_port": NaN}', "invalid", ""),
        ("[" * 5000, "invalid", ""),
        ("", "invalid", ""),
    ],
)
def test_json_in_every_state(text: str, fault: str, connector: str) -> None:
    config = parse_config(text)
    assert (config.fault, config.connector) == (fault, connector)


def test_multi_connector_children() -> None:
    inner = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    config = parse_config(
        f'{{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{{"connectors":[{inner},5]}}}}'
    )
    assert [c.connector for c in config.everyone()] == ["NixlConnector"]


def test_names_and_versions() -> None:
    assert (
        nearest_connector("nixl") == "NixlConnector"
        and nearest_connector("LMCacheConnector") == "LMCacheConnectorV1"
    )
    assert nearest_connector("zzz") is None
    assert (
        parse_version("v0.33.0-cu129") == (0, 33, 0)
        and parse_version("0.30") == (0, 30, 0)
        and parse_version("nightly") is None
    )


@given(st.lists(st.text(alphabet="-=abtp0123{}\"':., $", max_size=14), max_size=12))
def test_no_words_make_the_parser_fail(words: list[str]) -> None:
    command = parse_command(("vllm", "serve", *words), None)
    assert command is not None
    read_config(command)
