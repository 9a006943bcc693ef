"""What else a log says about each instance in it: throughput lines, role, version, lanes. Decides "no KV came"."""

from __future__ import annotations

import re
from typing import Any

STATS_LIMIT = 2000
"""Throughput lines looked at per file (five hours at one in 10 s); the question they answer needs no more."""
_STATS = re.compile(
    r"Avg prompt throughput: (?P<prompt>\d+(?:\.\d+)?) tokens/s, Avg generation throughput: (?P<generation>\d+(?:\.\d+)?) tokens/s, "
    r"Running: (?P<running>\d{1,12}) reqs, Waiting: (?P<waiting>\d{1,12}) reqs.*?Prefix cache hit rate: (?P<prefix>\d+(?:\.\d+)?)%"
    r"(?:.*?External prefix cache hit rate: (?P<external>\d+(?:\.\d+)?)%)?"
)
_LANES = re.compile(r"rma_am\(tcp/(?P<device>[^)\s]+)")
_FAST_LANE = re.compile(r"\b(?:device|rma|rma_bw)\([^)]*cuda_ipc")
_AM_CUDA = re.compile(r"\bam\([^)]*cuda_ipc")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v(\d+\.\d+[\w.+]*)\)")
_ROLE = re.compile(
    r"'kv_role': '(kv_producer|kv_consumer)'|kv_role='(kv_producer|kv_consumer)'(?!.*deprecated)"
)
_RANK = re.compile(r"\((Worker\S*|EngineCore\S*) pid=\d+\).*NIXL compatibility check passed")
_NAMED = re.compile(r"(?<![a-z])(decode|prefill)(?:r|er)?(?![a-z])", re.IGNORECASE)
_GENERATES = 0.002
"""Generated per prompt token. A prefill instance makes one token a prompt: less than this from 500 tokens on."""
_HOT_PREFIX = 50.0

LITERALS = (
    b"Avg prompt throughput: ",
    b"rma_am(tcp/",
    b"Initializing a V1 LLM engine (v",
    b"non-default args: ",
    b"NIXL compatibility check passed",
)


class Stream:
    """One instance: a file, or a container inside a file."""

    def __init__(self, file: str, source: str | None) -> None:
        self.file, self.source = file, source
        self.stats = 0
        self.prompt = self.generation = 0.0
        self.prompt_max = 0.0
        self.waiting_max = 0
        self.prefix_hit: float | None = None
        self.external_hit: float | None = None
        self.transfers = 0
        self.failures = 0
        self.other_connector = False
        self.version: str | None = None
        self.configured: str | None = None
        self.lanes: str | None = None
        self.fast_lane = self.am_cuda = False
        self.ranks: set[str] = set()
        """Worker ranks whose handshake the log shows, by data-parallel index too."""

    def take(self, text: str) -> None:
        """A plain line with one of :data:`LITERALS`."""
        stats = _STATS.search(text)
        if stats:
            self._throughput(stats)
            return
        lanes = _LANES.search(text)
        if lanes:
            self.lanes = f"tcp/{lanes['device']}"
            self.fast_lane |= bool(_FAST_LANE.search(text))
            self.am_cuda |= bool(_AM_CUDA.search(text))
            return
        rank = _RANK.search(text)
        if rank:
            if len(self.ranks) < 4096:
                self.ranks.add(rank[1])
            return
        version = _VERSION.search(text)
        if version:
            self.version = version[1]
        role = _ROLE.search(text) if "non-default args: " in text else None
        if role:
            self.configured = "prefill" if "kv_producer" in (role[1], role[2]) else "decode"

    def _throughput(self, match: re.Match[str]) -> None:
        self.stats += 1
        prompt, generation = float(match["prompt"]), float(match["generation"])
        self.prompt += prompt
        self.generation += generation
        self.prompt_max = max(self.prompt_max, prompt)
        self.waiting_max = max(self.waiting_max, int(match["waiting"]))
        self.prefix_hit = float(match["prefix"])
        if match["external"] is not None:
            self.external_hit = max(self.external_hit or 0.0, float(match["external"]))

    @property
    def role(self) -> str | None:
        """``decode`` or ``prefill`` from the configuration, else from the name of container or file; None unknown."""
        if self.configured:
            return self.configured
        for name in (self.source, self.file.rsplit("/", 1)[-1]):
            found = {m[1].lower() for m in _NAMED.finditer(name or "")}
            if len(found) == 1:
                return found.pop()
        return None

    @property
    def prefills_itself(self) -> bool:
        """Decode that computes prompts: prompt throughput, real generation, nothing external, no transfer at all."""
        if self.role != "decode" or self.transfers or self.failures or self.other_connector:
            return False
        return self.prompt > 0 and self.generation > _GENERATES * self.prompt and not self.external_hit

    @property
    def reused_prompts(self) -> bool:
        return self.role != "prefill" and (self.prefix_hit or 0.0) >= _HOT_PREFIX

    def result(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "source": self.source,
            "role": self.role,
            "vllm_version": self.version,
            "throughput_lines": self.stats,
            "prompt_tokens_per_second_mean": self.prompt / self.stats if self.stats else None,
            "generation_tokens_per_second_mean": self.generation / self.stats if self.stats else None,
            "waiting_max": self.waiting_max if self.stats else None,
            "prefix_cache_hit_percent": self.prefix_hit,
            "external_prefix_cache_hit_percent_max": self.external_hit,
            "rma_lane": self.lanes,
            "ranks_seen": len(self.ranks) or None,
        }
