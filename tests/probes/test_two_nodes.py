"""Two kvprobes on two ends of a network: real processes, real bytes, and every way in which one of them fails."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.needs import NIXL
from tests.two_node_runs import LONG, SMALL, TOKEN, finding, kvprobe, listening

pytestmark = NIXL


def test_over_loopback_with_strangers_in_between(tmp_path: Path) -> None:
    with listening() as (holder, address):
        host, port = address.rsplit(":", 1)
        for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(200)):
            with socket.create_connection((host, int(port))) as scanner:
                scanner.sendall(garbage)
        with kvprobe("--connect", address, *SMALL, KVPROBE_TOKEN="not the token of the tests") as stranger:
            refused = stranger.report()
        assert refused["verdict"]["exit_code"] == 3
        assert finding(refused, "KVP230")["code"] == "wrong_token" and "KVPROBE_TOKEN" in finding(refused, "KVP230")["remedy"]["text"]  # fmt: skip
        record = tmp_path / "recording"
        with kvprobe("--connect", address, *SMALL, "--env", "UCX_TLS=tcp", "--record", str(record)) as puller:
            report = puller.report()
        served = holder.report()
    for told in (report, served):
        assert told["verdict"]["exit_code"] == 0 and finding(told, "KVP230")["status"] == "pass"
        assert finding(told, "KVP231")["code"] == "one_host"
    assert [t["id"] for t in report["result"]["transfers"]] == ["read-shuffled-0", "read-contiguous-0", "write-shuffled-0", "write-contiguous-0"]  # fmt: skip
    assert all(t["verified"] and len(t["seconds"]) == 3 for t in report["result"]["transfers"])
    rungs = {r["rung"]: r for r in report["result"]["ladder"]}
    assert all(rungs[n]["status"] == "measured" and rungs[n]["bytes"] == 4 * 64 * 4096 for n in (1, 2, 3, 4))
    assert rungs[0]["seconds"] is None
    by_op = {n["operation"]: n for n in report["result"]["network"]}
    assert "tcp" in by_op["READ"]["label"] and by_op["READ"]["lanes"][0]["transport"] == "tcp"
    assert report["result"]["nodes"]["prefill"]["host"]["cores"] == served["result"]["nodes"]["prefill"]["host"]["cores"]  # fmt: skip
    (session,) = served["result"]["sessions"]
    assert [s["id"] for s in session["series"]] == [t["id"] for t in report["result"]["transfers"]]
    assert {n["operation"]: n["label"] for n in session["network"]} == {n["operation"]: n["label"] for n in report["result"]["network"]}  # fmt: skip
    assert (
        served["result"]["turned_away"]["wrong_token"] == 1
        and served["result"]["turned_away"]["not_kvprobe"] >= 1
    )
    written = "".join(f.read_text() for f in record.iterdir())
    assert TOKEN not in written and socket.gethostname() not in written
    with kvprobe("--replay", str(record)) as again:
        replayed = again.report()
    assert replayed["result"]["transfers"] == report["result"]["transfers"]


def test_the_listener_lends_no_more_than_it_was_told() -> None:
    with listening("--max-memory", "1MiB") as (holder, address):
        with kvprobe("--connect", address, *SMALL) as puller:
            report = puller.report()
        served = holder.report()
    assert report["verdict"]["exit_code"] == 3 and finding(report, "KVP230")["code"] == "refused"
    assert "1 MiB are lent" in finding(report, "KVP230")["title"]
    assert served["verdict"]["exit_code"] == 3 and finding(served, "KVP230")["code"] == "refused"
    assert report["result"]["transfers"] == []


def test_one_after_another_with_keep() -> None:
    with listening("--keep") as (holder, address):
        for _ in range(2):
            with kvprobe("--connect", address, *SMALL, "--op", "read", "--order", "shuffled") as puller:
                assert puller.report()["verdict"]["exit_code"] == 0
        holder.process.send_signal(signal.SIGINT)
        served = holder.report()
    assert served["verdict"]["exit_code"] == 0 and len(served["result"]["sessions"]) == 2


def test_nobody_listens_and_nobody_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with kvprobe("--connect", address, *SMALL) as puller:
        found = finding(puller.report(), "KVP230")
    assert (
        found["code"] == "nobody_listens"
        and address in found["title"]
        and "--listen" in found["remedy"]["text"]
    )
    with kvprobe("--listen", "127.0.0.1:0", "--memory", "dram", "--wait", "1s") as holder:
        assert finding(holder.report(), "KVP230")["code"] == "nobody_came"


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with kvprobe("--listen", str(port), "--memory", "dram") as holder:
            report = holder.report()
    assert report["verdict"]["exit_code"] == 3
    found = finding(report, "KVP230")
    assert (
        found["code"] == "port_taken"
        and str(port) in found["title"]
        and "ss -ltn" in found["remedy"]["commands"][0]
    )


def test_another_service_on_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, kvprobe("--connect", f"127.0.0.1:{server.getsockname()[1]}", *SMALL) as puller:  # fmt: skip
        sock, _ = server.accept()
        sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        found = finding(puller.report(), "KVP230")
        sock.close()
    assert found["code"] == "not_kvprobe" and "another service" in found["remedy"]["text"]


def test_no_token_no_session() -> None:
    for token in ("", "short"):
        with kvprobe("--listen", "127.0.0.1:0", "--memory", "dram", KVPROBE_TOKEN=token) as holder:
            report = holder.report() if not token else None
            holder.process.wait(timeout=60)
            assert holder.process.returncode == 2
        assert report is None or report["verdict"]["exit_code"] == 2


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with (
        listening("--token-file", str(file), KVPROBE_TOKEN="") as (_, address),
        kvprobe("--connect", address, *SMALL, "--op", "read", "--order", "shuffled") as puller,
    ):
        assert puller.report()["verdict"]["exit_code"] == 0


def workers(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children() if "kvprobe.workers" in " ".join(p.cmdline())]


@pytest.mark.parametrize("whom", ["node", "worker"])
def test_the_holder_is_killed(whom: str) -> None:
    with listening() as (holder, address), kvprobe("--connect", address, *LONG) as puller:
        puller.wait_for(r"\[1/1\] NIXL")
        victim = holder.process.pid if whom == "node" else workers(holder.process.pid)[0].pid
        os.kill(victim, signal.SIGKILL)
        report = puller.report()
        if whom == "worker":
            assert "SIGKILL" in finding(holder.report(), "KVP230")["title"]
    assert report["verdict"]["exit_code"] == 3
    if whom == "node":
        assert finding(report, "KVP230")["code"] == "peer_lost"
    else:
        assert "SIGKILL" in finding(report, "KVP205")["title"]


def test_the_puller_is_killed() -> None:
    with listening() as (holder, address):
        with kvprobe("--connect", address, *LONG) as puller:
            puller.wait_for(r"\[1/1\] NIXL")
            os.kill(puller.process.pid, signal.SIGKILL)
        served = holder.report()
    assert served["verdict"]["exit_code"] == 3 and finding(served, "KVP230")["code"] in (
        "peer_lost",
        "worker_failed",
    )


def test_the_holder_is_stopped() -> None:
    with listening() as (holder, address), kvprobe("--connect", address, *LONG) as puller:
        puller.wait_for(r"\[1/1\] NIXL")
        for process in (psutil.Process(holder.process.pid), *workers(holder.process.pid)):
            process.suspend()
        report = puller.report()
    assert report["verdict"]["exit_code"] == 3
    assert (
        finding(report, "KVP230")["code"] == "peer_silent"
        and "stopped" in finding(report, "KVP230")["remedy"]["text"]
    )


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for two network namespaces")
    names = f"kvp-a{os.getpid()}", f"kvp-b{os.getpid()}"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip(
                "link",
                "add",
                "kvp0",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                "kvp0",
                "netns",
                names[1],
            )
            for number, name in enumerate(names, 1):
                ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "kvp0")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "kvp0", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.parametrize(("tls", "transport"), [("tcp", "tcp"), ("", "cma")])
def test_two_network_namespaces(namespaces: tuple[str, str], tls: str, transport: str) -> None:
    inside = [("ip", "netns", "exec", name) for name in namespaces]
    env = ("--env", f"UCX_TLS={tls}") if tls else ()
    with listening(at="10.77.0.1:18777", prefix=inside[0]) as (holder, address):
        with kvprobe("--connect", address, *SMALL, *env, prefix=inside[1]) as puller:
            report = puller.report()
        served = holder.report()
    assert report["verdict"]["exit_code"] == 0 and all(t["verified"] for t in report["result"]["transfers"])
    # One kernel: without UCX_TLS=tcp UCX goes through the other process's memory, whatever the namespaces.
    for told, network in (
        (report, report["result"]["network"]),
        (served, served["result"]["sessions"][0]["network"]),
    ):
        assert finding(told, "KVP231")["code"] == "one_host"
        lanes = {lane["transport"]: lane["device"] for n in network for lane in n["lanes"]}
        assert set(lanes) == {transport} and (transport != "tcp" or lanes["tcp"] == "kvp0")
    interfaces = [d["name"] for d in report["result"]["nodes"]["prefill"]["network"]]
    assert "kvp0" in interfaces and "eth0" not in interfaces
