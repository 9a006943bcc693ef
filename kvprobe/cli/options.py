"""The options that every command shares, and the values they hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from kvprobe.cli import settings
from kvprobe.render import RENDERERS

F = TypeVar("F", bound=Callable[..., Any])


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the common options."""

    format: str = "table"
    output: str | None = None
    write: tuple[str, ...] = ()
    summary_file: str | None = None
    verbose: bool = False
    quiet: bool = False
    config: str | None = None
    profile: str | None = None
    policy: str | None = None
    fail_on: str | None = None
    unknown_is: str | None = None
    baseline: str | None = None
    color: str = "auto"
    progress: str = "auto"
    record: str | None = None
    replay: str | None = None


_OUTPUT_OPTIONS = (
    click.option("-f", "--format", type=click.Choice(list(RENDERERS)), default="table", show_default=True, help="Output format."),
    click.option("-o", "--output", metavar="FILE", help="Write the report to FILE (replaced as a whole) instead of stdout."),
    click.option("--write", metavar="FORMAT=FILE", multiple=True, help="Write the report in a further format, too. Repeatable."),
    click.option("--summary-file", metavar="FILE", help="Verdict and problems in 4 KiB, for /dev/termination-log."),
    click.option("-v", "--verbose", is_flag=True, help="Details of passing checks; tracebacks of crashes."),
    click.option("-q", "--quiet", is_flag=True, help="The verdict line only; no progress."),
    click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours."),
    click.option("--config", metavar="FILE", envvar="KVPROBE_CONFIG", is_eager=True, callback=settings.config_callback,
                 help="Configuration file (default: ./kvprobe.toml, pyproject.toml, ~/.config/kvprobe, /etc/kvprobe)."),
)  # fmt: skip
_POLICY_OPTIONS = (
    click.option("--profile", metavar="NAME", help="Policy from checks/profiles (default: default)."),
    click.option("--policy", metavar="FILE", help="Policy from a TOML file."),
    click.option("--fail-on", type=click.Choice(["fail", "warn"]), help="What makes a NO-GO (default: the policy's, fail)."),
    click.option("--unknown-is", type=click.Choice(["go"]), help="Exit 0 on UNKNOWN; typed by hand only, the report still says UNKNOWN."),
)  # fmt: skip
_RUN_OPTIONS = (
    click.option("--baseline", metavar="FILE|stored", help="Compare with an earlier report, or with the one of `kvprobe baseline set`."),
    click.option("--progress", type=click.Choice(["auto", "on", "off"]), default="auto", help="Progress on stderr."),
    click.option("--record", metavar="DIR", help="Write every input of this run to DIR, identities replaced."),
    click.option("--replay", metavar="DIR", help="Run on the inputs of a recorded run, on any machine."),
)  # fmt: skip


def _adding(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        @click.pass_context
        @functools.wraps(function)
        def wrapper(ctx: click.Context, /, **params: Any) -> Any:
            values = {name: params.pop(name) for name in Common.__struct_fields__ if name in params}
            return function(ctx, Common(**values), **params)

        wrapped: F = wrapper  # type: ignore[assignment]
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def common_options(function: F) -> F:
    """Add the common options; the command gets them as ``common``, and Click's context as ``ctx``."""
    return _adding((*_OUTPUT_OPTIONS, *_POLICY_OPTIONS, *_RUN_OPTIONS))(function)


def output_options(function: F) -> F:
    """Only the options that say how a report is shown; for commands that print a stored one."""
    return _adding(_OUTPUT_OPTIONS)(function)


def judging_options(function: F) -> F:
    """Options that say how a stored report is judged and shown."""
    return _adding((*_OUTPUT_OPTIONS, *_POLICY_OPTIONS))(function)
