from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import FormatError
from kvprobe.formats.nvidia_smi import SmiText, capability_in_name, parse

SAMPLES = Path(__file__).parent.parent.parent / "samples" / "topo"
READ = " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tNS\tX\t\n"
LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  U    = Unknown\n"
CELLS = {"GPU0>GPU1": "OK", "GPU1>GPU0": "NS"}


def one(text: str, capability: str | None = "r") -> SmiText:
    found = parse(text, "paste", capability)
    assert len(found.tables) == 1, found
    return found


def sample(name: str) -> SmiText:
    return parse((SAMPLES / name).read_text(), name, capability_in_name(name))


def test_real_outputs_of_a_driver() -> None:
    for letter in "rwna":
        table = sample(f"topo-p2p-{letter}.txt").tables[0]
        assert (table.capability, table.cells) == (letter, {"GPU0>GPU1": "OK", "GPU1>GPU0": "OK"})
    assert sample("topo-p2p-p.txt").tables[0].cells == {"GPU0>GPU1": "NS", "GPU1>GPU0": "NS"}
    matrix = sample("topo-m.txt").tables[0]
    assert (matrix.kind, matrix.cells["GPU0>GPU1"], matrix.cpu_affinity["GPU1"], matrix.numa["GPU1"]) == ("m", "NV18", "0-31", "0")  # fmt: skip
    assert sample("nvlink-s.txt").nvlink_gigabytes[1] == (26.562,) * 18
    assert [g.name for g in sample("nvidia-smi.txt").gpus] == ["NVIDIA H200"] * 2
    assert sample("nvidia-smi.txt").driver == "580.159.04"
    assert sample("topo-p2p-missing-value.txt").errors[0].cause == "the capability letter is missing"
    assert sample("topo-p2p-invalid-value.txt").errors[0].cause == "the capability letter is wrong"


@pytest.mark.parametrize(
    ("name", "letter"),
    [
        ("p2p_r.txt", "r"),
        ("topo-p2p-w.txt", "w"),
        ("p2p_rw.txt", "rw"),
        ("topo_p2p_read.log", "r"),
        ("P2P-NVLINK.txt", "n"),
        ("session.txt", None),
        ("p2p.txt", None),
        ("p2p_results.txt", None),
        ("topo_m.txt", None),
    ],
)
def test_letter_in_a_file_name(name: str, letter: str | None) -> None:
    assert capability_in_name(name) == letter


@pytest.mark.parametrize(
    "text",
    [
        READ,
        READ.replace("\n", "\r\n"),
        READ.replace("\t", "    "),
        READ.replace("\x1b", ""),  # a copy that lost the escape character
        READ.replace("\x1b", "^["),
        READ.replace("\t", "^I").replace("\n", "$\n"),  # cat -A
        "".join(f"> {line}\n" for line in READ.splitlines()),
        "".join(f"2026-10-29T09:12:41.123Z stdout F {line}\n" for line in READ.splitlines()),
        "".join(f"[1,0]<stdout>: {line}\n" for line in READ.splitlines()),
        "|      | GPU0 | GPU1 |\n|------|------|------|\n| GPU0 | X | OK |\n| **GPU1** | NS | X |\n",
        READ.replace("GPU0\tX", "GPU0\t X ").replace("\t\n", "\n"),
        "\ufeff" + READ,
        READ.rstrip("\t\n"),
        READ.replace("\n", "\n\n"),
    ],
)
def test_the_same_table_however_it_was_pasted(text: str) -> None:
    assert one(text).tables[0].cells == CELLS


def test_a_paste_cut_at_the_right_margin() -> None:
    text = "      GPU0  GPU1  GP\nGPU0   X    OK   N\nGPU1  OK     X   N\nGPU2  NS    NS  \n"
    table = one(text).tables[0]
    assert table.gpus == ("GPU0", "GPU1", "GPU2")
    assert table.cells == {"GPU0>GPU1": "OK", "GPU1>GPU0": "OK", "GPU2>GPU0": "NS", "GPU2>GPU1": "NS"}
    assert "GPU0>GPU2" in table.missing


def test_powershell_writes_utf16() -> None:
    text = ("\ufeff" + READ).encode("utf-16-le").decode("utf-8", "replace")
    assert one(text).tables[0].cells == CELLS


def test_a_legend_is_no_row() -> None:
    assert one(READ + LEGEND).tables[0].cells == CELLS
    assert one(READ + LEGEND).legend["CNS"] == "Chipset not supported"


def letters(text: str) -> list[str | None]:
    return [t.capability if t.kind == "p2p" else "m" for t in parse(text, "paste").tables]


def test_the_command_says_which_letter() -> None:
    assert letters("$ nvidia-smi topo -p2p w\n" + READ) == ["w"]
    assert letters("$ for c in r w n a p; do nvidia-smi topo -p2p $c; done\n" + READ * 5) == list("rwnap")
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n"
    assert letters("root@node-b:~# nvidia-smi topo -p2p r; nvidia-smi topo -m\n" + READ + matrix) == [
        "r",
        "m",
    ]
    assert letters("== r ==\n" + READ + LEGEND + "\n-p2p w:\n" + READ) == ["r", "w"]
    assert letters(READ) == [None]


def test_an_error_uses_up_its_command() -> None:
    text = '$ nvidia-smi topo -p2p -r; nvidia-smi topo -p2p p\nOption "-p2p" is missing its value.\n' + READ
    assert letters(text) == ["p"]
    assert len(parse(text, "paste").errors) == 1


def test_a_command_without_its_letter_gets_none_from_the_file_name() -> None:
    assert one("$ nvidia-smi topo -p2p $LETTER\n" + READ, "r").tables[0].capability is None


@pytest.mark.parametrize(
    ("text", "cells", "missing"),
    [
        ("\tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tOK\t\n GPU1\tOK\tX\tN", {"GPU0>GPU1", "GPU0>GPU2", "GPU1>GPU0"}, "GPU1>GPU2"),
        ("\tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tOK\t\n GPU1", {"GPU0>GPU1", "GPU0>GPU2"}, "GPU2>GPU0"),
        (" GPU0 GPU1 ... GPU7\nGPU0 X OK ... OK\nGPU1 OK X ... NS\n", {"GPU0>GPU1", "GPU0>GPU7", "GPU1>GPU0", "GPU1>GPU7"}, "GPU7>GPU0"),
        ("\tGPU0\tGPU1\t\n GPU0\tX\tO?\t\n GPU1\tOK\tX\t\n", {"GPU1>GPU0"}, "GPU0>GPU1"),
    ],
)  # fmt: skip
def test_what_is_cut_off_is_missing_not_guessed(text: str, cells: set[str], missing: str) -> None:
    table = one(text).tables[0]
    assert set(table.cells) == cells
    assert missing in table.missing


def test_a_row_without_its_x_is_shifted() -> None:
    found = one(" GPU0 GPU1\nGPU0 OK\nGPU1 OK X\n")
    assert found.tables[0].cells == {"GPU1>GPU0": "OK"}
    assert "columns are shifted" in found.warnings[0]


def test_a_narrow_terminal_breaks_lines() -> None:
    text = "   GPU0 GPU1\nNIC0 CPU Affinity\nGPU0  X  NV4\nPIX 0-3\nGPU1 NV4 X\nSYS 0-3\nNIC0 PIX SYS\n X\n"
    cells = one(text).tables[0].cells
    assert (cells["GPU0>NIC0"], cells["GPU1>NIC0"], cells["NIC0>GPU1"]) == ("PIX", "SYS", "SYS")


def test_empty_affinity_cells_keep_their_columns() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\t\t1\t\tN/A\nGPU1\tNV18\t X \t0-3\t0\t\tN/A\n"
    table = one(text).tables[0]
    assert (table.cpu_affinity, table.numa) == ({"GPU0": None, "GPU1": "0-3"}, {"GPU0": "1", "GPU1": "0"})


def test_old_drivers_name_nics_by_device() -> None:
    text = "\tGPU0\tGPU1\tmlx5_0\tmlx5_bond_1\tCPU Affinity\nGPU0\t X \tSOC\tPIX\tSOC\t0-7\nGPU1\tSOC\t X \tSOC\tPIX\t8-15\n"
    assert one(text).tables[0].cells["GPU1>mlx5_bond_1"] == "PIX"


def test_q_of_one_gpu_does_not_hide_the_others() -> None:
    one_of_two = "Attached GPUs                             : 2\nGPU 00000000:00:07.0\n    Product Name    : NVIDIA H200\n    MIG Mode\n        Current     : Enabled\n"
    assert [g.index for g in parse(one_of_two, "paste").gpus] == [0, 1]
    (gpu,) = parse(one_of_two.replace(": 2", ": 1"), "paste").gpus
    assert (gpu.name, gpu.mig) == ("NVIDIA H200", True)


def test_mig_devices_of_a_list() -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)\n  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\n"
    )
    (gpu,) = parse(text, "paste").gpus
    assert (gpu.name, gpu.uuid, gpu.mig, gpu.mig_devices) == ("NVIDIA A100-SXM4-40GB", "GPU-5d5ba0d6", True, ("3g.20gb",))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("======= ROCm System Management Interface =======\n==== Weight between two GPUs ====\n       GPU0  GPU1\nGPU0   0     15\nGPU1   15    0\n", "rocm-smi"),
        ("ACCESS TABLE:\n             0000:0c:00.0 0000:22:00.0\n0000:0c:00.0 ENABLED ENABLED\n", "amd-smi"),
        ("           GPU 0/0|GPU 1/0|CPU Affinity\nGPU 0/0|S      |XL16   |0-23\n", "xpu-smi"),
        ("\t   NPU0       NPU1       CPU Affinity\nNPU0       X          HCCS       144-167\n", "npu-smi"),
        ("| HL-SMI Version:    hl-1.16.0-fw-50.1.2.0 |\n", "hl-smi"),
        ("$ mthreads-gmi topo -m\n     GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n", "mthreads-gmi"),
        ("[root@node ~]# foosmi topo -m\n     GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n", "another vendor's smi"),
    ],
)  # fmt: skip
def test_other_vendors(text: str, tool: str) -> None:
    found = parse(text, "paste")
    assert found.foreign is not None and found.foreign.tool == tool
    assert found.tables == () and found.gpus == ()


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.glob("*.txt")))
def test_nvidia_is_not_foreign(name: str) -> None:
    assert sample(name).foreign is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n", "different versions"),
        ("bash: nvidia-smi: command not found\n", "not installed"),
        ("'nvidia-smi' is not recognized as an internal or external command,\n", "not installed"),
        ("Failed to initialize NVML: GPU access blocked by the operating system\n", "operating system blocks"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n", "was lost"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", "libnvidia-ml.so"),
        ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n', "container"),
        ("Error from server (NotFound): pods \"decode-0\" not found\n", "kubectl"),
    ],
)  # fmt: skip
def test_errors_are_recognised(text: str, cause: str) -> None:
    assert cause in parse(text, "paste").errors[0].cause


def test_binary_is_refused() -> None:
    with pytest.raises(FormatError, match="paste is a binary file"):
        parse(bytes(range(256)).decode("utf-8", "replace") * 40, "paste")


@given(st.text(alphabet="GPU0123 \t\nXOKNSCV.|-=[]mr\x1b$", max_size=400))
def test_garbage_never_crashes_and_never_invents_a_cell(text: str) -> None:
    for table in parse(text, "paste", "r").tables:
        for cell, word in table.cells.items():
            assert word in text and cell.split(">")[0] in text
