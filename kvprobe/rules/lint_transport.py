"""KVP530-534: variables that decide which way the KV bytes take, and options that a connector refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.formats.kv_transfer_config_connectors import NIXL
from kvprobe.models.pd_instance import Instance, LintFacts, Pair
from kvprobe.models.pd_pairs import own_network
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import NIXL_GUIDE, before, known, merged, named, say

_CUDA = {"cuda", "cuda_copy", "cuda_ipc", "gdr_copy"}
_RDMA = re.compile(r"^(?:rc|dc|ud|ib|srd|gga|rdmacm)(?:_|$)|^(?:rc|dc|ud)x?$")
_REFUSED = {"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MoRIIOConnector", "MooncakeConnector"}
_NCCL = (
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
    "NCCL_NET",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_CROSS_NIC",
)
_BARE_DEVICE = re.compile(r"^(?:mlx\d+|bnxt_re|irdma|hns|ibp|roce|rocep|efa|rdmap)[\w-]*$", re.IGNORECASE)


def _list(text: str) -> tuple[bool, list[str]]:
    """(deny list?, names) of a UCX_TLS value."""
    items = [t.strip().lower() for t in text.split(",") if t.strip()]
    deny = bool(items) and items[0].startswith("^")
    names = [re.sub(r"^[\\^@]+|:aux$", "", t) for t in items]
    return deny, names


def _allows(text: str, names: set[str]) -> bool:
    deny, items = _list(text)
    if deny:
        return not names & set(items) and not (names <= {"cuda_ipc", "cuda"} and "cuda" in items)
    return bool({"all", *names} & set(items))


def ucx_tls(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP530: UCX_TLS, if set, leaves in what this deployment needs: CUDA, cuda_ipc on one host, RDMA between hosts."""
    found: list[Finding] = []
    for instance in facts.instances:
        text = instance.setting("UCX_TLS")
        if instance.uses_ucx and text and known(text) and "rocm" not in text and not _with_cuda(text):
            found.append(
                say(
                    "KVP530", "ucx-tls", "error",
                    f"UCX_TLS={text} has no CUDA transport\nNIXL refuses it on NVIDIA GPUs (Invalid UCX_TLS), older NIXL "
                    "takes GPU memory for host memory and crashes",
                    code="ucx_tls_no_cuda", where=instance.place("UCX_TLS"),
                    fix="Add cuda_copy and cuda_ipc (or cuda), or unset UCX_TLS.",
                )
            )  # fmt: skip
    for pair in facts.pairs:
        if pair.prefill.uses_ucx and pair.decode.uses_ucx:
            found += _pair_tls(pair)
    yield from merged(found)


def _with_cuda(text: str) -> bool:
    deny, items = _list(text)
    return not {"cuda", "cuda_copy"} & set(items) if deny else bool({"all", *_CUDA} & set(items))


def _pair_tls(pair: Pair) -> Iterable[Finding]:
    p, d = pair.prefill.setting("UCX_TLS"), pair.decode.setting("UCX_TLS")
    if not known(p or "unset", d or "unset"):
        return
    if (p or d) and p != d:
        yield say(
            "KVP530", "ucx-tls", "warn" if p and d else "info",
            f"UCX_TLS differs: prefill {p or 'unset'}, decode {d or 'unset'}\nonly transports that both have can be used",
            code="ucx_tls_differs", where=pair.where, fix="Set the same value on both sides, or unset it on both.",
        )  # fmt: skip
    for side in (pair.prefill, pair.decode):
        text = side.setting("UCX_TLS")
        if not text or not _with_cuda(text):
            continue
        place = side.place("UCX_TLS")
        if pair.one_machine is True and not _allows(text, {"cuda_ipc", "cuda"}):
            yield say(
                "KVP530", "ucx-tls", "warn",
                f"UCX_TLS={text} leaves out cuda_ipc\nKV between GPUs of one host is then staged through TCP or host memory "
                "(under 1 GB/s measured, instead of NVLink), without an error",
                code="ucx_tls_excludes_cuda_ipc", where=place, fix="Add cuda_ipc (or cuda), or unset UCX_TLS.",
            )  # fmt: skip
        if pair.one_machine is not True and not _has_rdma(text) and not _multi_node_nvlink(side):
            yield _no_rdma(pair, side, text, place)


def _has_rdma(text: str) -> bool:
    deny, items = _list(text)
    return deny or "all" in items or any(_RDMA.match(i) for i in items)


def _multi_node_nvlink(side: Instance) -> bool:
    return (side.setting("UCX_CUDA_IPC_ENABLE_MNNVL") or "").lower() in ("y", "yes", "1", "on")


def _no_rdma(pair: Pair, side: Instance, text: str, place: str) -> Finding:
    sides = (pair.prefill, pair.decode)
    fabric = next(
        (i.host.note for i in sides if i.host and re.search(r"infiniband|roce|mlx|rdma", i.host.note, re.I)),
        "",
    )
    asked = any(i.command.box and i.command.box.rdma for i in sides) or bool(
        re.search(r"mlx|ib\d", side.setting("UCX_NET_DEVICES") or "")
    )
    pods = own_network(pair.prefill) and own_network(pair.decode)
    apart = pair.one_machine is False
    certain = apart or fabric or asked
    severity = "warn" if certain and (not pods or asked or apart) else "info"
    seen = f" although the hosts have {fabric}" if fabric else ""
    return say(
        "KVP530", "ucx-tls", severity,
        f"UCX_TLS={text} has no RDMA transport (rc, dc, ud, ib)\nKV between hosts goes over TCP{seen}, at a fraction of "
        "the speed and without an error",
        code="ucx_tls_excludes_rdma", where=place, fix="Unset UCX_TLS, or add rc (or ib).",
    )  # fmt: skip


def ucx_devices(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP531: network devices are named as UCX wants them, in the variable that UCX reads."""
    found: list[Finding] = []
    apart = any(pair.one_machine is not True for pair in facts.pairs)
    for instance in facts.instances:
        if not instance.uses_ucx:
            continue
        text = instance.setting("UCX_NET_DEVICES")
        if text and known(text):
            bare = [d for d in (p.strip() for p in text.lstrip("^").split(",")) if _BARE_DEVICE.match(d)]
            if bare:
                found.append(
                    say(
                        "KVP531", "ucx-devices", "warn",
                        f"UCX_NET_DEVICES={text} names {', '.join(bare)} without a port; UCX lists RDMA devices as {bare[0]}:1",
                        code="ucx_net_devices_no_port", where=instance.place("UCX_NET_DEVICES"),
                        fix=f"Write {','.join(f'{d}:1' for d in bare)} (`ucx_info -d` lists the names).",
                    )
                )  # fmt: skip
        nccl = [n for n in _NCCL if n in instance.env]
        if nccl and not text and apart:
            found.append(
                say(
                    "KVP531", "ucx-devices", "info",
                    f"{', '.join(nccl)} steer{'s' if len(nccl) == 1 else ''} NCCL only\nNIXL moves KV with UCX, which reads UCX_NET_DEVICES",
                    code="nccl_vars_do_not_apply", where=instance.place(nccl[0]),
                    fix="Set UCX_NET_DEVICES (such as mlx5_0:1) if the KV has to take certain NICs.",
                )
            )  # fmt: skip
    yield from merged(found)


def telemetry(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP532: NIXL telemetry is not switched off; vLLM counts every transfer without it as failed."""
    found = []
    for instance in facts.instances:
        text = instance.setting("NIXL_TELEMETRY_ENABLE")
        if (
            instance.nixl is not None
            and text is not None
            and text.strip().lower() in ("n", "0", "no", "false", "off")
        ):
            found.append(
                say(
                    "KVP532", "nixl-telemetry", "error",
                    f"NIXL_TELEMETRY_ENABLE={text} makes vLLM fail requests whose KV has arrived\nvLLM asks each finished transfer for its timing and gets an error",
                    code="nixl_telemetry_disabled", where=instance.place("NIXL_TELEMETRY_ENABLE"),
                    fix="Unset NIXL_TELEMETRY_ENABLE or set it to y.",
                )
            )  # fmt: skip
    yield from merged(found)


def expandable_segments(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP533: PyTorch's expandable segments are off, under either name of the variable."""
    found = []
    for instance in facts.instances:
        if (
            instance.kv is None
            or instance.serve.switched("--enable-cumem-allocator")
            or instance.serve.switched("--enable-sleep-mode")
        ):
            continue
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            text = instance.setting(name) or ""
            if not re.search(r"expandable_segments\s*:\s*true", text, re.IGNORECASE):
                continue
            refused = name == "PYTORCH_CUDA_ALLOC_CONF" and not before(instance.version, (0, 22, 0))
            title = (
                f"{named(instance.version)} refuses {name}=expandable_segments:True together with a KV connector"
                if refused
                else f"{name}=expandable_segments:True passes {named(instance.version)}'s check, but registered KV memory can move\n"
                "cuda_ipc is lost silently (TCP instead) or RDMA reads fail"
            )
            found.append(
                say(
                    "KVP533", "expandable-segments",
                    "error" if refused or name == "PYTORCH_CUDA_ALLOC_CONF" else "warn",
                    title, code="expandable_segments_with_connector", where=instance.place(name),
                    fix="Remove expandable_segments:True (or add --enable-cumem-allocator, vLLM 0.22 and later).",
                    links=("https://github.com/ai-dynamo/nixl/issues/1754",),
                )
            )  # fmt: skip
    yield from merged(found)


def refused_options(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP534: no option is set that this connector refuses or pays for dearly."""
    found = []
    for instance in facts.instances:
        names = {c.connector for c in instance.connectors}
        if not names:
            continue
        for option in ("--enable-return-routed-experts", "--use-replayssm"):
            if instance.serve.switched(option) and (names & _REFUSED or option == "--use-replayssm"):
                shown = sorted(names & _REFUSED or names)[0]
                found.append(
                    _refusal(
                        instance,
                        f"{option} is incompatible with {shown}: vLLM does not start",
                        f"Remove {option}.",
                    )
                )
        if instance.serve.switched("--enable-sleep-mode"):
            found += _sleep(instance, names, facts)
        device = instance.nixl.field("kv_buffer_device") if instance.nixl else None
        if isinstance(device, str) and device not in ("cuda", "cpu", "xpu"):
            found.append(
                _refusal(
                    instance,
                    f"kv_buffer_device {device!r} is not supported by NIXL",
                    "Use cuda (the default) or cpu.",
                )
            )
        elif device == "cpu" and instance.nixl is not None:
            found.append(
                say(
                    "KVP534", "connector-refusals", "info",
                    "kv_buffer_device cpu stages KV through host memory: one copy more on each side",
                    code="host_staging", where=instance.where, fix="Leave it out where the GPUs can reach each other.",
                )
            )  # fmt: skip
    yield from merged(found)


def _refusal(instance: Instance, title: str, fix: str) -> Finding:
    return say(
        "KVP534",
        "connector-refusals",
        "error",
        title,
        code="connector_refuses_option",
        where=instance.where,
        fix=fix,
    )


def _sleep(instance: Instance, names: set[str], facts: LintFacts) -> Iterable[Finding]:
    nixl = instance.nixl
    barred = names & {"NixlPushConnector", "MooncakeStoreConnector"}
    if barred or (nixl is not None and nixl.extra.get("backends", ["UCX"]) != ["UCX"]):
        shown = sorted(barred or names & set(NIXL))[0]
        yield _refusal(
            instance,
            f"{shown} does not support --enable-sleep-mode here: vLLM does not start",
            "Remove --enable-sleep-mode.",
        )
    elif nixl is not None:
        near = any(p.one_machine is True for p in facts.pairs if instance in (p.prefill, p.decode))
        yield say(
            "KVP534", "connector-refusals", "warn" if near else "info",
            "with --enable-sleep-mode vLLM gives NIXL TLS=^cuda_ipc, so KV between GPUs of one host goes over TCP",
            code="sleep_mode_disables_cuda_ipc", where=instance.where, fix="Remove --enable-sleep-mode from prefill and decode.",
            links=(NIXL_GUIDE,),
        )  # fmt: skip


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP530", "ucx-tls", ucx_tls),
    Rule("KVP531", "ucx-devices", ucx_devices),
    Rule("KVP532", "nixl-telemetry", telemetry),
    Rule("KVP533", "expandable-segments", expandable_segments),
    Rule("KVP534", "connector-refusals", refused_options),
)
