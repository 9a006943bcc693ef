"""Files that grow, rotate or fall silent. Times only bound the waiting; nothing is measured."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kvprobe.formats.log_scan import Needles
from kvprobe.probes.decode_log import Follow, LogRead
from kvprobe.system import System


def read(path: Path, follow: Follow) -> LogRead:
    return LogRead(System(), str(path), Needles((b"needle",)), follow, lambda text: None)


def test_growing_file_is_followed_and_the_wait_ends(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"needle 1\n")
    one = read(log, Follow(grow=True, silence_seconds=1.5))
    seen = []
    for hit in one.hits():
        seen.append((hit.line, hit.text))
        if len(seen) == 1:
            with log.open("ab") as file:
                file.write(b"other\nneedle 2\nneedle")
    assert seen == [(1, b"needle 1"), (3, b"needle 2"), (4, b"needle")]
    assert one.note == "silent for 2 s" and one.lines == 3


def test_rotated_and_truncated_file_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"needle old and long enough\n")
    one = read(log, Follow(grow=True, silence_seconds=1.5))
    seen = []
    for hit in one.hits():
        seen.append(hit.text)
        if len(seen) == 1:
            fresh = tmp_path / "new"
            fresh.write_bytes(b"needle rotated\n")
            fresh.replace(log)
        elif len(seen) == 2:
            log.write_bytes(b"needle cut\n")
    assert seen == [b"needle old and long enough", b"needle rotated", b"needle cut"]


def test_time_limit(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"needle\n")
    one = read(log, Follow(grow=True, seconds=0.5))
    assert len(list(one.hits())) == 1
    assert one.note is not None and one.note.startswith("followed for")


def test_fifo_that_ends_early(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)

    def write() -> None:
        with fifo.open("wb") as file:
            file.write(b"needle 1\nneed")

    writer = threading.Thread(target=write)
    writer.start()
    assert [h.text for h in read(fifo, Follow(grow=False)).hits()] == [b"needle 1"]
    writer.join()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x")
    log.chmod(0)
    with pytest.raises(Exception, match="cannot be read"):
        list(read(log, Follow(grow=False)).hits())
