"""The command line. Each command's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import click

from kvprobe import __version__
from kvprobe.errors import ExitCode, KvprobeError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "preflight": "Measure and judge: does P/D pay on this hardware for this model?",
    "topo": "Which GPUs can reach each other, and how (NVML, or saved nvidia-smi text).",
    "transfer": "How fast this descriptor list moves, over which transport, and why.",
    "tune": "Which setting makes the transfer faster: measured, ranked, with its costs.",
    "kvsize": "Bytes of KV cache per token, per rank and per prompt, exact or refused.",
    "logs": "What a decode log or /metrics says about KV transfers, and what went wrong in it.",
    "lint": "Will this prefill/decode pair start, match and stay correct? Reads launch files, runs nothing.",
    "estimate": "Transfer, TTFT tax and advice for a link that is not here: named, given or fitted.",
    "compare": "Did P/D beat colocated? Two results of `vllm bench serve`, or two rate sweeps.",
    "connectors": "What each KV connector of this vLLM needs, and whether this machine has it.",
    "template": "Is bidirectional KV transfer safe with this chat template, and what does rendering cost?",
    "live": "What does the running deployment really add to TTFT? Asks the servers themselves.",
    "calibrate": "Fit the TTFT tax's assumed terms to live runs, for preflight and estimate.",
    "last": "The newest stored run, for monitors; a stale one is UNKNOWN.",
    "report": "Print a stored report again, in any format.",
    "judge": "Judge a stored report by another policy.",
    "baseline": "Keep a good run and compare later runs with it.",
    "explain": "What a check checks, why it matters, what to do.",
    "config": "Which configuration value holds, and where it came from.",
    "gates": "Ready-made cron, systemd, CI, Kubernetes and monitoring files.",
    "env": "Versions and settings for a bug report, secrets removed.",
    "schema": "The JSON Schema of the report.",
}
"""Command -> one line of help. The module is ``kvprobe.cli.<command>``, its function ``command``."""

EXIT_CODES = """\b
Exit codes (every format but nagios):
  0    GO, warnings included (unless --fail-on warn)
  1    NO-GO
  2    usage or configuration error
  3    UNKNOWN: not measured, timeout, crash
  130  interrupted"""


class LazyGroup(click.Group):
    """Knows every command's name and help line; imports a command's module when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kvprobe.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        if any(param.name == "format" for param in command.params):
            command.epilog = command.epilog or EXIT_CODES
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and help lines as they stand here: Click would import every command for them."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": "KVPROBE", "help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, "-V", "--version", prog_name="kvprobe")
def cli() -> None:
    """Will prefill/decode disaggregation of vLLM pay here? Measured, before the rollout.

    \b
    kvprobe preflight --model Qwen/Qwen2.5-7B-Instruct        measure and judge this node
    kvprobe kvsize --model meta-llama/Llama-3.1-70B --tp 4    how many bytes move
    kubectl logs deploy/decode | kvprobe logs -               what the engine itself says
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run kvprobe and return the exit code: 0 GO, 1 NO-GO, 2 usage, 3 UNKNOWN, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = any(a in ("-v", "--verbose") for a in arguments)
    try:
        code = cli.main(args=arguments, prog_name="kvprobe", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.GO
    except click.ClickException as error:
        from kvprobe.cli.failure import report_usage_error

        error.show()
        return report_usage_error(error, arguments)
    except UsageError as error:
        _tell(error)
        return ExitCode.USAGE
    except KvprobeError as error:
        _tell(error)
        return ExitCode.UNKNOWN
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvprobe: interrupted.", err=True)
        return ExitCode.INTERRUPTED
    except SystemExit as end:
        # Click's own: 0 after shell completion; 1 when the reader of our stdout (head) has gone, which would be NO-GO.
        return ExitCode.UNKNOWN if end.code else ExitCode.GO
    except BrokenPipeError:
        # The reader of our stdout (head, grep -q) has gone: nobody is left to tell.
        sys.stdout = None
        return ExitCode.UNKNOWN
    except Exception as error:  # noqa: BLE001  a crash is "unknown", never "no-go"
        if verbose:
            raise
        kind = type(error).__name__
        click.echo(
            f"kvprobe: internal error, {kind}: {error}. Run again with -v and report the traceback.", err=True
        )
        return ExitCode.UNKNOWN


def _tell(error: KvprobeError) -> None:
    from kvprobe.render.line import harmless

    click.echo(f"kvprobe: {harmless(str(error))}", err=True)


def entry_point() -> None:
    """The ``kvprobe`` program. SIGTERM (systemd, Kubernetes, timeout) ends the run as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
