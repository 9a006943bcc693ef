"""Kubernetes, Dynamo, compose and systemd: the commands, their environment and what they run in."""

from __future__ import annotations

import pytest

from kvprobe.errors import FormatError
from kvprobe.formats.launch_env import looks_like_env, looks_like_hosts, parse_host, read_hosts
from kvprobe.formats.launch_files import read_launch
from kvprobe.formats.launch_model import Command
from kvprobe.formats.launch_yaml import load_documents
from kvprobe.models.pd_instance import role_of

POD = """
      hostNetwork: true
      hostPID: true
      nodeName: node-7
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.33.0
          command: ["vllm", "serve", "m"]
          args: ["--port", "$(PORT)", "-tp", "2"]
          envFrom: [{configMapRef: {name: shared}}]
          env:
            - {name: PORT, value: "8100"}
            - {name: VLLM_NIXL_SIDE_CHANNEL_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: FROM_MAP, valueFrom: {configMapKeyRef: {name: shared, key: UCX_TLS}}}
          resources: {limits: {nvidia.com/gpu: 2, rdma/ib: 1}}
"""
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: prefill-server, namespace: prod}}
spec:
  replicas: 3
  template:
    metadata: {{labels: {{llm-d.ai/role: prefill}}}}
    spec:{POD}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: shared}}
data: {{UCX_TLS: "rc,cuda", start.sh: "vllm serve from-map --port 1"}}
"""


def only(text: str, name: str = "a.yaml", **files: str) -> Command:
    (command,) = read_launch({name: text, **{k.replace("__", "."): v for k, v in files.items()}}).commands
    return command


def test_deployment_with_config_map() -> None:
    command = only(DEPLOYMENT)
    assert command.argv == ("vllm", "serve", "m", "--port", "8100", "-tp", "2")
    assert {k: s.value for k, s in command.env.items()} == {
        "UCX_TLS": "rc,cuda", "start.sh": "vllm serve from-map --port 1", "PORT": "8100",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "$(status.podIP)", "FROM_MAP": "rc,cuda",
    }  # fmt: skip
    assert command.env["VLLM_NIXL_SIDE_CHANNEL_HOST"].dynamic
    box = command.box
    assert box is not None
    assert (box.replicas, box.network_host, box.pid, box.node, box.gpus, box.rdma, box.namespace) == (
        3, True, "host", "node-7", "2", True, "prod",
    )  # fmt: skip


def test_a_script_of_a_config_map() -> None:
    text = DEPLOYMENT.replace('command: ["vllm", "serve", "m"]', 'command: ["bash", "/mnt/start.sh"]')
    assert only(text).argv[:3] == ("vllm", "serve", "from-map")


@pytest.mark.parametrize(
    "wrapped",
    [
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: prefill}\nspec:\n  template:\n    spec:",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: prefill}\nspec:\n    spec:",
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: prefill}\nspec:\n  leaderWorkerTemplate:\n   workerTemplate:\n    spec:",
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: prefill}\nspec:\n  jobTemplate:\n   spec:\n    template:\n     spec:",
    ],
)
def test_every_kind_with_a_pod_spec(wrapped: str) -> None:
    assert only(wrapped + POD.replace("\n      ", "\n        ")).name == "prefill"


def test_lists_are_opened() -> None:
    inner = DEPLOYMENT.split("---")[0].strip().replace("\n", "\n    ")
    assert only(f"apiVersion: v1\nkind: List\nitems:\n  - {inner}\n").name == "prefill-server"


def test_named_roles_of_one_object_are_apart() -> None:
    text = "apiVersion: x/v1\nkind: DisaggregatedSet\nmetadata: {name: pd}\nspec:\n  roles:\n"
    for role in ("prefill", "decode"):
        text += f"    - name: {role}\n      spec:\n        replicas: 4\n        template:\n          spec: {{containers: [{{name: c, image: i, command: [vllm, serve, m]}}]}}\n"
    found = read_launch({"a.yaml": text}).commands
    assert [c.name for c in found] == ["prefill", "decode"]
    assert len({c.box.unit for c in found if c.box}) == 2
    assert [next(r for h in c.hints if (r := role_of(h))) for c in found] == ["prefill", "decode"]


def test_shell_inside_a_manifest() -> None:
    text = 'apiVersion: v1\nkind: Pod\nmetadata: {name: d}\nspec:\n  containers:\n    - name: c\n      image: i\n      command: [/bin/bash, -c]\n      args:\n        - |\n          export A=1\n          exec vllm serve m \\\n            --kv-transfer-config \'{"kv_role":"kv_both"}\'\n'
    command = only(text)
    assert command.argv[-1] == '{"kv_role":"kv_both"}' and command.env["A"].value == "1"


def test_compose() -> None:
    text = """
x-common: &common
  network_mode: host
  environment: {A: 1, B: true}
services:
  p:
    <<: *common
    image: vllm/vllm-openai:${TAG:-v0.33.0}
    command: >-
      --model m --port 81 --x '{"a": 1}'
    env_file: [e.env]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["3"], capabilities: [gpu]}]}}}
  d:
    image: other
    entrypoint: [vllm, serve]
    command: [m]
    pid: "service:p"
"""
    first, second = read_launch({"compose.yaml": text, "e.env": "C=3\n"}).commands
    assert first.argv == ("--model", "m", "--port", "81", "--x", '{"a": 1}')
    assert {k: s.value for k, s in first.env.items()} == {"A": "1", "B": "true", "C": "3"}
    assert first.box is not None and first.box.gpus == "device=3" and first.box.image.endswith(":v0.33.0")
    assert second.argv == ("vllm", "serve", "m") and second.box is not None and second.box.pid == "service:p"


def test_systemd() -> None:
    unit = """[Unit]
Description=vLLM prefill
[Service]
Environment="A=1" B=2
EnvironmentFile=-/etc/kv/e.env
ExecStart=/usr/bin/env vllm serve m \\
  --kv-transfer-config '{"kv_role":"kv_both"}' $EXTRA --port ${PORT}
"""
    command = only(unit, "v.service", e__env="EXTRA=-tp 2\nPORT=81\n")
    assert command.argv[-4:] == ("-tp", "2", "--port", "81")
    assert command.argv[4] == '{"kv_role":"kv_both"}' and set(command.env) == {"A", "B", "EXTRA", "PORT"}
    assert "vLLM prefill" in command.hints


def test_hosts_and_env_files_are_known_by_their_content() -> None:
    hosts = "prefill node-a 192.0.2.11 (8x mlx5 InfiniBand)\ndecode  node-b 192.0.2.12\n"
    assert looks_like_hosts(hosts) and not looks_like_hosts("vllm serve m")
    assert [(h.role, h.name, h.address, h.note) for h in read_hosts(hosts)] == [
        ("prefill", "node-a", "192.0.2.11", "8x mlx5 InfiniBand"),
        ("decode", "node-b", "192.0.2.12", ""),
    ]
    assert looks_like_env("A=1\n# x\nexport B='2 3'\n") and not looks_like_env("A=1 vllm serve m\n")
    entry = parse_host("prefill", "node-a (192.0.2.11)")
    assert entry is not None and (entry.name, entry.address) == ("node-a", "192.0.2.11")
    assert parse_host("prefill", "two words") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x]\n" + "".join(f"b{i}: &b{i} [{','.join(['*' + (f'b{i - 1}' if i else 'a')] * 20)}]\n" for i in range(9)), "unfolds to more than"),
        ("a: &a [*a]\n", "unfolds to more than"),
        ("- " * 80 + "x", "levels deep"),
        ("a: [1", "is not YAML"),
        ("a: !!python/object/apply:os.system [x]\n", "is not YAML"),
        ("just: {a: 1}\nother: [2]\n---\n- 5\n", None),
    ],
)  # fmt: skip
def test_hostile_yaml(text: str, words: str | None) -> None:
    if words is None:
        assert len(load_documents(text, "a.yaml")) == 2
        return
    with pytest.raises(FormatError, match=words):
        load_documents(text, "a.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: 5\nspec: {containers: [{image: 5, command: 7, args: {a: b}, env: [1, {name: 2, value: [1]}], resources: 5, envFrom: 3}]}\n",
        "services: {a: {image: 3, command: {x: y}, environment: [1, 2], env_file: 7, deploy: 4}, b: 5}\n",
        "apiVersion: v1\nkind: List\nitems: [1, null, {kind: Pod, spec: {containers: [null, 3]}}]\n",
    ],
)
def test_wrong_types_are_no_crash(text: str) -> None:
    assert read_launch({"a.yaml": text}).commands == ()


def test_files_that_start_nothing_are_put_aside() -> None:
    launch = read_launch(
        {
            "mooncake.json": '{"protocol": "rdma"}',
            "notes.txt": "it's for node-a, don't touch\n",
            "l.yaml": "- 1\n",
        }
    )
    assert launch.ignored == ("mooncake.json", "notes.txt", "l.yaml")
    assert launch.problems == () and launch.commands == ()
