from __future__ import annotations

import pytest

from kvprobe.errors import UsageError
from kvprobe.formats.nvidia_smi import parse
from kvprobe.models.p2p import conclude, gpu_name
from kvprobe.models.topology import Topology, from_texts

R = "\tGPU0\tGPU1\t\n GPU0\tX\t{ab}\t\n GPU1\t{ba}\tX\t\n"


def topology(*files: tuple[str, str, str | None]) -> Topology:
    return from_texts([parse(text, name, letter) for name, text, letter in files])


def table(ab: str, ba: str) -> str:
    return R.format(ab=ab, ba=ba)


def test_pull_reads_from_decode_push_writes_from_prefill() -> None:
    one_way = topology(("r", table("OK", "CNS"), "r"), ("w", table("OK", "CNS"), "w"))
    pull = conclude(one_way, "GPU0", "GPU1", "pull")
    assert (pull.verdict, pull.cell, pull.status, pull.reverse_status) == (
        "p2p_unavailable",
        "GPU1>GPU0",
        "CNS",
        "OK",
    )
    assert conclude(one_way, "GPU1", "GPU0", "pull").verdict == "p2p_ok"
    push = conclude(one_way, "GPU0", "GPU1", "push")
    assert (push.verdict, push.cell, push.letter) == ("p2p_ok", "GPU0>GPU1", "w")


@pytest.mark.parametrize("status", ["CNS", "GNS", "TNS", "NS", "DR"])
def test_each_refusal_has_its_own_advice(status: str) -> None:
    told = conclude(topology(("r", table(status, status), "r")), "GPU0", "GPU1")
    assert told.verdict == "p2p_unavailable"
    assert status in (told.advice or "") and told.meaning in told.reason


def test_the_other_letter_does_not_answer() -> None:
    only_write = topology(("w", table("OK", "OK"), "w"))
    told = conclude(only_write, "GPU0", "GPU1", "pull")
    assert (told.verdict, told.commands) == ("unknown", ("nvidia-smi topo -p2p r",))
    assert conclude(only_write, "GPU0", "GPU1", "push").verdict == "p2p_ok"
    both = topology(("rw", table("OK", "OK"), "rw"))
    assert {conclude(both, "GPU0", "GPU1", c).verdict for c in ("pull", "push")} == {"p2p_ok"}


def test_a_table_without_a_letter_is_unknown() -> None:
    told = conclude(topology(("t", table("OK", "OK"), None)), "GPU0", "GPU1")
    assert told.verdict == "unknown" and "which capability" in told.reason


def test_u_is_unknown() -> None:
    assert conclude(topology(("r", table("U", "U"), "r")), "GPU0", "GPU1").verdict == "unknown"


def test_a_truncated_table_is_unknown_and_says_so() -> None:
    told = conclude(topology(("r", "\tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tN", "r")), "GPU0", "GPU1")
    assert told.verdict == "unknown" and "truncated" in told.reason


@pytest.mark.parametrize("text", ["\tGPU0\tGPU1\tGP", "      GPU0  GPU1  GP\nGPU0   X    OK   N\n"])
def test_a_header_that_was_cut_hides_no_gpu(text: str) -> None:
    told = conclude(topology(("r", text, "r")), "GPU0", "GPU5")
    assert told.verdict == "unknown" and "truncated" in told.reason


def test_files_that_contradict_are_unknown_a_later_table_of_a_session_counts() -> None:
    two = topology(("a", table("OK", "OK"), "r"), ("b", table("NS", "NS"), "r"))
    told = conclude(two, "GPU0", "GPU1")
    assert told.verdict == "unknown" and "contradict" in told.reason
    session = (
        "$ nvidia-smi topo -p2p r\n" + table("CNS", "CNS") + "$ nvidia-smi topo -p2p r\n" + table("OK", "OK")
    )
    again = topology(("s", session, None))
    assert conclude(again, "GPU0", "GPU1").verdict == "p2p_ok"
    assert "the later counts" in again.warnings[0]
    nodes = (
        "a@node-a:~$ nvidia-smi topo -p2p r\n"
        + table("OK", "OK")
        + "a@node-b:~$ nvidia-smi topo -p2p r\n"
        + table("NS", "NS")
    )
    assert conclude(topology(("s", nodes, None)), "GPU0", "GPU1").verdict == "unknown"


def test_gpus_that_are_not_there() -> None:
    two = topology(("r", table("OK", "OK"), "r"))
    assert conclude(two, "GPU0", "GPU7").verdict == "not_applicable"
    assert "GPU7 is not here; there are GPU0, GPU1" in conclude(two, "GPU0", "GPU7").reason
    assert conclude(two, "GPU1", "GPU1").verdict == "not_applicable"
    single = topology(
        ("L", "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.20gb Device 0: (UUID: MIG-1)\n", None)
    )
    assert "only one GPU" in conclude(single, "GPU0", "GPU1").reason


def test_mig_overrules_an_ok_for_whole_gpus() -> None:
    listed = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.20gb Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA A100 (UUID: GPU-2)\n"
    told = conclude(topology(("r", table("OK", "OK"), "r"), ("L", listed, None)), "GPU0", "GPU1")
    assert told.verdict == "unknown" and "MIG" in told.reason


def test_an_error_beside_a_matrix_of_distances() -> None:
    error = ("p2p", "Invalid p2p capability index specified at the command-line\n", None)
    matrix = ("m", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0\nGPU1\tSYS\t X \t0\n", None)
    assert conclude(topology(error, matrix), "GPU0", "GPU1").verdict == "tool_error"
    assert conclude(topology(matrix), "GPU0", "GPU1").verdict == "unknown"


def test_nothing_is_unknown() -> None:
    assert conclude(topology(("t", "hello\n", None)), "GPU0", "GPU1").verdict == "unknown"
    assert conclude(topology(("t", "", None)), "GPU0", "GPU1").verdict == "unknown"


def test_links_up_but_permission_withheld() -> None:
    matrix = ("m", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0\nGPU1\tNV18\t X \t0\n", None)
    told = conclude(topology(("r", table("NS", "NS"), "r"), matrix), "GPU0", "GPU1")
    assert told.verdict == "p2p_unavailable" and "nvidia-fabricmanager" in (told.advice or "")


def test_a_mig_instance_counts_as_its_gpu() -> None:
    listed = topology(
        (
            "L",
            "GPU 0: A (UUID: GPU-11)\n  MIG 3g.20gb Device 0: (UUID: MIG-aa)\nGPU 1: A (UUID: GPU-22)\n",
            None,
        )
    )
    assert [gpu_name(n, listed) for n in ("GPU0 MIG 3g.20gb", "MIG-aa", "GPU0:MIG1")] == ["GPU0"] * 3


def test_names() -> None:
    listed = topology(("L", "GPU 0: A (UUID: GPU-11aa)\nGPU 1: A (UUID: GPU-22bb)\n", None))
    assert [gpu_name(n, listed) for n in ("GPU1", "1", "gpu 1", "GPU-22b", "gpu:1")] == ["GPU1"] * 5
    for wrong in ("banana", "", "GPU-", "1e9", "-1"):
        with pytest.raises(UsageError, match="names no GPU"):
            gpu_name(wrong, listed)
