"""Every label of lint: a launch that deserves it, with its severity, and the same launch mended, which stays clean."""

from __future__ import annotations

import pytest

from kvprobe.rules.lint_base import outcome
from tests.launches import (
    DECODE_ENV,
    ONE_HOST,
    PREFILL_ENV,
    TWO_HOSTS,
    alarms,
    codes,
    findings,
    nixl,
    pair,
    serve,
)

P, D = nixl("kv_producer"), nixl("kv_consumer")
BIDIRECTIONAL = '"kv_connector_extra_config":{"bidirectional_kv_xfer":true}'


def docker(name: str, gpus: str, args: str, options: str = "") -> str:
    return f"docker run -d --name {name} --gpus {gpus} --network host --ipc=host {options} vllm/vllm-openai:v0.33.0 {args}\n"


def test_a_right_pair_is_clean() -> None:
    assert codes(pair(), ONE_HOST) == {}


@pytest.mark.parametrize(
    ("label", "severity", "launch"),
    [
        ("block_size_mismatch", "error", pair("--block-size 64", "--block-size 16")),
        ("block_size_mismatch", "error", pair("--block-size 48", "--block-size 64")),
        ("block_size_differs", "info", pair("--block-size 16", "--block-size 64")),
        ("boolean_flag_with_value", "error", pair("--enable-chunked-prefill False")),
        ("boolean_flag_with_value", "error", pair("", "--enable-prefix-caching=false")),
        ("boolean_flag_with_value", "error", pair("--no-enable-prefix-caching true")),
        ("bidirectional_one_side", "error", pair(decode_config=nixl("kv_consumer", BIDIRECTIONAL))),
        ("bidirectional_one_side", "warn", pair(prefill_config=nixl("kv_producer", BIDIRECTIONAL))),
        ("compat_hash_factor_differs", "warn", pair("--dtype bfloat16")),
        ("compat_hash_factor_differs", "error", pair("--dtype bfloat16", "--dtype half")),
        ("compat_hash_factor_differs", "error", pair("", "--kv-cache-dtype bfloat16")),
        ("compat_hash_factor_differs", "warn", pair("--attention-backend FLASHINFER")),
        ("compat_hash_factor_differs", "error", pair("--attention-backend FLASHINFER", "--attention-backend FLASH_ATTN")),
        ("compat_hash_factor_differs", "error", pair("", "--disable-hybrid-kv-cache-manager")),
        ("compat_hash_factor_differs", "error", pair("", """--speculative-config '{"method":"mtp"}'""")),
        ("connector_mismatch", "error", pair(prefill_config=nixl("kv_producer", connector="MooncakeConnector"))),
        ("connector_mismatch", "error", pair(decode_config=nixl("kv_consumer", connector="NixlPushConnector"))),
        ("connector_unknown", "error", pair(prefill_config=nixl("kv_producer", connector="NIXLConnector"))),
        ("connector_unknown", "error", pair(decode_config=nixl("kv_consumer", connector="P2pNcclConnector"))),
        ("fake_kv_connector", "warn", pair(decode_config=nixl("kv_consumer", connector="DecodeBenchConnector"))),
        ("env_typo", "warn", pair(prefill_env=PREFILL_ENV + " UCX_NET_DEVICE=mlx5_0:1")),
        ("env_typo", "warn", pair(prefill_env=PREFILL_ENV + " VLLM_NIXL_SIDECHANNEL_HOST=192.0.2.1")),
        ("env_typo", "warn", pair(prefill_env=PREFILL_ENV + " NIXL_SIDE_CHANNEL_HOST=192.0.2.1")),
        ("env_unknown", "warn", pair(prefill_env=PREFILL_ENV + " VLLM_NIXL_ABORT_REQUEST_TIMEOUT=300")),
        ("env_unknown", "info", pair(prefill_env=PREFILL_ENV + " VLLM_USE_V1=1")),
        ("expandable_segments_with_connector", "error", pair(prefill_env=PREFILL_ENV + " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")),
        ("expandable_segments_with_connector", "warn", pair(prefill_env=PREFILL_ENV + " PYTORCH_ALLOC_CONF=expandable_segments:True")),
        ("failure_policy_invalid", "error", pair(decode_config=nixl("kv_consumer", '"kv_load_failure_policy":"retry"'))),
        ("failure_policy_recompute", "warn", pair(decode_config=nixl("kv_consumer", '"kv_load_failure_policy":"recompute"'))),
        ("http_port_collision", "error", {"prefill.sh": serve(PREFILL_ENV, "", P), "decode.sh": serve(DECODE_ENV, "", D)}),
        ("json_quotes_lost", "error", pair() | {"decode.sh": f"{DECODE_ENV} vllm serve Qwen/Qwen2.5-7B-Instruct --port 8200 --kv-transfer-config {D}\n"}),
        ("kv_both_deprecated", "info", pair(decode_config=nixl("kv_both"))),
        ("kv_config_invalid", "error", pair(decode_config=D[:-1] + ",}")),
        ("kv_config_invalid", "error", pair(decode_config='["NixlConnector"]')),
        ("kv_config_unknown_field", "error", pair(prefill_config=nixl("kv_producer", '"kv_rank":0'))),
        ("kv_config_unknown_field", "error", pair(prefill_config=nixl("kv_producer", '"bidirectional_kv_xfer":true'))),
        ("kv_config_unknown_field", "warn", pair(prefill_config=nixl("kv_producer", '"kv_connector_extra_config":{"bidirectional_kv_transfer":true}'))),
        ("kv_layout_mismatch", "error", pair(decode_env=DECODE_ENV + " VLLM_KV_CACHE_LAYOUT=NHD")),
        ("kv_role_invalid", "error", pair(decode_config=nixl("kv_decoder"))),
        ("kv_role_mismatch", "warn", pair(prefill_config=D, decode_config=P)),
        ("kv_role_missing", "error", pair(prefill_config='{"kv_connector":"NixlConnector"}')),
        ("kv_transfer_config_missing", "error", pair() | {"decode.sh": serve(DECODE_ENV, "--port 8200")}),
        ("lease_too_short", "warn", pair(prefill_config=nixl("kv_producer", '"kv_connector_extra_config":{"kv_lease_duration":5}'))),
        ("nixl_telemetry_disabled", "error", pair(decode_env=DECODE_ENV + " NIXL_TELEMETRY_ENABLE=n")),
        ("multi_connector_invalid", "error", pair(prefill_config=nixl("kv_both", f'"kv_connector_extra_config":{{"connectors":[{P},{P}]}}', "MultiConnector"))),
        ("connector_refuses_option", "error", pair("--enable-return-routed-experts")),
        ("connector_refuses_option", "error", pair(prefill_config=nixl("kv_producer", '"kv_buffer_device":"tpu"'))),
        ("connector_setting_missing", "error", pair(prefill_config=nixl("kv_producer", connector="MooncakeStoreConnector"))),
        ("sleep_mode_disables_cuda_ipc", "warn", pair("--enable-sleep-mode")),
        ("prompt_rendering_differs", "warn", pair("--chat-template a.jinja")),
        ("same_gpu_overcommit", "error", pair(decode_env="CUDA_VISIBLE_DEVICES=0 VLLM_NIXL_SIDE_CHANNEL_PORT=5601")),
        ("side_channel_port_collision", "error", pair(decode_env="CUDA_VISIBLE_DEVICES=1 VLLM_NIXL_SIDE_CHANNEL_PORT=5600")),
        ("side_channel_port_collision", "error", pair("", "--port 5600")),
        ("tp_not_divisible", "error", pair("-tp 3", "-tp 2", prefill_env="CUDA_VISIBLE_DEVICES=2,3,4", decode_env="CUDA_VISIBLE_DEVICES=0,1 VLLM_NIXL_SIDE_CHANNEL_PORT=5601")),
        ("typographic_quote", "error", pair() | {"decode.sh": f"{DECODE_ENV} vllm serve m --port 8200 --kv-transfer-config ‘{D}’\n"}),
        ("typographic_quote", "error", pair("–tensor-parallel-size 1")),
        ("unclosed_quote", "warn", pair() | {"extra.sh": "echo 'never ends\n"}),
        ("ucx_net_devices_no_port", "warn", pair(prefill_env=PREFILL_ENV + " UCX_NET_DEVICES=mlx5_0")),
        ("ucx_tls_differs", "warn", pair(prefill_env=PREFILL_ENV + " UCX_TLS=cuda,rc", decode_env=DECODE_ENV + " UCX_TLS=cuda,rc,tcp")),
        ("ucx_tls_differs", "info", pair(prefill_env=PREFILL_ENV + " UCX_TLS=cuda,rc")),
        ("ucx_tls_excludes_cuda_ipc", "warn", pair(prefill_env=PREFILL_ENV + " UCX_TLS=cuda_copy,tcp", decode_env=DECODE_ENV + " UCX_TLS=cuda_copy,tcp")),
        ("ucx_tls_excludes_cuda_ipc", "warn", pair(prefill_env=PREFILL_ENV + " UCX_TLS=^cuda_ipc")),
        ("ucx_tls_no_cuda", "error", pair(prefill_env=PREFILL_ENV + " UCX_TLS=rc,tcp,sm")),
        ("unknown_flag", "error", pair("--chunked-prefill")),
        ("unknown_flag", "error", pair("--tensor-paralel-size 1")),
        ("unknown_flag", "error", pair("--swap-space 16")),
        ("unknown_flag", "error", pair("--enable-disagg-prefill")),
        ("unknown_flag", "info", pair("--my-own-plugin-option 3")),
    ],
)  # fmt: skip
def test_labels_on_one_host(label: str, severity: str, launch: dict[str, str]) -> None:
    assert codes(launch, ONE_HOST).get(label) == severity


@pytest.mark.parametrize(
    ("label", "prefill_env", "decode_env"),
    [
        ("side_channel_host_missing", "", "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.12"),
        ("side_channel_host_unroutable", "VLLM_NIXL_SIDE_CHANNEL_HOST=0.0.0.0", ""),
        ("side_channel_host_unroutable", "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.1.1", ""),
        ("side_channel_host_unroutable", "VLLM_NIXL_SIDE_CHANNEL_HOST=localhost", ""),
        ("side_channel_host_not_local", "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.12", ""),
        ("side_channel_host_not_local", "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.11", "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.11"),
    ],
)  # fmt: skip
def test_side_channel_across_hosts(label: str, prefill_env: str, decode_env: str) -> None:
    launch = {"prefill.sh": serve(prefill_env, "", P), "decode.sh": serve(decode_env, "", D)}
    assert alarms(launch, TWO_HOSTS) == {label: "error"}


def test_same_ports_and_gpus_on_two_hosts_are_fine() -> None:
    launch = {
        "prefill.sh": serve("VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.11", "-dp 8", P),
        "decode.sh": serve("VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.12", "-dp 8", D),
    }
    assert alarms(launch, TWO_HOSTS) == {}


def test_rdma_is_asked_for_between_hosts_only() -> None:
    env = "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.11 UCX_TLS=cuda_ipc,cuda_copy,tcp"
    launch = {"prefill.sh": serve(env, "", P), "decode.sh": serve(env.replace("11", "12"), "", D)}
    assert alarms(launch, TWO_HOSTS) == {"ucx_tls_excludes_rdma": "warn"}
    near = pair(prefill_env=PREFILL_ENV + " UCX_TLS=cuda,tcp", decode_env=DECODE_ENV + " UCX_TLS=cuda,tcp")
    assert alarms(near, ONE_HOST) == {}


def test_two_names_of_one_dtype_are_equal() -> None:
    assert codes(pair("--dtype half", "--dtype float16"), ONE_HOST) == {}


def test_nccl_variables_are_told_apart_from_ucx_ones() -> None:
    env = "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.11 NCCL_IB_HCA=mlx5"
    launch = {"prefill.sh": serve(env, "", P), "decode.sh": serve(env.replace("11", "12"), "", D)}
    assert codes(launch, TWO_HOSTS) == {"nccl_vars_do_not_apply": "info"}
    assert codes(pair(prefill_env=PREFILL_ENV + " NCCL_IB_HCA=mlx5"), ONE_HOST) == {}


def test_libfabric_does_not_read_ucx_variables() -> None:
    extra = '"kv_connector_extra_config":{"backends":["LIBFABRIC"]}'
    launch = pair(
        prefill_env=PREFILL_ENV + " UCX_TLS=tcp UCX_NET_DEVICES=mlx5_0",
        prefill_config=nixl("kv_producer", extra),
        decode_config=nixl("kv_consumer", extra),
    )
    assert alarms(launch, ONE_HOST) == {}


@pytest.mark.parametrize(
    ("version", "label", "launch"),
    [
        ("0.12.0", "tp_prefill_larger_unsupported", pair("-tp 2", prefill_env="CUDA_VISIBLE_DEVICES=2,3", decode_env="CUDA_VISIBLE_DEVICES=1 VLLM_NIXL_SIDE_CHANNEL_PORT=5650")),
        ("0.20.2", "vllm_too_old", pair(prefill_config=nixl("kv_producer", BIDIRECTIONAL), decode_config=nixl("kv_consumer", BIDIRECTIONAL))),
        ("0.22.0", "vllm_too_old", pair(prefill_config=nixl("kv_producer", connector="NixlPushConnector"), decode_config=nixl("kv_consumer", connector="NixlPushConnector"))),
        ("0.28.0", "vllm_too_old", pair("--enable-scale-out")),
        ("0.28.0", "vllm_too_old", pair(prefill_env=PREFILL_ENV + " VLLM_KV_CACHE_LAYOUT=BLHNC", decode_env=DECODE_ENV + " VLLM_KV_CACHE_LAYOUT=BLHNC")),
        ("0.12.0", "vllm_too_old", pair(decode_config=nixl("kv_consumer", '"kv_load_failure_policy":"fail"'))),
        ("0.11.0", "block_size_mismatch", pair("--block-size 16", "--block-size 32")),
    ],
)  # fmt: skip
def test_what_only_a_newer_vllm_can(version: str, label: str, launch: dict[str, str]) -> None:
    assert label in alarms(launch, ONE_HOST, version)
    assert label not in alarms(launch, ONE_HOST, "0.33.0")


def test_what_an_older_vllm_refuses_and_what_it_ignores() -> None:
    push = pair(prefill_config=nixl("kv_producer", connector="NixlPushConnector"), decode_config=nixl("kv_consumer", connector="NixlPushConnector"))  # fmt: skip
    ignored = pair(prefill_config=nixl("kv_producer", BIDIRECTIONAL), decode_config=nixl("kv_consumer", BIDIRECTIONAL))  # fmt: skip
    assert outcome(findings(push, ONE_HOST, "0.20.2")) == "will_not_start"
    assert outcome(findings(ignored, ONE_HOST, "0.20.2")) == "feature_inactive"


@pytest.mark.parametrize(
    ("version", "launch"),
    [
        ("0.29.0", pair(prefill_config=nixl("kv_producer", '"kv_rank":0,"kv_parallel_size":2'))),
        ("0.20.2", pair(prefill_env=PREFILL_ENV + " VLLM_NIXL_ABORT_REQUEST_TIMEOUT=300")),
        ("0.15.0", pair("--disable-log-requests")),
        ("0.23.0", pair(prefill_config=nixl("kv_producer", connector="P2pNcclConnector"), decode_config=nixl("kv_consumer", connector="P2pNcclConnector"))),
    ],
)  # fmt: skip
def test_what_was_right_in_its_time(version: str, launch: dict[str, str]) -> None:
    assert alarms(launch, ONE_HOST, version) == {}
    assert alarms(launch, ONE_HOST, "0.33.0") != {}


def test_old_default_port_and_one_listener_a_worker() -> None:
    launch = pair(
        "-tp 2", "-tp 2",
        prefill_env="CUDA_VISIBLE_DEVICES=0,1 VLLM_NIXL_SIDE_CHANNEL_PORT=5600",
        decode_env="CUDA_VISIBLE_DEVICES=2,3 VLLM_NIXL_SIDE_CHANNEL_PORT=5601",
    )  # fmt: skip
    assert alarms(launch, ONE_HOST, "0.11.0") == {"side_channel_port_collision": "error"}
    assert alarms(launch, ONE_HOST, "0.33.0") == {}


@pytest.mark.parametrize(
    ("model", "args", "severity"),
    [
        ("Qwen/Qwen3-32B", "--reasoning-parser qwen3", "error"),
        ("openai/gpt-oss-120b", "", "error"),
        ("Qwen/Qwen3-32B", "--chat-template keeps.jinja", "warn"),
        ("Qwen/Qwen3-4B-Instruct-2507", "", None),
        ("meta-llama/Llama-3.1-8B-Instruct", "", None),
        ("my-org/unknown", "--reasoning-parser deepseek_r1", "warn"),
    ],
)
def test_bidirectional_and_the_template(model: str, args: str, severity: str | None) -> None:
    launch = pair(
        args, args, model=model,
        prefill_config=nixl("kv_producer", BIDIRECTIONAL), decode_config=nixl("kv_consumer", BIDIRECTIONAL),
    )  # fmt: skip
    assert alarms(launch, ONE_HOST).get("bidirectional_with_dropping_template") == severity


def test_containers_without_a_common_pid_namespace() -> None:
    first = f"--model m --port 8100 --kv-transfer-config '{P}'"
    second = f"--model m --port 8200 --kv-transfer-config '{D}'"
    ports = ("-e VLLM_NIXL_SIDE_CHANNEL_PORT=5600", "-e VLLM_NIXL_SIDE_CHANNEL_PORT=5601")
    apart = {
        "run.sh": docker("p-prefill", "device=0", first, ports[0])
        + docker("p-decode", "device=1", second, ports[1])
    }
    assert alarms(apart) == {"containers_no_cuda_ipc": "warn"}
    joined = {
        "run.sh": docker("p-prefill", "all", first, ports[0] + " -e CUDA_VISIBLE_DEVICES=0")
        + docker("p-decode", "all", second, ports[1] + " -e CUDA_VISIBLE_DEVICES=1 --pid=container:p-prefill")
    }
    assert alarms(joined) == {}


def test_entrypoint_twice() -> None:
    again = {"run.sh": docker("prefill", "all", f"vllm serve m --kv-transfer-config '{P}'")}
    assert alarms(again) == {"entrypoint_duplicated": "error"}
    replaced = {
        "run.sh": docker("prefill", "all", f"serve m --kv-transfer-config '{P}'", "--entrypoint vllm")
    }
    assert alarms(replaced) == {}


@pytest.mark.parametrize(
    ("bench", "found"),
    [
        ("for r in 1 2 4; do vllm bench serve --model m --seed 42 --request-rate $r; done\n", True),
        ("vllm bench serve --model m --request-rate 1\nvllm bench serve --model m --request-rate 2\n", True),
        ("for r in 1 2 4; do vllm bench serve --model m --seed $r --request-rate $r; done\n", False),
        ("for r in 1 2 4; do vllm bench serve --model m --seed $RANDOM --request-rate $r; done\n", False),
        ("for r in $RATES; do vllm bench serve --model m --seed 1 --request-rate $r; done\n", True),
        ("vllm bench serve --model m --request-rate 1\n", False),
        ("for n in 1000 2000; do vllm bench serve --model m --random-input-len $n; done\n", False),
    ],
)
def test_one_seed_for_several_runs(bench: str, found: bool) -> None:
    launch = pair() | {"sweep.sh": bench}
    assert ("seed_reuse_with_prefix_cache" in alarms(launch, ONE_HOST)) is found
    off = pair("--no-enable-prefix-caching", "--no-enable-prefix-caching") | {"sweep.sh": bench}
    assert alarms(off, ONE_HOST) == {}


@pytest.mark.parametrize(
    ("proxy", "severity"),
    [
        ("python examples/online_serving/disaggregated_serving/disagg_proxy_demo.py --prefill localhost:8100 --decode localhost:8200", {"proxy_without_kv_params": "error"}),
        ("python tests/toy_proxy_server.py --prefiller-ports 8100 --decoder-ports 8200", {}),
        ("python tests/toy_proxy_server.py --prefiller-ports 8200 --decoder-ports 8100", {"proxy_target_mismatch": "warn"}),
        ("python tests/toy_proxy_server.py --prefiller-ports 8100 --decoder-ports 8201", {"proxy_target_mismatch": "warn"}),
        ("vllm-router --prefill http://localhost:8100 --decode http://localhost:8200", {}),
    ],
)  # fmt: skip
def test_proxies(proxy: str, severity: dict[str, str]) -> None:
    assert alarms(pair() | {"proxy.sh": proxy + "\n"}, ONE_HOST) == severity


def test_unknown_hosts_are_said_not_guessed() -> None:
    launch = {"prefill.sh": serve("", "", P), "decode.sh": serve("", "", D)}
    assert alarms(launch) == {}
    assert any("nobody says on which hosts" in f.title for f in findings(launch))


def test_every_alarm_has_place_fix_and_label() -> None:
    launch = pair(
        "--chunked-prefill --block-size 64", "--block-size 16 --kv-cache-dtype fp8", decode_env="UCX_TLS=tcp"
    )
    bad = [f for f in findings(launch, ONE_HOST) if f.status.value in ("fail", "warn")]
    assert len(bad) >= 5
    for finding in bad:
        assert finding.where and finding.code and finding.remedy and finding.remedy.text
