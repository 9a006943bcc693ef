"""Roles, hosts and pairs: who is prefill, what shares a machine, what shares its ports."""

from __future__ import annotations

import pytest

from kvprobe.errors import FormatError
from kvprobe.models.pd_instance import Instance, role_of
from kvprobe.models.pd_pairs import one_host, one_machine
from tests.launches import ONE_HOST, TWO_HOSTS, nixl, pair, read, serve

P, D = nixl("kv_producer"), nixl("kv_consumer")


def instances(files: dict[str, str], hosts: dict[str, str] | None = None) -> tuple[Instance, ...]:
    return read(files, hosts).instances


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("prefill.sh", "prefill"), ("VllmDecodeWorker", "decode"), ("ms-pd-llm-d-modelservice-decode", "decode"),
        ("kv_producer", "prefill"), ("the decoder", "decode"), ("start-prefill-and-decode.sh", None), ("launch.sh", None),
    ],
)  # fmt: skip
def test_role_in_a_name(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_a_name_counts_more_than_kv_role() -> None:
    (one,) = instances({"prefill.sh": serve("", "", D)})
    assert (one.role, one.role_from) == ("prefill", "the name 'prefill.sh'")


def test_the_proxy_tells_roles_where_names_do_not() -> None:
    files = {
        "a.sh": serve("", "--port 81", nixl("kv_both")),
        "b.sh": serve("", "--port 82", nixl("kv_both")),
        "proxy.sh": "python toy_proxy_server.py --prefiller-ports 82 --decoder-ports 81\n",
    }
    assert [(i.role, i.role_from) for i in instances(files)] == [
        ("decode", "the proxy's ports"), ("prefill", "the proxy's ports"),
    ]  # fmt: skip


def test_kv_role_is_the_last_resort() -> None:
    (one, two) = instances({"a.sh": serve("", "", P), "b.sh": serve("", "", nixl("kv_both"))})
    assert (one.role, two.role) == ("prefill", None)


@pytest.mark.parametrize(
    ("files", "hosts", "together"),
    [
        (pair(), ONE_HOST, True),
        (pair(), TWO_HOSTS, False),
        (pair(), None, True),  # other GPUs and other ports written out: one machine
        ({"prefill.sh": serve("", "", P), "decode.sh": serve("", "", D)}, None, None),
        ({"prefill.sh": serve("VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.1", "", P), "decode.sh": serve("VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.2", "", D)}, None, False),
        ({"l.sh": serve("", "", P).strip() + " &\n" + serve("", "--port 2", D)}, None, True),
        ({"l.sh": serve("", "", P) + serve("", "", D)}, None, None),
        ({"l.sh": "srun " + serve("", "", P).strip() + " &\nsrun " + serve("", "", D)}, None, None),
        ({"prefill.sh": serve("", "", P), "decode.sh": serve("", "", D), "hosts.txt": "prefill a 192.0.2.1\ndecode b 192.0.2.2\n"}, None, False),
    ],
)  # fmt: skip
def test_one_machine(files: dict[str, str], hosts: dict[str, str] | None, together: bool | None) -> None:
    (found,) = read(files, hosts).pairs
    assert found.one_machine is together
    assert found.one_host is together


def test_pods_share_no_ports_but_may_share_a_node() -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: {0}}}\nspec:\n  nodeName: n1\n  containers: [{{name: c, image: i, command: [vllm, serve, m]}}]\n"
    files = {"p.yaml": pod.format("prefill"), "d.yaml": pod.format("decode")}
    prefill, decode = instances(files)
    assert one_machine(prefill, decode) is True and one_host(prefill, decode) is False


def test_two_versions_of_one_instance_are_no_collision() -> None:
    files = pair() | {"decode-new.sh": pair()["decode.sh"]}
    facts = read(files, ONE_HOST)
    assert len(facts.variants) == 1 and len(facts.pairs) == 2
    assert len(facts.one_port_space) == 1


@pytest.mark.parametrize(
    ("env", "args", "devices"),
    [
        ("CUDA_VISIBLE_DEVICES=2,3", "-tp 2", ("2", "3")),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3", "-tp 2", ("0", "1")),
        ("", "-tp 2 -dp 2", ("0", "1", "2", "3")),
        ("CUDA_VISIBLE_DEVICES=$GPU", "", None),
        ("", "-tp $TP", None),
    ],
)
def test_gpus_of_an_instance(env: str, args: str, devices: tuple[str, ...] | None) -> None:
    (one,) = instances({"prefill.sh": serve(env, args, P)})
    assert one.devices == devices


@pytest.mark.parametrize(
    ("env", "args", "ports"),
    [
        ("", "", range(5600, 5601)),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT=6000", "-dp 4", range(6000, 6004)),
        ("", "-dp 16 --data-parallel-size-local 8 --data-parallel-start-rank 8", range(5608, 5616)),
        ("", "-dp 16 --data-parallel-rank 3", range(5603, 5604)),
        ("", "-dp 16 --data-parallel-start-rank $RANK", None),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT=$PORT", "", None),
    ],
)
def test_side_channel_ports(env: str, args: str, ports: range | None) -> None:
    (one,) = instances({"prefill.sh": serve(env, args, P)})
    assert one.side_channel_ports == ports


def test_image_tags_decide_the_version_and_dynamo_tags_do_not() -> None:
    line = "docker run --name prefill {0} --model m\n"
    assert instances({"a.sh": line.format("vllm/vllm-openai:v0.20.2")})[0].version == (0, 20, 2)
    assert instances({"a.sh": line.format("vllm/vllm-openai:latest")})[0].version == (0, 33, 0)
    dynamo = "docker run --name prefill nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.1 python3 -m dynamo.vllm --model m\n"
    assert instances({"a.sh": dynamo})[0].version is None


def test_environment_files_that_nobody_reads_go_to_the_role_in_their_name() -> None:
    files = pair() | {"decode.env": "A=1\n", "common.env": "B=2\n"}
    by_role = {i.role: set(i.env) & {"A", "B"} for i in instances(files)}
    assert by_role == {"prefill": {"B"}, "decode": {"A", "B"}}


def test_more_instances_than_can_be_compared_are_refused() -> None:
    with pytest.raises(FormatError, match="more than the 128"):
        read({"prefill.sh": serve("", "", P) * 129})


def test_a_file_with_both_sides_is_a_deployment_of_its_own() -> None:
    both = serve("", "--port 1", P).strip() + " &\n" + serve("", "--port 2", D)
    facts = read({"one.sh": both, "two.sh": both})
    assert {(p.prefill.command.file, p.decode.command.file) for p in facts.pairs} == {
        ("one.sh", "one.sh"),
        ("two.sh", "two.sh"),
    }
    more = read({"one.sh": both, "decode2.sh": serve("", "--port 3", D)})
    assert len(more.pairs) == 2
