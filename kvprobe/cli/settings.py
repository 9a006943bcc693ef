"""Configuration files: found, checked against the real options, and laid under command line and environment.

Command line > environment > file > profile > built-in. The first file found holds alone.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from kvprobe.assets import profile_path
from kvprobe.errors import UsageError
from kvprobe.policy import Policy, did_you_mean, overlay, parse_policy
from kvprobe.render.line import harmless

SCHEMA = "kvprobe.config/v1"
_TOP = ("schema", "profile", "policy_file", "state_dir", "defaults", "policy")
_META = "kvprobe.settings"


class ConfigurationError(click.ClickException):
    """A wrong configuration file, found while Click still parses: told like a wrong call, in the format asked for."""

    def __init__(self, error: UsageError, ctx: click.Context) -> None:
        super().__init__(str(error))
        self.ctx = ctx

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kvprobe: {harmless(self.message)}", err=True, file=file)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration file; ``source`` is how reports name it."""

    source: str | None = None
    data: dict[str, Any] = {}

    @property
    def policy(self) -> dict[str, Any]:
        """Overrides of single policy values."""
        return dict(self.data.get("policy", {}))

    @property
    def state_dir(self) -> str | None:
        value = self.data.get("state_dir")
        return str(value) if value else None


def places() -> list[Path]:
    """Where configuration is looked for without ``--config``; the first that has any holds."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return [
        Path("kvprobe.toml"),
        Path("pyproject.toml"),
        home / "kvprobe" / "kvprobe.toml",
        Path("/etc/kvprobe/kvprobe.toml"),
    ]


def find(asked: str | None) -> Settings:
    """The settings of ``asked``, or of the first place that has any. Raises UsageError."""
    for path in [Path(asked)] if asked else places():
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if asked:
                raise UsageError(f"--config {asked}: {error.strerror}.") from None
            continue
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}.") from None
        in_pyproject = path.name == "pyproject.toml"
        if in_pyproject and "[tool.kvprobe" not in text:
            continue
        data = _toml(text, str(path))
        if in_pyproject:
            data = data.get("tool", {}).get("kvprobe", {})
        return Settings(
            source=f"{path} [tool.kvprobe]" if in_pyproject else str(path), data=_checked(data, path)
        )
    return Settings()


def config_callback(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Eager: the file's values become the defaults of the options that are read after this one."""
    try:
        settings = find(value)
        defaults = option_defaults(settings, ctx.command, ctx.info_name or "")
    except UsageError as error:
        raise ConfigurationError(error, ctx) from None
    ctx.meta[_META] = settings
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def settings_of(ctx: click.Context) -> Settings:
    """The settings that :func:`config_callback` found for this run."""
    found = ctx.meta.get(_META)
    return found if isinstance(found, Settings) else Settings()


def option_defaults(settings: Settings, command: click.Command, name: str) -> dict[str, Any]:
    """Parameter name -> value for ``command``, from ``[defaults]`` and its own section. Raises UsageError."""
    known = options_of(command)
    found: dict[str, Any] = {}
    for key in ("profile", "policy_file"):
        option = "policy" if key == "policy_file" else key
        if key in settings.data and option in known:
            value = settings.data[key]
            found[option] = str(_beside(settings, value)) if key == "policy_file" else value
    sections = ((settings.data.get("defaults", {}), False), (settings.data.get(name, {}), True))
    for section, own in sections:
        for key, value in section.items():
            option = str(key).replace("_", "-")
            if option in known:
                found[known[option]] = _plain(value)
            elif own or option not in _options_of_all():
                where = f"[{name}]" if own else "[defaults]"
                hint = did_you_mean(option, known)
                raise UsageError(
                    f"{settings.source}: {where} sets {key!r}, which is no option of kvprobe {name}.", hint
                )
    return found


def options_of(command: click.Command) -> dict[str, str]:
    """Long option name without dashes -> parameter name, for the options that a file may set."""
    by_hand = ("config", "help", "unknown-is", "record", "replay")
    return {
        name.lstrip("-"): str(param.name)
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name.startswith("--") and name.lstrip("-") not in by_hand
    }


def load_policy(name: str | None, file: str | None, settings: Settings) -> Policy:
    """``--policy FILE`` or the profile ``name``, with the configuration file's ``[policy]`` on top. Raises UsageError."""
    if file and name:
        raise UsageError("--policy and --profile exclude each other.")
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"Policy {file} cannot be read: {reason}.") from None
        policy = parse_policy(_extending(text), file, load_profile)
    else:
        policy = load_profile(name or "default")
    if settings.policy:
        merged = overlay(policy, settings.policy, str(settings.source))
        policy = msgspec.structs.replace(merged, source=f"{policy.source} + {settings.source}")
    return policy


def load_profile(name: str) -> Policy:
    """A policy of ``checks/profiles`` by name. Raises UsageError that lists the names there are."""
    return parse_policy(profile_path(name).read_text(encoding="utf-8"), f"profile {name}", load_profile)


def _extending(text: str) -> str:
    """A file of the user's that says nothing about it stands on the default profile."""
    try:
        silent = "extends" not in tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return f'extends = "default"\n{text}' if silent else text


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source} is not valid TOML: {error}.") from None


def _checked(data: Any, path: Path) -> dict[str, Any]:
    from kvprobe.cli import COMMANDS

    if not isinstance(data, dict):
        raise UsageError(f"{path}: [tool.kvprobe] must be a table.")
    known = (*_TOP, *COMMANDS)
    for key, value in data.items():
        if key not in known:
            raise UsageError(f"{path}: unknown key {key!r}.", did_you_mean(key, known))
        # "schema" names the file's own format here, not the command.
        section = (key in COMMANDS and key != "schema") or key in ("defaults", "policy")
        if section and not isinstance(value, dict):
            raise UsageError(f"{path}: {key} must be a table; write [{key}].")
        if key in ("profile", "policy_file", "state_dir") and not isinstance(value, str):
            raise UsageError(f"{path}: {key} must be text.")
    if data.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"{path} has schema {data['schema']!r}; this kvprobe reads {SCHEMA}.")
    return data


def _beside(settings: Settings, value: str) -> Path:
    """A path in a configuration file counts from that file."""
    return Path(str(settings.source).removesuffix(" [tool.kvprobe]")).parent / value


def _options_of_all() -> set[str]:
    from kvprobe.cli import COMMANDS, cli

    found: set[str] = set()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        found |= set(options_of(command)) if command else set()
    return found


def _plain(value: Any) -> Any:
    """Options read text; switches and lists stay what they are."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool) else str(value)
