"""Launch files in a few words, and what lint says of them: the pure half of the chain, without the command line."""

from __future__ import annotations

from kvprobe.finding import Finding
from kvprobe.flows.lint import RULES
from kvprobe.formats.launch_env import parse_host
from kvprobe.formats.launch_files import read_launch
from kvprobe.formats.launch_model import Launch
from kvprobe.formats.serve_command_surface import parse_version
from kvprobe.models.pd_instance import LintFacts
from kvprobe.models.pd_pairs import gather
from kvprobe.policy import Policy
from kvprobe.rules.base import run_rules
from kvprobe.rules.lint_base import SEVERITY

PREFILL_ENV = "CUDA_VISIBLE_DEVICES=0 VLLM_NIXL_SIDE_CHANNEL_PORT=5600"
DECODE_ENV = "CUDA_VISIBLE_DEVICES=1 VLLM_NIXL_SIDE_CHANNEL_PORT=5601"
ONE_HOST = {"prefill": "node-a", "decode": "node-a"}
TWO_HOSTS = {"prefill": "node-a (192.0.2.11)", "decode": "node-b (192.0.2.12)"}


def nixl(role: str, extra: str = "", connector: str = "NixlConnector") -> str:
    """A --kv-transfer-config of NIXL; ``extra`` are further JSON members."""
    return f'{{"kv_connector":"{connector}","kv_role":"{role}"{"," + extra if extra else ""}}}'


def serve(
    env: str = "", args: str = "", config: str | None = None, model: str = "Qwen/Qwen2.5-7B-Instruct"
) -> str:
    """One shell line that starts vLLM."""
    tail = f"--kv-transfer-config '{config}'" if config else ""
    return f"{env} vllm serve {model} {args} {tail}".strip() + "\n"


def pair(
    prefill_args: str = "", decode_args: str = "", *, prefill_env: str = PREFILL_ENV, decode_env: str = DECODE_ENV,
    prefill_config: str | None = None, decode_config: str | None = None, model: str = "Qwen/Qwen2.5-7B-Instruct",
) -> dict[str, str]:  # fmt: skip
    """Two scripts that are right unless told otherwise."""
    return {
        "prefill.sh": serve(
            prefill_env, f"--port 8100 {prefill_args}", prefill_config or nixl("kv_producer"), model
        ),
        "decode.sh": serve(
            decode_env, f"--port 8200 {decode_args}", decode_config or nixl("kv_consumer"), model
        ),
    }


def read(files: dict[str, str], hosts: dict[str, str] | None = None, version: str = "0.33.0") -> LintFacts:
    """The facts that the rules see."""
    entries = tuple(e for role, text in (hosts or {}).items() if (e := parse_host(role, text)))
    launch: Launch = read_launch(files)
    return gather([(launch, None)], entries, (parse_version(version), "--vllm-version"))


def findings(
    files: dict[str, str], hosts: dict[str, str] | None = None, version: str = "0.33.0"
) -> list[Finding]:
    """What lint finds, notes and passes included."""
    return run_rules(RULES, read(files, hosts, version), Policy(name="test"))


def codes(
    files: dict[str, str], hosts: dict[str, str] | None = None, version: str = "0.33.0"
) -> dict[str, str]:
    """Label -> ``error``, ``warn`` or ``info`` of everything with a label."""
    names = {status: name for name, status in SEVERITY.items() if name not in ("ok",)}
    order = ["skip", "info", "warn", "error"]
    out: dict[str, str] = {}
    for finding in findings(files, hosts, version):
        if finding.code:
            name = names[finding.status]
            out[finding.code] = max(name, out.get(finding.code, "skip"), key=order.index)
    return out


def alarms(
    files: dict[str, str], hosts: dict[str, str] | None = None, version: str = "0.33.0"
) -> dict[str, str]:
    """Errors and warnings only."""
    return {code: name for code, name in codes(files, hosts, version).items() if name in ("error", "warn")}
