"""What the readers of launch files agree on: commands with their environment, container and place."""

from __future__ import annotations

import re

import msgspec

_DYNAMIC = re.compile(r"\$[({A-Za-z_0-9@*#]|`|\{\{")


class Setting(msgspec.Struct, frozen=True):
    """The value of an environment variable and where it was set."""

    value: str
    where: str

    @property
    def dynamic(self) -> bool:
        """True if the value is only known when the script or the pod runs: ``$(hostname -I)``, a pod IP."""
        return is_dynamic(self.value)


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """The container or pod a command runs in."""

    kind: str
    """``docker``, ``compose`` or ``pod``."""
    name: str = ""
    image: str = ""
    unit: str = ""
    """What shares one network namespace: the pod's document, the container."""
    network_host: bool = False
    pid: str = ""
    """``host``, ``container:NAME``, ``shared`` (one pod, shareProcessNamespace) or empty: its own."""
    ipc: str = ""
    shm: str = ""
    gpus: str = ""
    """``all``, ``device=0,1`` or a count; empty: not said."""
    replicas: int | None = None
    namespace: str = ""
    node: str = ""
    rdma: bool = False
    """It asks for RDMA devices."""
    restart: bool = False
    """It is kept running (restart policy, a controller): somebody relies on it."""
    default_entrypoint: bool = False
    """The arguments go to the image's own entrypoint."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One program call found in the inputs, after the shell's (or YAML's) own unquoting."""

    argv: tuple[str, ...]
    env: dict[str, Setting] = {}
    file: str = ""
    line: int | None = None
    name: str = ""
    """Name of the service, container or unit, if it has one."""
    hints: tuple[str, ...] = ()
    """Words that tell the role: names, labels, the comment above, the log file. Nearest first."""
    box: Box | None = None
    repeats: bool = False
    """Inside a loop whose items are not known."""
    elsewhere: bool = False
    """Started through srun, mpirun or the like: on a node that this text does not name."""
    background: bool = False
    """Ends with ``&``: the next command of the script starts beside it."""
    raw: str = ""
    """The command as written, to look for quotes that the shell removed."""

    @property
    def where(self) -> str:
        """``prefill.sh line 2``, ``deploy.yaml VllmDecodeWorker``."""
        place = self.file
        if self.name and self.name not in place:
            place = f"{place} {self.name}"
        return f"{place} line {self.line}" if self.line is not None else place


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with the text itself; ``code`` is a label of the findings."""

    code: str
    text: str
    where: str
    fix: str
    sure: bool = True
    """False where a real shell may understand what this reader does not."""


class HostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a hosts file or one ``--host``: which role runs where."""

    role: str
    name: str
    address: str = ""
    note: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read from one or several inputs."""

    commands: tuple[Command, ...] = ()
    problems: tuple[Problem, ...] = ()
    hosts: tuple[HostEntry, ...] = ()
    unused_env: dict[str, dict[str, Setting]] = {}
    """Environment files that no command was seen to read, by file name."""
    files: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Files that start nothing themselves, such as a store's JSON or notes."""


def is_dynamic(text: str) -> bool:
    """Whether a value holds something that only the running shell, pod or template engine knows."""
    return bool(_DYNAMIC.search(text))


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rsplit("/", 1)[-1]
