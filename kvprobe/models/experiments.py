"""Which changes could explain a slow transfer: each one is run, none is believed.

An experiment is a change to the set-up of the two sides. A *cause* takes something away that stands in the way
(an environment variable, a visibility, an allocator); a *remedy* goes round it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvprobe.models.transfer import Setup

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
UCX_VARIABLES = (
    "UCX_TLS",
    "UCX_NET_DEVICES",
    "UCX_CUDA_IPC_ENABLE_GET_ZCOPY",
    "UCX_PROTO_ENABLE",
    "UCX_RMA_PPLN_ENABLE",
    "UCX_MEMTYPE_CACHE",
    "UCX_CUDA_COPY_ASYNC_MEM_TYPE",
    "UCX_RCACHE_ENABLE",
)
WATCHED = (*ALLOCATOR_VARIABLES, *UCX_VARIABLES)
"""Variables whose presence makes them suspects."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One change to try."""

    name: str
    kind: str
    """``cause`` or ``remedy``."""
    setup: Setup
    operation: str = "READ"
    explains: str
    """What it means when this change makes the transfer fast."""
    settings: tuple[str, ...]
    """What an operator writes, copyable."""
    prefill_cost: bool = False
    """It moves work to the prefill side, which is measured and counted."""

    @property
    def adds(self) -> bool:
        """It sets something that is not set now, rather than taking something away."""
        return any(not setting.startswith("unset ") for setting in self.settings)


def suspects(
    setup: Setup, environ: Mapping[str, str], operation: str, keep: Sequence[str] = ()
) -> tuple[Experiment, ...]:
    """The short list for this set-up and environment, likeliest first; nothing that is already so.

    ``keep`` names variables that are given and must not be taken away; ``all`` keeps every one.
    """
    found: list[Experiment] = []

    def add(
        name: str, kind: str, explains: str, settings: Sequence[str], *, op: str = operation, **change: object
    ) -> None:
        changed = msgspec.structs.replace(setup, **change)
        found.append(
            Experiment(name=name, kind=kind, setup=changed, operation=op, explains=explains, settings=tuple(settings),
                       prefill_cost=changed.kv_buffer_device == "cpu")
        )  # fmt: skip

    effective: dict[str, str | None] = {**environ, **setup.env}
    kept = WATCHED if "all" in keep else tuple(keep)
    allocator = {
        k: None
        for k in ALLOCATOR_VARIABLES
        if "expandable_segments" in (effective.get(k) or "") and k not in kept
    }
    if allocator and setup.memory == "vram":
        names = " and ".join(allocator)
        add(
            f"without {names}", "cause",
            "expandable segments: this memory has no legacy CUDA IPC handle, so cuda_ipc refuses it and UCX emulates",
            [f"unset {name}" for name in allocator], env={**setup.env, **allocator},
        )  # fmt: skip
    ucx = {k: None for k in UCX_VARIABLES if effective.get(k) and k not in kept}
    for name in ucx:
        add(
            f"without {name}",
            "cause",
            f"{name}={effective[name]} keeps the fast transport away",
            [f"unset {name}"],
            env={**setup.env, name: None},
        )
    if len(ucx) > 1:
        add("without any UCX variable", "cause", "the UCX variables together keep the fast transport away", [f"unset {n}" for n in ucx], env={**setup.env, **ucx})  # fmt: skip
    if setup.processes == 1:
        add("a process per side", "cause", "both agents in one process: cuda_ipc refuses its own process", ["run prefill and decode as separate processes"], processes=2)  # fmt: skip
    if setup.memory == "vram":
        other = "both" if setup.visibility == "one" else "one"
        add(f"{other} GPUs visible per process" if other == "both" else "one GPU visible per process", "cause", f"the GPU visibility of the processes ({setup.visibility})", _visible(setup, other), visibility=other)  # fmt: skip
        if not effective.get("UCX_CUDA_IPC_ENABLE_GET_ZCOPY") and operation == "READ":
            add("UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on", "cause", "UCX switches READ over cuda_ipc off where NVML shows no complete NVLink set (vllm#52607)", ["export UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on"], env={**setup.env, "UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "on"})  # fmt: skip
    pushed = "WRITE" if operation == "READ" else "READ"
    add(f"{pushed} instead of {operation}", "remedy", f"{operation} is the slow direction on this pair", ["NixlPushConnector" if pushed == "WRITE" else "NixlConnector"], op=pushed)  # fmt: skip
    if setup.memory == "vram":
        if effective.get("UCX_RMA_PPLN_ENABLE") != "y":
            add("UCX_RMA_PPLN_ENABLE=y", "remedy", "UCX's pipeline through pinned host memory beats its software emulation", ["export UCX_RMA_PPLN_ENABLE=y"], env={**setup.env, "UCX_RMA_PPLN_ENABLE": "y"})  # fmt: skip
        if setup.kv_buffer_device != "cpu" and operation == "READ":
            add("kv_buffer_device=cpu", "remedy", "a host buffer on both sides goes round the GPU path", ['"kv_buffer_device": "cpu"'], kv_buffer_device="cpu")  # fmt: skip
    add("8 NIXL threads", "remedy", "posting descriptors is bound by NIXL's threads", ['"kv_connector_extra_config": {"num_threads": 8}'], backend={"num_threads": "8"})  # fmt: skip
    return tuple(found)


def _visible(setup: Setup, visibility: str) -> list[str]:
    """vLLM takes the first visible GPU, so each side lists its own first."""
    own, other = setup.prefill_gpu, setup.decode_gpu
    if visibility == "one":
        return [f"prefill: export CUDA_VISIBLE_DEVICES={own}", f"decode: export CUDA_VISIBLE_DEVICES={other}"]
    return [
        f"prefill: export CUDA_VISIBLE_DEVICES={own},{other}",
        f"decode: export CUDA_VISIBLE_DEVICES={other},{own}",
    ]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that was run."""

    experiment: Experiment
    seconds: float | None
    """Transfer alone, median; None: it could not be measured."""
    samples: int = 0
    staging_seconds: float = 0.0
    """Copies on both sides, where the experiment stages through host memory."""
    transport: str | None = None
    failure: str | None = None

    @property
    def whole_seconds(self) -> float | None:
        return None if self.seconds is None else self.seconds + self.staging_seconds


def explanations(baseline_seconds: float, trials: Sequence[Trial], factor: float = 1.5) -> tuple[Trial, ...]:
    """Trials that made it at least ``factor`` times faster as a whole; causes before remedies, fastest first."""
    good = [t for t in trials if t.whole_seconds is not None and baseline_seconds / t.whole_seconds >= factor]
    return tuple(sorted(good, key=lambda t: (t.experiment.kind != "cause", t.whole_seconds or 0)))
