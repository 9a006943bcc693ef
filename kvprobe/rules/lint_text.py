"""KVP501-506: what can be said of the launch text itself, before any pair is looked at."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.finding import Finding
from kvprobe.formats import serve_command_surface as surface
from kvprobe.formats.kv_transfer_config import FLAG
from kvprobe.formats.launch_model import base_name
from kvprobe.formats.serve_command import Option, program_at
from kvprobe.models.pd_instance import Instance, LintFacts
from kvprobe.policy import Policy
from kvprobe.rules.base import Rule
from kvprobe.rules.lint_base import merged, named, say

_MARKS = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f"
_DASHES = "\u2012\u2013\u2014\u2015\u2212"
_KV_ENV = ("NIXL", "MOONCAKE", "MORIIO", "KV_CACHE", "ATTENTION_BACKEND")
_ENV_INSTEAD = {
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": 'kv_connector_extra_config: {"kv_lease_duration": SECONDS} replaced it in 0.22',
    "VLLM_USE_V1": "leave it out: V1 is the only engine",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
}


def understood(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP501: every instance and its role could be read from the launch files."""
    sides = {role: [i for i in facts.instances if i.role == role] for role in ("prefill", "decode", None)}
    counted = ", ".join(f"{len(found)} {role or 'without a role'}" for role, found in sides.items() if found)
    notes = tuple(
        f"{name} starts nothing itself; it is read where a command names it" for name in facts.ignored
    )
    plural = "s" * (len(facts.instances) != 1)
    yield say(
        "KVP501",
        "launch-understood",
        "ok",
        f"{len(facts.instances)} vLLM instance{plural} read: {counted}",
        notes=notes,
    )
    yield from merged(
        say(
            "KVP501", "launch-understood", "info",
            "nothing tells whether this instance is prefill or decode, so it is not compared with the others",
            code="role_unknown", where=instance.where,
            fix="Set kv_role, or pass it as --prefill or --decode.",
        )
        for instance in sides[None]
    )  # fmt: skip
    for first, second in facts.variants:
        yield say(
            "KVP501", "launch-understood", "info",
            f"{second.where} is taken as another version of {first.where}: same role, port and GPUs",
            code="variant", where=second.where,
        )  # fmt: skip
    if facts.instances and not facts.pairs:
        missing = [role for role in ("prefill", "decode") if not sides[role]]
        yield say(
            "KVP501", "launch-understood", "skip",
            f"only one side was given: nothing to compare the {' and '.join(missing)} side with",
            fix="Pass both launch files, or --prefill and --decode.",
        )  # fmt: skip


def shell_text(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP502: quotes are plain, closed and where the shell expects them; dashes are dashes."""
    for problem in facts.problems:
        yield say(
            "KVP502",
            "shell-text",
            "error" if problem.sure else "warn",
            problem.text,
            code=problem.code,
            where=problem.where,
            fix=problem.fix,
        )
    said = {(p.where.split(" line ")[0]) for p in facts.problems if p.code == "typographic_quote"}
    for instance in facts.instances:
        if instance.command.file in said:
            continue
        words = [w for w in instance.command.argv if any(m in w for m in _MARKS)]
        if words and (instance.kv is None or instance.kv.fault or words[0] != instance.kv.text):
            mark = next(c for c in words[0] if c in _MARKS)
            yield say(
                "KVP502", "shell-text", "error",
                f"{mark} (U+{ord(mark):04X}) is a typographic quote: the shell and JSON take it for a letter in {words[0][:60]}",
                code="typographic_quote", where=instance.where, fix="Type a plain ' or \" in its place.",
            )  # fmt: skip
        dashed = next((w for w in instance.command.argv if w[:1] in _DASHES), None)
        if dashed:
            yield say(
                "KVP502", "shell-text", "error",
                f"{dashed[:40]} begins with a typographic dash (U+{ord(dashed[0]):04X}): vLLM takes it for a word, not an option",
                code="typographic_quote", where=instance.where, fix="Type -- in its place.",
            )  # fmt: skip


def entrypoint(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP503: the image's entrypoint is not repeated in its arguments."""
    for instance in facts.instances:
        box, argv = instance.command.box, instance.command.argv
        if box is None or not box.default_entrypoint or not argv:
            continue
        again = program_at(argv)
        shell = base_name(argv[0]) in ("bash", "sh", "/bin/bash", "/bin/sh", "python", "python3")
        if again or shell or argv[0] == "serve":
            what = " ".join(argv[:2])
            yield say(
                "KVP503", "entrypoint-duplicated", "error",
                f"{box.image} already starts the server, and `{what}` is given again\n"
                f"its ENTRYPOINT is vllm serve, so it runs: vllm serve {what} ...",
                code="entrypoint_duplicated", where=instance.where,
                fix=f'Drop "{what}" from the arguments, or replace the entrypoint'
                + (" (command: in Kubernetes)." if box.kind == "pod" else " (entrypoint: [] in compose, --entrypoint in docker run)."),
            )  # fmt: skip


def options_known(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP504: every option exists in this vLLM, and yes/no options have no value."""
    found = []
    for instance in facts.instances:
        if instance.serve.program.kind != "serve" or _repeated(instance):
            continue
        for flag, value in instance.serve.flags_with_value:
            found.append(_valued(instance, flag, value))
        for option in instance.serve.options:
            found += _option(instance, option)
        lost = instance.kv is not None and bool(instance.kv.fault)
        strays = [] if lost else [s for s in instance.serve.strays if not any(c in s for c in "{}:\"'")]
        if strays and not any(d in s for s in strays for d in _DASHES):
            found.append(
                say(
                    "KVP504", "options-known",
                    "warn" if any(o.name is None for o in instance.serve.options) else "error",
                    f"`{' '.join(strays)[:80]}` belongs to no option; vLLM answers: unrecognized arguments",
                    code="stray_argument", where=instance.where,
                    fix="Look for a lost line continuation (a blank after \\) or a lost quote before it.",
                )
            )  # fmt: skip
    yield from merged(found)


def _repeated(instance: Instance) -> bool:
    """The entrypoint stands in the arguments; KVP503 says so and the words mean something else."""
    box = instance.command.box
    return bool(
        box and box.default_entrypoint and instance.command.argv and program_at(instance.command.argv)
    )


def _valued(instance: Instance, flag: str, value: str) -> Finding:
    off = value.lower() in ("false", "0", "no", "off", "none")
    positive = "--" + flag.removeprefix("--no-").removeprefix("--")
    table = surface.options()
    name = surface.option_name(flag, instance.version) or positive
    kind = table[name].kind if name in table else "flag"
    negative = f"--no-{name[2:]}"
    right = (
        name if off == flag.startswith("--no-") else (negative if kind == "bool" else "leave the option out")
    )
    return say(
        "KVP504", "options-known", "error",
        f"{flag} takes no value, but `{value}` is given\nvLLM answers: unrecognized arguments: {value}",
        code="boolean_flag_with_value", where=instance.where, fix=f"Write {right}.",
    )  # fmt: skip


def _option(instance: Instance, option: Option) -> list[Finding]:
    version = instance.version or surface.NEWEST
    written = option.written.split("=")[0].split(".")[0]
    if option.name is None:
        instead = surface.nearest_option(written)
        sure = instead is not None and version <= surface.NEWEST
        advice = (
            f"Write {instead}."
            if instead and instead.startswith("--")
            else f"{(instead or '').capitalize()}."
        )
        return [
            say(
                "KVP504", "options-known", "error" if sure else "info",
                f"{written} is no option of {named(version)}\nvLLM answers: unrecognized arguments: {written}"
                if sure
                else f"{written} is not among the options of vLLM that kvprobe knows (0.10 to 0.33)",
                code="unknown_flag", where=instance.where,
                fix=advice if instead else "If it comes from a plugin or a newer vLLM, nothing is wrong; else remove it.",
            )
        ]  # fmt: skip
    row = surface.options().get(option.name)
    if row is None or not row.known_absent(version):
        return []
    if row.absent_in is not None and version <= row.absent_in:
        return [
            say(
                "KVP504", "options-known", "error",
                f"{option.name} does not exist yet in {named(version)}; it came after {surface.show_version(row.absent_in)}",
                code="vllm_too_old", where=instance.where,
                fix=f"Use a vLLM newer than {surface.show_version(row.absent_in)}, the same on both sides, or remove the option.",
            )
        ]  # fmt: skip
    instead = surface.REPLACED.get(option.name, "remove it")
    return [
        say(
            "KVP504", "options-known", "error",
            f"{option.name} no longer exists in {named(version)} (gone by {surface.show_version(row.gone_in or version)})\n"
            f"vLLM answers: unrecognized arguments: {option.name}",
            code="unknown_flag", where=instance.where, fix=f"Instead: {instead}.",
        )
    ]  # fmt: skip


def variables_known(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP505: every VLLM_, UCX_ and NIXL_ variable is spelt as its reader spells it and still read by this vLLM."""
    found = []
    for instance in facts.instances:
        version = instance.version or surface.NEWEST
        for name, setting in instance.env.items():
            row = surface.variables().get(name)
            if row is not None and row.known_absent(version):
                found.append(_obsolete(name, row, version, setting.where, instance))
            elif row is None and (meant := surface.nearest_variable(name)):
                found.append(
                    say(
                        "KVP505", "variables-known", "warn",
                        f"{name} is read by nobody; {meant} was probably meant, so the setting has no effect",
                        code="env_typo", where=setting.where, fix=f"Rename it to {meant}.",
                    )
                )  # fmt: skip
    yield from merged(found)


def _obsolete(
    name: str, row: surface.Known, version: surface.Version, where: str, instance: Instance
) -> Finding:
    gone = row.gone_in is not None and version >= row.gone_in
    matters = any(part in name for part in _KV_ENV)
    strict = instance.serve.switched("--fail-on-environ-validation") is True
    if gone:
        what = f"{name} is not read any more by {named(version)} (gone by {surface.show_version(row.gone_in or version)})"
        code, fix = "env_unknown", f"Remove it; {_ENV_INSTEAD.get(name, 'it has no effect')}."
    else:
        what = f"{name} is not read yet by {named(version)}"
        code, fix = "vllm_too_old", f"It came after {surface.show_version(row.absent_in or version)}."
    severity = "error" if strict else "warn" if matters else "info"
    return say("KVP505", "variables-known", severity, what, code=code, where=where, fix=fix)


def config_json(facts: LintFacts, policy: Policy) -> Iterable[Finding]:
    """KVP506: --kv-transfer-config reaches vLLM as a JSON object."""
    found = []
    for instance in facts.instances:
        kv = instance.kv
        if kv is None or not kv.fault:
            continue
        if kv.fault == "typographic":
            continue  # KVP502 names the character
        lost = kv.fault == "quotes_lost"
        found.append(
            say(
                "KVP506", "kv-config-json", "error",
                f"vLLM gets {FLAG} {kv.text[:90]}: the shell took the quotes, so it is no JSON"
                if lost
                else f"{FLAG} {kv.text[:90]} is no JSON: {kv.detail}",
                code="json_quotes_lost" if lost else "kv_config_invalid", where=instance.where,
                fix=(
                    "Put the JSON into single quotes, or escape the inner quotes; in a variable use an array: "
                    f"args=({FLAG} '{{\"kv_connector\":\"...\"}}') and \"${{args[@]}}\"."
                )
                if lost
                else 'Write an object such as {"kv_connector":"NixlConnector","kv_role":"kv_producer"}.',
            )
        )  # fmt: skip
    yield from merged(found)


RULES: tuple[Rule[LintFacts], ...] = (
    Rule("KVP501", "launch-understood", understood),
    Rule("KVP502", "shell-text", shell_text),
    Rule("KVP503", "entrypoint-duplicated", entrypoint),
    Rule("KVP504", "options-known", options_known),
    Rule("KVP505", "variables-known", variables_known),
    Rule("KVP506", "kv-config-json", config_json),
)
