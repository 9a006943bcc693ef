"""What the rules of ``kvprobe lint`` share: one way to make a finding, and what each label means for the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvprobe.finding import Finding, Remedy, Status
from kvprobe.formats.launch_model import is_dynamic
from kvprobe.formats.serve_command_surface import Version, show_version

SEVERITY = {
    "error": Status.FAIL,
    "warn": Status.WARN,
    "info": Status.PASS,
    "ok": Status.PASS,
    "skip": Status.SKIP,
}
NIXL_GUIDE = "https://docs.vllm.ai/en/latest/features/nixl_connector_usage.html"

OUTCOMES = (
    "ok", "ok_with_notes", "risky", "feature_inactive", "measures_cache", "silently_slow", "broken_or_slow",
    "silently_wrong", "no_transfer", "will_fail_at_handshake", "will_crash", "will_not_start",
)  # fmt: skip
"""What will happen, best first."""

OUTCOME_OF = {
    "bidirectional_one_side": "silently_wrong",
    "bidirectional_with_dropping_template": "silently_wrong",
    "block_size_mismatch": "will_fail_at_handshake",
    "boolean_flag_with_value": "will_not_start",
    "bootstrap_port_collision": "will_crash",
    "compat_hash_factor_differs": "will_fail_at_handshake",
    "connector_mismatch": "no_transfer",
    "connector_refuses_option": "will_not_start",
    "connector_setting_missing": "will_not_start",
    "connector_unknown": "will_not_start",
    "containers_no_cuda_ipc": "silently_slow",
    "engine_id_shared": "silently_wrong",
    "entrypoint_duplicated": "will_not_start",
    "env_typo": "risky",
    "env_unknown": "feature_inactive",
    "expandable_segments_with_connector": "will_not_start",
    "failure_policy_invalid": "will_not_start",
    "fake_kv_connector": "silently_wrong",
    "http_port_collision": "will_crash",
    "json_quotes_lost": "will_not_start",
    "kv_config_invalid": "will_not_start",
    "kv_config_unknown_field": "will_not_start",
    "kv_layout_mismatch": "will_fail_at_handshake",
    "kv_role_invalid": "will_not_start",
    "kv_role_mismatch": "risky",
    "kv_role_missing": "will_not_start",
    "kv_transfer_config_missing": "no_transfer",
    "lease_too_short": "risky",
    "multi_connector_invalid": "will_not_start",
    "nixl_telemetry_disabled": "will_crash",
    "parallel_shape_unsupported": "will_fail_at_handshake",
    "prompt_rendering_differs": "silently_wrong",
    "proxy_target_mismatch": "no_transfer",
    "proxy_without_kv_params": "no_transfer",
    "same_gpu_overcommit": "will_crash",
    "scale_out_disabled": "no_transfer",
    "seed_reuse_with_prefix_cache": "measures_cache",
    "side_channel_host_missing": "will_fail_at_handshake",
    "side_channel_host_not_local": "will_fail_at_handshake",
    "side_channel_host_unroutable": "will_fail_at_handshake",
    "side_channel_port_collision": "will_fail_at_handshake",
    "sleep_mode_disables_cuda_ipc": "silently_slow",
    "stray_argument": "will_not_start",
    "tp_not_divisible": "will_fail_at_handshake",
    "tp_prefill_larger_unsupported": "will_fail_at_handshake",
    "typographic_quote": "will_not_start",
    "ucx_net_devices_no_port": "broken_or_slow",
    "ucx_tls_differs": "broken_or_slow",
    "ucx_tls_excludes_cuda_ipc": "silently_slow",
    "ucx_tls_excludes_rdma": "silently_slow",
    "ucx_tls_no_cuda": "will_crash",
    "unclosed_quote": "will_not_start",
    "unknown_flag": "will_not_start",
    "vllm_too_old": "will_not_start",
}
"""What a label leads to when it is an error; ``risky`` where a label is not listed."""
_WARN_WORST = OUTCOMES.index("broken_or_slow")


def outcome(findings: Iterable[Finding]) -> str:
    """The verdict of ``lint``'s result: the worst of what the findings lead to."""
    worst = 0
    for finding in findings:
        if finding.code is None:
            continue
        if finding.status in (Status.FAIL, Status.WARN):
            ignored = finding.id == "KVP508" or (
                finding.code == "vllm_too_old" and finding.status is Status.WARN
            )
            name = "feature_inactive" if ignored else OUTCOME_OF.get(finding.code, "risky")
            at = OUTCOMES.index(name)
            if finding.status is Status.WARN and at > _WARN_WORST:
                at = OUTCOMES.index("risky")
            worst = max(worst, at)
        else:
            worst = max(worst, OUTCOMES.index("ok_with_notes"))
    return OUTCOMES[worst]


def say(
    rule: str,
    name: str,
    severity: str,
    title: str,
    *,
    code: str | None = None,
    where: str | None = None,
    fix: str = "",
    commands: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
) -> Finding:
    """A finding of lint. ``severity`` is error, warn, info (a note), ok or skip.

    The first line of ``title`` is the title; what follows are notes, what the user will see or lose.
    """
    title, *more = title.split("\n")
    notes = (*(f"{_capital(line)}." for line in more), *notes)
    return Finding(
        id=rule,
        name=name,
        status=SEVERITY[severity],
        title=title,
        remedy=Remedy(text=fix, commands=commands) if fix and severity != "ok" else None,
        where=where,
        notes=notes,
        links=links,
        code=code,
        evidence=("launch",),
    )


def _capital(text: str) -> str:
    """A sentence's first letter, except in names such as vLLM and cuda_ipc."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same thing said of several instances becomes one finding that names all places."""
    by_text: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.id, finding.code, finding.status, finding.title)
        by_text.setdefault(key, []).append(finding)
    out = []
    for group in by_text.values():
        places = list(dict.fromkeys(f.where for f in group if f.where))
        shown = ", ".join(places[:6]) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        notes = tuple(dict.fromkeys(n for f in group for n in f.notes))
        out.append(msgspec.structs.replace(group[0], where=shown or None, notes=notes))
    return out


def before(version: Version | None, limit: Version) -> bool:
    """True if the version is known and older; an unknown version is taken for a current one."""
    return version is not None and version < limit


def named(version: Version | None) -> str:
    """``vLLM 0.33.0`` or ``this vLLM``."""
    return f"vLLM {show_version(version)}" if version else "this vLLM"


def known(*values: str | None) -> bool:
    """Whether all values are set and known before the run."""
    return all(v is not None and not is_dynamic(v) for v in values)
