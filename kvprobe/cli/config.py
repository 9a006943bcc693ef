"""`kvprobe config`: which value holds, and where it came from."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from kvprobe.cli import settings
from kvprobe.errors import UsageError
from kvprobe.policy import BOUNDS, Policy, did_you_mean
from kvprobe.units import format_quantity

_WORDS = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT: "built-in",
    ParameterSource.PROMPT: "prompt",
}


@click.group()
def command() -> None:
    """Configuration: command line > environment > file > profile > built-in.

    \b
    kvprobe config show                      options of preflight and the policy, with their origins
    kvprobe config show topo --format json
    kvprobe config show preflight -- --profile nvlink --tp 2
    """


@command.command("show", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="[COMMAND]", default="preflight")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--config", metavar="FILE", envvar="KVPROBE_CONFIG", help="As the command's own --config.")
def show(name: str, arguments: tuple[str, ...], form: str, config: str | None) -> None:
    """Every option of COMMAND with its value and origin, then the policy; arguments after -- count as typed."""
    found = effective(name, arguments, config)
    if form == "json":
        click.echo(json.dumps(found, indent=2, default=str))
        return
    click.echo(f"file    {found['file'] or 'none found'}")
    click.echo(f"policy  {found['policy']['source']}")
    for title, rows in (("options", found["options"]), ("policy", found["policy"]["values"])):
        click.echo(f"\n{title}\n{'-' * len(title)}")
        width = max((len(row["name"]) for row in rows), default=0)
        room = min(40, max((len(_shown(row)) for row in rows), default=0))
        for row in rows:
            click.echo(f"{row['name']:<{width}}  {_shown(row):<{room}}  {row['origin']}")


def effective(name: str, arguments: tuple[str, ...], config: str | None) -> dict[str, Any]:
    """File, options and policy values that a call of ``kvprobe NAME ARGUMENTS`` would use. Raises UsageError."""
    from kvprobe.cli import COMMANDS, cli
    from kvprobe.cli.options import Common

    if name not in COMMANDS:
        raise UsageError(f"There is no command {name!r}.", did_you_mean(name, COMMANDS))
    parent = click.Context(cli, info_name="kvprobe", auto_envvar_prefix="KVPROBE")
    target = cli.get_command(parent, name)
    if target is None or "config" not in {p.name for p in target.params}:
        raise UsageError(f"kvprobe {name} takes no configuration.")
    words = [*(["--config", config] if config else []), *arguments]
    with target.make_context(name, words, parent=parent, resilient_parsing=False) as ctx:
        found = settings.settings_of(ctx)
        options = [_option(ctx, found, label, param) for label, param in settings.options_of(target).items()]
        values = {k: v for k, v in ctx.params.items() if k in Common.__struct_fields__}
        from kvprobe.cli.common import load_policy

        policy = load_policy(Common(**values), ctx)
    return {
        "file": found.source,
        "options": options,
        "policy": {"source": policy.source, "values": _values(policy)},
    }


def _option(ctx: click.Context, found: settings.Settings, label: str, param: str) -> dict[str, Any]:
    source = ctx.get_parameter_source(param)
    origin = found.source if source is ParameterSource.DEFAULT_MAP else _WORDS.get(source) if source else None
    if source is ParameterSource.ENVIRONMENT:
        origin = f"environment ({_variable(ctx, param)})"
    return {"name": f"--{label}", "value": ctx.params.get(param), "origin": origin or "built-in"}


def _variable(ctx: click.Context, param: str) -> str:
    for option in ctx.command.params:
        if option.name == param and option.envvar:
            return str(option.envvar)
    return f"{ctx.auto_envvar_prefix}_{param.upper()}"


def _values(policy: Policy) -> list[dict[str, Any]]:
    """Every policy value with the profile or file that set it."""

    def row(name: str, value: Any, key: str | None = None) -> dict[str, Any]:
        return {"name": name, "value": value, "origin": policy.origins.get(key or name, "built-in")}

    rows = [row("fail_on", policy.fail_on), row("required", list(policy.required))]
    for key, threshold in policy.thresholds.items():
        for bound in BOUNDS:
            value = getattr(threshold, bound)
            if value is not None:
                name = f"thresholds.{key}.{bound}"
                rows.append(
                    {
                        **row(name, value),
                        "unit": threshold.unit,
                        "source": threshold.source,
                        "shown": format_quantity(value, threshold.unit),
                    }
                )
    for waiver in policy.waivers:
        name = f"waivers.{waiver.check}"
        rows.append(row(name, f"until {waiver.until}: {waiver.reason}"))
    return rows


def _shown(row: dict[str, Any]) -> str:
    value = row.get("shown", row["value"])
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)
