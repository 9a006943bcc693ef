"""What every family of caches gets: the config, the options, and the arithmetic they share."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvprobe.models.kv_layout.dtypes import element_bytes
from kvprobe.models.kv_layout.fields import Fields
from kvprobe.models.kv_layout.types import Assumption, LayerGroup, LayoutOptions, Refused

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)


@dataclass
class Context:
    """One run of the calculation."""

    fields: Fields
    options: LayoutOptions
    architecture: str
    dtype: str
    """The model's element type."""
    kv_dtype: str
    """The cache's element type after resolution."""
    kv_dtype_from: str
    gpu_arch: str
    assumptions: list[Assumption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.fields.name

    @property
    def element(self) -> int:
        """Bytes of one cache element."""
        return element_bytes(self.fields, self.kv_dtype)

    def layers(self) -> int:
        return self.fields.count(*LAYERS)

    def heads(self) -> int:
        return self.fields.count(*HEADS)

    def kv_heads(self) -> int:
        """KV heads of the whole model, of the first key present; the attention heads if there is none."""
        return self.fields.optional(*KV_HEADS, least=1) or self.heads()

    def head_dim(self, default: int | None = None) -> int:
        """``head_dim`` as written, else ``default``, else hidden size // heads."""
        written = self.fields.optional("head_dim") or self.fields.optional("hidden_size_per_head")
        if written:
            return written
        if default:
            return default
        hidden, heads = self.fields.count(*HIDDEN), self.heads()
        if hidden < heads:
            raise Refused(
                f"{self.name}: {hidden} hidden units cannot be split into {heads} heads.", "bad_value"
            )
        return hidden // heads

    def shard(self, kv_heads: int, heads: int | None = None) -> int:
        """KV heads that one rank stores: the quotient, or one copy where there are fewer heads than ranks."""
        tp, heads = self.options.tp, heads if heads is not None else self.heads()
        if heads % tp:
            raise Refused(
                f"{self.name}: {heads} attention heads cannot be divided over --tp {tp}.",
                "heads_not_divisible_by_tp",
                f"Use a tensor-parallel size that divides {heads}.",
            )
        if kv_heads >= tp:
            if kv_heads % tp:
                raise Refused(
                    f"{self.name}: {kv_heads} KV heads cannot be divided over --tp {tp}.",
                    "kv_heads_not_divisible_by_tp",
                    f"Use a tensor-parallel size that divides {kv_heads}.",
                )
            return kv_heads // tp
        if tp % kv_heads:
            raise Refused(
                f"{self.name}: --tp {tp} is no multiple of the {kv_heads} KV heads, so they cannot be copied evenly.",
                "kv_heads_not_divisible_by_tp",
                f"Use a tensor-parallel size that is a multiple of {kv_heads}.",
            )
        return 1

    def attention(
        self,
        layers: tuple[int, ...],
        *,
        kv_heads: int,
        head_size: int,
        head_size_v: int | None = None,
        kind: str = "full_attention",
        window: int | None = None,
        heads: int | None = None,
        keys: tuple[str, ...] = (),
    ) -> LayerGroup:
        """A group of ordinary attention layers; ``kv_heads`` and ``heads`` count the whole model's."""
        local = self.shard(kv_heads, heads)
        value_size = head_size if head_size_v is None else head_size_v
        size = local * (head_size + value_size) * self.element
        copies = (
            ""
            if kv_heads >= self.options.tp
            else f" (one copy of {kv_heads} on each of {self.options.tp} ranks)"
        )
        return LayerGroup(
            kind=kind,
            layers=layers,
            kv_heads_per_rank=local,
            head_size=head_size,
            head_size_v=value_size,
            element_bytes=self.element,
            dtype=self.kv_dtype,
            bytes_per_token_per_layer=size,
            window=window,
            keys=(*self.fields.take(), *keys),
            arithmetic=(
                f"{kv_heads} KV heads / TP {self.options.tp} = {local} a rank{copies}",
                f"{local} heads x ({head_size} K + {value_size} V) x {self.element} B = {size:,} B a layer and token",
            ),
        )
