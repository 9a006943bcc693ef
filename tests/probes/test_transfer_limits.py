"""Limits of the machine that break a transfer: full shared memory, little locked memory. No hang, and a reason."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from kvprobe.workers.base import WorkerFailure
from kvprobe.workers.limits import locked_memory_hint
from kvprobe.workers.nixl_agent import Side
from tests.needs import NIXL
from tests.two_node_runs import SMALL, finding, kvprobe

FULL = 'mount -t tmpfs -o size=64k none /dev/shm && { head -c 60000 /dev/zero > /dev/shm/full; exec "$@"; }'


@pytest.fixture
def full_shm() -> tuple[str, ...]:
    """A prefix that runs a program where /dev/shm has no room left."""
    prefix = ("unshare", "-m", "sh", "-c", FULL, "sh")
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare (util-linux)")
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.strip()}")
    return prefix


class TestSharedMemory:
    pytestmark = NIXL

    def test_full_and_nothing_else_to_go_by(self, full_shm: tuple[str, ...]) -> None:
        with kvprobe(*SMALL, "--env", "UCX_TLS=posix", prefix=full_shm) as running:
            report = running.report()
        assert report["verdict"]["exit_code"] == 3
        found = finding(report, "KVP205")
        assert "UCX backend" in found["title"] and "/dev/shm has only" in found["remedy"]["text"]
        assert finding(report, "KVP132")["status"] == "warn" and report["result"]["transfers"] == []

    def test_full_but_ucx_has_another_way(self, full_shm: tuple[str, ...]) -> None:
        with kvprobe(*SMALL, prefix=full_shm) as running:
            report = running.report()
        # cma reads the other process's memory and needs no /dev/shm; vLLM itself does, hence the warning.
        assert report["verdict"]["exit_code"] == 0 and all(
            t["verified"] for t in report["result"]["transfers"]
        )
        assert "shm-size" in finding(report, "KVP132")["remedy"]["text"]


class TestLockedMemory:
    pytestmark = NIXL

    def test_without_rdma_it_takes_nothing_away(self) -> None:
        if shutil.which("prlimit") is None:
            pytest.skip("needs prlimit (util-linux)")
        with kvprobe(*SMALL, prefix=("prlimit", "--memlock=65536:65536")) as running:
            report = running.report()
        assert report["verdict"]["exit_code"] == 0 and all(
            t["verified"] for t in report["result"]["transfers"]
        )
        limits = next(e for e in report["evidence"] if e["id"] == "host")["facts"]
        assert limits["memlock_bytes"] == 65536 and not limits["memlock_unlimited"]


class TestPlugins:
    pytestmark = NIXL

    def test_none_at_all(self) -> None:
        with kvprobe(*SMALL, NIXL_PLUGIN_DIR="/nonexistent") as running:
            report = running.report()
        found = finding(report, "KVP205")
        assert report["verdict"]["exit_code"] == 3 and "plugin" in found["title"].lower()
        assert found["remedy"]["text"] == "NIXL_PLUGIN_DIR=/nonexistent holds no UCX plugin: unset it."


@pytest.fixture
def little_locked() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


class RefusingAgent:
    """As NIXL answers when ibv_reg_mr may not lock the pages."""

    def register_memory(self, regions: list[object], segment: str) -> None:
        raise RuntimeError("NIXL_ERR_BACKEND")


def test_a_refused_registration_names_the_limit(little_locked: None) -> None:
    side = Side.__new__(Side)
    side.agent = RefusingAgent()
    with pytest.raises(WorkerFailure) as caught:
        side._register([(0, 1 << 20, 0, "")] * 3, "DRAM")
    assert "3 regions of 3 MiB" in caught.value.reason and "may lock only 64 KiB" in caught.value.remedy
    assert locked_memory_hint(65536) is None
