"""The signature files: every entry has a sample that it matches, none matches a healthy log."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvprobe.errors import UsageError
from kvprobe.formats.log_lines import plain
from kvprobe.formats.log_signatures import Signature, parse_signatures

ROOT = Path(__file__).parent.parent.parent
TEXTS = {p.name: p.read_text() for p in sorted((ROOT / "checks" / "signatures").glob("*.toml"))}
ALL = parse_signatures(TEXTS)
HEALTHY = [
    ROOT / "samples/logs" / name
    for name in ("h200-nvlink-decode.log.gz", "h200-nvlink-prefill.log.gz", "h200-nvlink-blhnc-vllm-0.30-decode.log.gz", "h200-host-buffer-decode.log.gz")
]  # fmt: skip
LABELS = """
block_size_mismatch compat_hash_mismatch cuda_ipc_cross_node_failed cuda_ipc_unavailable_tcp_fallback
expandable_segments_with_connector failed_request_returned_200 gpu_oom_transfer_buffer gpudirect_missing
gpudirect_registration_failed handshake_engine_id_mismatch handshake_timeout hma_auto_disabled hma_not_supported
invalid_kv_transfer_params kv_layout_mismatch kv_lease_expired kv_load_failed kv_load_recovered
late_read_possible_corruption memlock_limit mooncake_bootstrap_unreachable mooncake_p_side_timeout nixl_backend_handshake
nixl_cuda_mismatch nixl_missing nixl_not_allowed nixl_remote_disconnect nixl_telemetry_disabled nixl_too_old
nixl_transfer_failed no_kv_transfer_seen rdma_device_error rma_over_tcp side_channel_host_loopback
side_channel_host_not_local side_channel_port_in_use stale_peer_after_restart transfers_failed_counter turn2_read_expired
ucx_device_not_available ucx_transport_not_available ucx_unused_variable vllm_version_mismatch
""".split()  # noqa: SIM905  a list of this length is for reading
TOML = """
topic = "t"
[[signature]]
code = "c"
title = "t"
severity = "fail"
cause = "c"
remedy = "r"
source = "s"
"""


def test_every_label_has_a_signature() -> None:
    assert set(LABELS) - {s.code for s in ALL} == set()


@pytest.mark.parametrize("signature", [s for s in ALL if not s.derived], ids=lambda s: s.code)
def test_every_entry_has_a_sample_that_it_matches(signature: Signature) -> None:
    assert signature.samples
    for sample in signature.samples:
        *before, line = sample.split("\n")
        assert any(literal in line for literal in signature.literals), (
            "the literals bring the line to the pattern"
        )
        assert signature.matches(line, "\n".join(before), "")


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.name)
def test_no_entry_matches_a_healthy_log(path: Path) -> None:
    lines = plain(gzip.decompress(path.read_bytes()).decode()).splitlines()
    for at, line in enumerate(lines):
        for signature in ALL:
            if any(literal in line for literal in signature.literals) and signature.severity != "info":
                around = "\n".join(lines[max(0, at - 40) : at]), "\n".join(lines[at + 1 : at + 40])
                assert not signature.matches(line, *around), f"{signature.code}: {line}"


def test_consequences_name_what_exists() -> None:
    codes, topics = {s.code for s in ALL}, {s.topic for s in ALL}
    for signature in ALL:
        for cause in signature.consequence_of:
            assert cause in codes or cause.removeprefix("topic:") in topics, f"{signature.code}: {cause}"


def test_texts_are_sentences_with_a_source() -> None:
    for s in ALL:
        assert s.source and s.cause.endswith((".", ")")) and s.remedy.endswith((".", ")")), s.code
        assert not s.title.endswith("."), s.code


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("", "literals"),
        ('literals = ["abc"]\npattern = "abc"', "six characters"),
        ('literals = ["abcdefg"]\npattern = "("', "signatures"),
        ('literals = ["abcdefg"]\npattern = "x"\nsverity = "fail"', "sverity"),
        ('derived = true\n[[signature]]\ncode = "c"\ntitle="t"\nseverity="bad"\ncause="c"\nremedy="r"\nsource="s"\nderived=true', "severity"),
        ("derived = 1 = 2", "own.toml"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_fault(extra: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_signatures({"own.toml": TOML + extra})


def test_a_code_cannot_exist_twice() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_signatures({"a.toml": TOML + "derived = true", "b.toml": TOML + "derived = true"})
