"""Launch commands -> instances of the pair: role, host, version, options with vLLM's defaults filled in."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kvprobe.formats.kv_transfer_config import KvConfig
from kvprobe.formats.kv_transfer_config_connectors import CONNECTORS, NIXL
from kvprobe.formats.launch_model import Command, HostEntry, Problem, Setting, is_dynamic
from kvprobe.formats.serve_command import ServeCommand
from kvprobe.formats.serve_command_surface import Version

_PREFILL = re.compile(r"(?<![a-z])(?:prefill(?:er|ers|s)?|producer)(?![a-z])|prefill", re.IGNORECASE)
_DECODE = re.compile(r"(?<![a-z])(?:decod(?:e|er|ers|es)|consumer)(?![a-z])|decode(?!r-only)", re.IGNORECASE)
LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|::1|ip6-localhost)$", re.IGNORECASE)
ANY_ADDRESS = re.compile(r"^(?:0\.0\.0\.0|::|\*)$")
TRUE = {"true", "1", "yes", "on"}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM engine of the pair."""

    command: Command
    serve: ServeCommand
    role: str | None
    """``prefill``, ``decode``, ``both`` (named so nowhere, kv_both) or None."""
    role_from: str
    """How the role is known: ``--prefill``, the proxy's ports, the name, kv_role."""
    version: Version | None
    version_from: str = ""
    host: HostEntry | None = None
    kv: KvConfig | None = None

    @property
    def where(self) -> str:
        return self.command.where

    @property
    def env(self) -> dict[str, Setting]:
        return self.command.env

    def setting(self, name: str) -> str | None:
        """An environment variable's text; None if it is unset."""
        found = self.env.get(name)
        return found.value if found else None

    def place(self, name: str) -> str:
        """Where a variable is set; the instance itself if it is not."""
        found = self.env.get(name)
        return found.where if found else self.where

    def size(self, option: str) -> int | None:
        """A parallel size, 1 by default; None if it is not known here."""
        return self.serve.number(option, 1)

    @property
    def connectors(self) -> tuple[KvConfig, ...]:
        return self.kv.everyone() if self.kv else ()

    @property
    def nixl(self) -> KvConfig | None:
        """Its NIXL configuration, also inside a MultiConnector."""
        return next((c for c in self.connectors if c.connector in NIXL), None)

    @property
    def pd(self) -> KvConfig | None:
        """The connector that hands KV over between prefill and decode."""
        return next(
            (c for c in self.connectors if c.connector in CONNECTORS and CONNECTORS[c.connector].pd), None
        )

    @property
    def uses_ucx(self) -> bool:
        """NIXL with its default backend, which is what UCX_* variables steer."""
        backends = self.nixl.extra.get("backends", ["UCX"]) if self.nixl else []
        return self.nixl is not None and isinstance(backends, list) and "UCX" in backends

    @property
    def http_port(self) -> int | None:
        return self.serve.number("--port", 8000)

    @property
    def gpus_needed(self) -> int | None:
        """GPUs of one engine on its host; None if a size is not known here."""
        sizes = [self.size("--tensor-parallel-size"), self.size("--pipeline-parallel-size"), self.local_dp]
        total = 1
        for size in sizes:
            if size is None:
                return None
            total *= size
        return total

    @property
    def local_dp(self) -> int | None:
        """Data-parallel ranks that this command starts."""
        if self.serve.has("--data-parallel-rank"):
            return 1
        size = self.size("--data-parallel-size")
        return self.serve.number("--data-parallel-size-local", size) if size is not None else None

    @property
    def first_rank(self) -> int | None:
        """The rank that counting starts at; None if it is not known here (``$START_RANK``)."""
        ranks = [self.serve.number(o, 0) for o in ("--data-parallel-rank", "--data-parallel-start-rank")]
        return None if None in ranks else max(rank or 0 for rank in ranks)

    @property
    def side_channel_ports(self) -> range | None:
        """The ports NIXL's handshake listens on; None without NIXL or if the base is not known here."""
        text = self.setting("VLLM_NIXL_SIDE_CHANNEL_PORT")
        ranks, first = self.local_dp, self.first_rank
        old = self.version is not None and self.version <= (0, 11, 0)
        if (
            self.nixl is None
            or ranks is None
            or first is None
            or (text is not None and not re.fullmatch(r"\d{1,5}", text))
        ):
            return None
        base = int(text) if text else 5557 if old else 5600
        if old:
            workers = self.size("--tensor-parallel-size") or 1
            return range(base + first * workers, base + (first + ranks) * workers)
        return range(base + first, base + first + ranks)

    @property
    def devices(self) -> tuple[str, ...] | None:
        """GPUs it takes on its host: named, or the first N; None if that cannot be told."""
        text = next(
            (self.setting(v) for v in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if self.setting(v)),
            None,
        )
        box = self.command.box
        offered: list[str] | None = None
        if box is not None:
            if box.gpus.startswith("device="):
                offered = box.gpus.removeprefix("device=").split(",")
            elif text is None and self.setting("NVIDIA_VISIBLE_DEVICES") not in (None, "all", "void"):
                offered = (self.setting("NVIDIA_VISIBLE_DEVICES") or "").split(",")
            elif box.kind == "pod" or box.gpus not in ("", "all"):
                return None
        if text is not None:
            if is_dynamic(text):
                return None
            chosen = [d.strip() for d in text.split(",") if d.strip()]
            if offered and all(d.isdigit() for d in chosen):
                chosen = [offered[int(d)] for d in chosen if int(d) < len(offered)]
            return self._first(chosen)
        if offered is not None:
            return self._first(offered)
        needed = self.gpus_needed
        return tuple(str(n) for n in range(needed)) if needed is not None and needed <= 64 else None

    def _first(self, devices: list[str]) -> tuple[str, ...]:
        return tuple(devices[: self.gpus_needed or len(devices)])

    @property
    def bidirectional(self) -> bool:
        return self.nixl is not None and truth(self.nixl.extra.get("bidirectional_kv_xfer"))

    @property
    def replicas(self) -> int:
        box = self.command.box
        return box.replicas if box and box.replicas is not None else 1

    @property
    def hma(self) -> bool | None:
        """Whether the hybrid KV cache manager is on, as far as the command decides it (0.20.2 and later hash it)."""
        given = self.serve.switched("--disable-hybrid-kv-cache-manager")
        if given is not None:
            return not given
        leaves = [CONNECTORS.get(c.connector) for c in self.connectors]
        if any(c is None for c in leaves):
            return None
        return all(c.hma for c in leaves if c)


def truth(value: Any) -> bool:
    """As Python's ``if value`` in vLLM: any non-empty text counts as true."""
    return bool(value)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A prefill and a decode instance that are meant to work together."""

    prefill: Instance
    decode: Instance
    one_host: bool | None
    """True: one host and its loopback is shared; False: different ones; None: nobody said."""
    one_machine: bool | None
    """True: the same GPUs' node, even if each has its own network namespace."""

    @property
    def where(self) -> str:
        left, right = self.prefill.where, self.decode.where
        file = self.prefill.command.file
        if file and file == self.decode.command.file and left.startswith(file) and right.startswith(file):
            return f"{left} +{right[len(file) :]}"
        return f"{left} / {right}"


class Helper(msgspec.Struct, frozen=True, kw_only=True):
    """A program beside the engines: a proxy or a benchmark."""

    command: Command
    serve: ServeCommand


class LintFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the rules of ``lint`` look at."""

    instances: tuple[Instance, ...]
    pairs: tuple[Pair, ...]
    proxies: tuple[Helper, ...] = ()
    benches: tuple[Helper, ...] = ()
    renders: tuple[Helper, ...] = ()
    """`vllm launch render`: front ends without a GPU."""
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    """Files that hold no launch themselves."""
    variants: tuple[tuple[Instance, Instance], ...] = ()
    """Instances that cannot run together and so count as alternatives."""
    one_port_space: tuple[tuple[Instance, Instance], ...] = ()
    """Pairs of instances that share a network namespace."""
    one_machine: tuple[tuple[Instance, Instance], ...] = ()
    """Pairs of instances that share a machine's GPUs."""


def role_of(text: str) -> str | None:
    """``prefill`` or ``decode`` if exactly one of them is in a name; None otherwise."""
    prefill, decode = bool(_PREFILL.search(text)), bool(_DECODE.search(text))
    if prefill == decode:
        return None
    return "prefill" if prefill else "decode"
