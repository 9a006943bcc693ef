"""The store: atomic, bounded, and never an old GO after a run that failed or was killed."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from pathlib import Path

import msgspec
import pytest

from kvprobe.errors import KvprobeError, ProbeError
from kvprobe.finding import Status, VerdictStatus
from kvprobe.render import Look, renderer
from kvprobe.report import Report
from kvprobe.store import LIMIT_BYTES, Store, state_dir
from kvprobe.system import write_atomically
from tests.reports import finding, report

GO = report(finding(Status.PASS))
NO_GO = report(finding(Status.FAIL))


def test_the_last_report_of_each_command_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for document in (GO, report(command="topo"), NO_GO):
        store.keep(document)
    assert store.last("preflight").verdict == NO_GO.verdict
    assert store.last("topo").run.command == "topo"
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_nothing_kept_names_what_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(report(command="topo"))
    with pytest.raises(ProbeError, match="Kept here: topo"):
        store.last("preflight")


def test_a_run_that_raised_leaves_no_old_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(GO)
    with pytest.raises(RuntimeError), store.running("preflight"):
        raise RuntimeError
    with pytest.raises(ProbeError, match="killed or crashed"):
        store.last("preflight")
    with store.running("preflight"):
        store.keep(NO_GO)
    assert store.last("preflight").verdict == NO_GO.verdict


def test_while_a_run_is_under_way_the_last_result_still_holds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(GO)
    with store.running("preflight"):
        # flock knows open files, not processes: this second opening sees the lock as another process would.
        assert store.last("preflight").verdict == GO.verdict
        with store.running("preflight"):
            store.keep(NO_GO)
        assert store.last("preflight").verdict == NO_GO.verdict


def test_a_huge_report_keeps_its_verdict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep(msgspec.structs.replace(NO_GO, result={"rows": ["x" * 1024] * (LIMIT_BYTES // 1024 + 1)}))
    kept = store.last("preflight")
    assert kept.verdict == NO_GO.verdict and kept.findings == NO_GO.findings and "rows" not in kept.result
    assert (tmp_path / "last" / "preflight.json").stat().st_size < LIMIT_BYTES


def test_a_damaged_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    Store(tmp_path).keep(GO)
    (tmp_path / "last" / "preflight.json").write_bytes(b"\x00\xff{")
    with pytest.raises(KvprobeError, match=r"preflight\.json"):
        Store(tmp_path).last("preflight")


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert state_dir("/asked") == Path("/asked")
    monkeypatch.delenv("KVPROBE_STATE_DIR")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/kvprobe:/var/lib/other")
    assert state_dir() == Path("/var/lib/kvprobe")
    monkeypatch.delenv("STATE_DIRECTORY")
    assert state_dir() == Path("/x/kvprobe")


def _run_in_child(store: Store, textfile: Path, document: Report) -> int:
    """Begin a run, keep its report, write its textfile, over and over, in a forked child; returns its pid once it has begun."""
    begun, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        os.read(begun, 1)
        os.close(begun)
        return child
    try:
        os.write(tell, b".")
        text = renderer("prom")(document, Look()).encode()
        while True:
            with store.running("preflight"):
                store.keep(document)
            write_atomically(textfile, text)
    finally:
        os._exit(1)


def test_kill_9_at_100_moments_leaves_no_half_file_and_no_old_go(tmp_path: Path) -> None:
    store, textfile = Store(tmp_path), tmp_path / "kvprobe.prom"
    chance = random.Random(20261129)
    big = msgspec.structs.replace(NO_GO, result={"rows": [list(range(500))] * 60})
    old, new = (renderer("prom")(d, Look()).encode() for d in (GO, big))
    store.keep(GO)
    write_atomically(textfile, old)
    killed_in_between = 0
    for _ in range(100):
        child = _run_in_child(store, textfile, big)
        time.sleep(chance.random() * 0.012)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert textfile.read_bytes() in (old, new)
        try:
            found = store.last("preflight")
        except ProbeError as error:
            assert "killed" in error.reason
            killed_in_between += 1
            continue
        # Either the run had not begun yet, or its own report is there whole.
        assert found.verdict in (GO.verdict, big.verdict)
        if found.verdict == GO.verdict:
            assert not (tmp_path / "preflight.running").exists()
    assert killed_in_between > 0
    # What killed writes left beside the files goes away once it is old.
    for stray in tmp_path.rglob("*.tmp"):
        os.utime(stray, (0, 0))
    store.keep(NO_GO)
    write_atomically(textfile, new)
    assert list(tmp_path.rglob("*.tmp")) == []
    assert store.last("preflight").verdict.status is VerdictStatus.NO_GO


def test_the_marker_is_locked_not_timed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        store.running("preflight"),
        (tmp_path / "preflight.running").open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (tmp_path / "preflight.running").exists()


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"report")
        assert os.read(reader, 100) == b"report" and pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.prom", tmp_path / "link.prom"
    link.symlink_to(target)
    write_atomically(link, b"x")
    assert link.is_symlink() and target.read_bytes() == b"x" and target.stat().st_mode & 0o777 == 0o644
