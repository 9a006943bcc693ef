"""KVP550-553: the programs beside the engines: proxy, benchmark, render, and whether the log shows transfers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.formats.launch_model import base_name, is_dynamic
from kvprobe.models.pd_instance import LOOPBACK, Helper, Instance, LintFacts
from kvprobe.models.pd_roles import targets
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import before, merged, say

_TOY = re.compile(
    r"^(toy_proxy_server|disagg_proxy_multiturn|disagg_epd_proxy|mooncake_connector_proxy|moriio_toy_proxy\w*|simple_proxy\w*)(\.py)?$"
)
_BLIND = re.compile(
    r"^(disagg_proxy_demo|disagg_prefill_proxy_server|disagg_proxy_p2p_nccl_xpyd|round_robin_proxy)\.py$"
)
_SAMPLING = ("--seed", "--dataset-name", "--dataset-path", "--random-input-len", "--random-output-len", "--input-len",
             "--random-prefix-len", "--random-range-ratio", "--sharegpt-output-len", "--model")  # fmt: skip


def proxies(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP550: the proxy hands kv_transfer_params on, reaches the right instances, and is no test helper in production."""
    found: list[Finding] = []
    for proxy in facts.proxies:
        script = _script(proxy)
        nixl = not facts.instances or any(i.nixl for i in facts.instances)
        path = next((w for w in proxy.command.argv[:4] if base_name(w) == script), script)
        if script == "disagg_proxy_demo.py" and "examples/disaggregated/" in path:
            found.append(
                say(
                    "KVP550", "proxy", "info",
                    f"{script} forwards kv_transfer_params in recent vLLM sources only, and is a demo",
                    code="toy_proxy", where=proxy.command.where,
                    fix="Check that your copy mentions kv_transfer_params; in production use llm-d, Dynamo or vllm-router.",
                )
            )  # fmt: skip
        elif _BLIND.match(script) and nixl:
            sure = script != "disagg_proxy_demo.py" or "online_serving" in path
            found.append(
                say(
                    "KVP550", "proxy", "error" if sure else "warn",
                    f"{script} sends the plain request to both sides and never hands kv_transfer_params on\ndecode prefills again, "
                    "with right answers and doubled TTFT",
                    code="proxy_without_kv_params", where=proxy.command.where,
                    fix="Use a proxy that sends do_remote_decode and forwards kv_transfer_params (toy_proxy_server.py for tests).",
                )
            )  # fmt: skip
        elif _TOY.match(script):
            serious = _production(proxy)
            found.append(
                say(
                    "KVP550", "proxy", "warn" if serious else "info",
                    f"{script} is a test helper (round robin, no health checks, no timeouts, no abort)"
                    + (f", and this looks like production: {serious}" if serious else ": fine for development"),
                    code="toy_proxy", where=proxy.command.where,
                    fix="In production use llm-d, Dynamo, vllm-router or KServe.",
                )
            )  # fmt: skip
        found += _targets(proxy, facts)
    yield from merged(found)


def _script(proxy: Helper) -> str:
    for word in proxy.command.argv[:4]:
        name = base_name(word)
        if _TOY.match(name) or _BLIND.match(name):
            return name
    return base_name(proxy.command.argv[min(1, len(proxy.command.argv) - 1)])


def _production(proxy: Helper) -> str:
    box = proxy.command.box
    reasons = []
    if box is not None and box.kind == "pod":
        reasons.append("Kubernetes")
    if box is not None and (box.replicas or 1) > 1:
        reasons.append(f"{box.replicas} replicas")
    if box is not None and re.search(r"prod", box.namespace):
        reasons.append(f"namespace {box.namespace}")
    if box is not None and box.kind != "pod" and box.restart:
        reasons.append("a restart policy")
    if proxy.command.file.endswith(".service"):
        reasons.append("a systemd unit")
    return ", ".join(reasons)


def _targets(proxy: Helper, facts: LintFacts) -> Iterable[Finding]:
    """Ports of a proxy on the engines' own host. Elsewhere services map ports, and nothing can be said."""
    plain = [
        i
        for i in facts.instances
        if i.command.box is None and i.role in ("prefill", "decode") and i.http_port
    ]
    if proxy.command.box is not None or not plain or len(plain) != len(facts.instances):
        return
    ports = {str(i.http_port): i for i in plain}
    for role, places in targets(proxy).items():
        for host, port in places:
            if not LOOPBACK.match(host) or is_dynamic(port):
                continue
            other = ports.get(port)
            if other is None and all(i.serve.has("--port") for i in plain):
                yield _aim(
                    proxy,
                    f"the proxy sends {role} requests to port {port}, where no instance listens ({', '.join(ports)})",
                )
            elif (
                other is not None
                and other.role != role
                and not any(i.role == role and str(i.http_port) == port for i in plain)
            ):
                yield _aim(
                    proxy,
                    f"the proxy sends {role} requests to port {port}, which is the {other.role} instance ({other.role_from})",
                )


def _aim(proxy: Helper, text: str) -> Finding:
    return say(
        "KVP550", "proxy", "warn", text, code="proxy_target_mismatch", where=proxy.command.where,
        fix="Correct the proxy's ports, or the instances' --port.",
    )  # fmt: skip


def benchmarks(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP551: a benchmark series does not send the same prompts again to servers that cache prefixes."""
    engines = [i for i in facts.instances if i.role in ("prefill", "decode", None)]
    cached = [
        i for i in engines if i.serve.switched("--enable-prefix-caching") is not False and not i.serve.unread
    ]
    if engines and not cached:
        return
    groups: dict[tuple[str, ...], list[Helper]] = {}
    for bench in facts.benches:
        if bench.serve.program.name.split()[-1] in ("sweep", "latency", "throughput", "startup"):
            continue  # `vllm bench sweep serve` resets the caches itself
        values = tuple(_value(bench, option) for option in _SAMPLING)
        if is_dynamic(values[0]) or bench.command.argv.count("--seed") > 1:
            continue
        groups.setdefault(values, []).append(bench)
    for (seed, *_), runs in groups.items():
        if len(runs) < 2 and not any(r.command.repeats for r in runs):
            continue
        first = runs[0].command
        given = f"--seed {seed}" if seed != "0" else "no --seed (so 0)"
        count = "a loop" if len(runs) < 2 else f"{len(runs)} runs"
        yield say(
            "KVP551", "bench-seed", "warn",
            f"{count} with {given} against servers with prefix caching on\nfrom the second on, the same prompts come from the cache "
            "and TTFT measures nothing",
            code="seed_reuse_with_prefix_cache", where=first.where,
            fix="Start every server with --no-enable-prefix-caching, or change --seed from run to run, or reset the cache between.",
        )  # fmt: skip


def _value(bench: Helper, option: str) -> str:
    words = bench.command.argv
    default = "0" if option == "--seed" else ""
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
    return default


def log_visible(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP552: the KV Transfer metrics line can appear in the log."""
    found = []
    for instance in facts.instances:
        if instance.pd is None or instance.serve.program.kind != "serve":
            continue
        reason = _hidden(instance)
        if reason:
            found.append(
                say(
                    "KVP552", "transfer-log", "info",
                    f"no KV Transfer metrics line will appear in this log: {reason}",
                    code="kv_metrics_log_hidden", where=instance.where,
                    fix="Read /metrics instead (kvprobe logs --metrics-url URL).",
                )
            )  # fmt: skip
    yield from merged(found)


def _hidden(instance: Instance) -> str:
    if instance.serve.has("--disable-log-stats"):
        return "--disable-log-stats"
    level = (instance.setting("VLLM_LOGGING_LEVEL") or "INFO").upper()
    if level in ("WARNING", "WARN", "ERROR", "CRITICAL"):
        return f"VLLM_LOGGING_LEVEL={level}"
    servers = instance.serve.number("--api-server-count", 0)
    if servers and servers > 1:
        return f"--api-server-count {servers} switches it off"
    external = any(instance.serve.has(o) for o in ("--data-parallel-rank", "--data-parallel-external-lb", "--headless",
                                                    "--data-parallel-multi-port-external-lb"))  # fmt: skip
    ranks = (
        instance.local_dp
        if instance.serve.has("--data-parallel-start-rank")
        else instance.size("--data-parallel-size")
    )
    if (
        servers == 0
        and not external
        and ranks
        and ranks > 1
        and not instance.setting("VLLM_USE_RUST_FRONTEND")
    ):
        return f"data-parallel size {ranks} starts {ranks} API servers, which switches it off"
    return ""


def scale_out(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP553: instances that work with token ids (render in front) have their scale-out endpoints open."""
    texts = any("chat" in " ".join(p.command.argv) or _TOY.match(_script(p)) for p in facts.proxies)
    found = [
        say(
            "KVP553", "scale-out", "warn",
            "--tokens-only serves token ids only, and this proxy sends text requests",
            code="scale_out_disabled", where=instance.where,
            fix="Put `vllm launch render` in front, or remove --tokens-only (--enable-scale-out opens the same endpoints beside text).",
        )
        for instance in facts.instances
        if texts and instance.serve.switched("--tokens-only")
    ]  # fmt: skip
    if facts.renders:
        for instance in facts.instances:
            if (
                before(instance.version, (0, 29, 0))
                or instance.serve.program.kind != "serve"
                or instance.serve.unread
            ):
                continue
            if not instance.serve.switched("--tokens-only") and not instance.serve.switched(
                "--enable-scale-out"
            ):
                found.append(
                    say(
                        "KVP553", "scale-out", "warn",
                        "a render server stands in front, but this instance answers /inference/v1/generate with 403",
                        code="scale_out_disabled", where=instance.where, fix="Add --enable-scale-out (or --tokens-only).",
                    )
                )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP550", "proxy", proxies),
    Rule("KVP551", "bench-seed", benchmarks),
    Rule("KVP552", "transfer-log", log_visible),
    Rule("KVP553", "scale-out", scale_out),
)
