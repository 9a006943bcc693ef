"""What every family of caches gets: the config, the options, and the arithmetic they share."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvprobe.models.kv_layout.dtypes import MODEL_DTYPES, element_bytes, row_bytes
from kvprobe.models.kv_layout.fields import MAX_LAYERS, Fields
from kvprobe.models.kv_layout.types import Assumption, LayerGroup, LayoutOptions, Refused, StatePart

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim")
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
    """``option``, ``model dtype`` or the key of the checkpoint that asked for it."""
    gpu_arch: str
    kv_dtype_label: str = ""
    """How the cache dtype is reported where it differs from what is stored; empty: ``kv_dtype``."""
    default_block: int = 16
    kernel_block: int | None = None
    """The one block size that the attention kernel takes; larger blocks are cut into such. None: any."""
    alignment: int = 1
    """Recurrent layers with prefix caching: the block is a multiple of this."""
    refuse_transfer: tuple[str, str] | None = None
    """(reason, reason_code) where the connector refuses the whole model."""
    refuse_requests: tuple[str, str] | None = None
    """(reason, reason_code) where the connector starts, but refuses every request."""
    shared_keys: tuple[str, ...] = ()
    """Keys that all groups stand on: the number and kinds of layers."""
    assumptions: list[Assumption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.fields.name

    @property
    def tp(self) -> int:
        return self.options.tp

    @property
    def element(self) -> int:
        """Bytes of one cache element."""
        return element_bytes(self.fields, self.kv_dtype)

    @property
    def blackwell(self) -> bool:
        return self.gpu_arch in ("sm100", "sm103")

    def refuse(self, reason: str, code: str, remedy: str = "") -> Refused:
        return Refused(f"{self.name}: {reason}", code, remedy)

    def layers(self) -> int:
        count = self.fields.count(*LAYERS)
        if count > MAX_LAYERS:
            raise self.refuse(f"{count:,} layers are not credible.", "bad_value", "Check config.json.")
        return count

    def heads(self) -> int:
        return self.fields.count(*HEADS)

    def kv_heads(self) -> int:
        """KV heads of the whole model, of the first key present; the attention heads if there is none."""
        return self.fields.optional(*KV_HEADS, least=1) or self.heads()

    def head_dim(self) -> int:
        """``head_dim`` as written or the class's default, else hidden size // heads."""
        written = self.fields.optional("head_dim") or self.fields.optional("hidden_size_per_head")
        return written or self.divided_head_dim()

    def divided_head_dim(self) -> int:
        """hidden size // heads, for the classes that ignore ``head_dim``."""
        hidden, heads = self.fields.count(*HIDDEN), self.heads()
        if hidden < heads:
            raise self.refuse(f"{hidden} hidden units cannot be split into {heads} heads.", "bad_value")
        return hidden // heads

    def check_heads(self, heads: int) -> None:
        """Refuse a TP size that does not divide the attention heads, as vLLM does."""
        if heads % self.tp:
            raise self.refuse(
                f"{heads} attention heads cannot be divided over --tp {self.tp}.",
                "heads_not_divisible_by_tp",
                f"Use a tensor-parallel size that divides {heads}.",
            )

    def shard(self, kv_heads: int, heads: int | None = None) -> int:
        """KV heads that one rank stores: the quotient, or one copy where there are fewer heads than ranks."""
        tp = self.tp
        self.check_heads(heads if heads is not None else self.heads())
        if kv_heads % tp and tp % kv_heads:
            how = "divided" if kv_heads >= tp else "copied evenly"
            raise self.refuse(
                f"{kv_heads} KV heads cannot be {how} over --tp {tp}.",
                "kv_heads_not_divisible_by_tp",
                f"Use a tensor-parallel size that divides {kv_heads} or is a multiple of it.",
            )
        return max(1, kv_heads // tp)

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
        dtype: str | None = None,
    ) -> LayerGroup:
        """A group of ordinary attention layers; ``kv_heads`` and ``heads`` count the whole model's."""
        local = self.shard(kv_heads, heads)
        kv_dtype = dtype or self.kv_dtype
        value_size = head_size if head_size_v is None else head_size_v
        key_bytes = row_bytes(self.fields, kv_dtype, head_size)
        value_bytes = row_bytes(self.fields, kv_dtype, value_size)
        size = local * (key_bytes + value_bytes)
        copies = "" if kv_heads >= self.tp else f", a copy of one of {kv_heads} on each of {self.tp} ranks"
        return LayerGroup(
            kind=kind,
            layers=layers,
            kv_heads_per_rank=local,
            head_size=head_size,
            head_size_v=value_size,
            element_bytes=key_bytes / head_size,
            dtype=kv_dtype,
            bytes_per_token_per_layer=size,
            window=window,
            keys=self._keys(),
            arithmetic=(
                f"KV heads a rank: {kv_heads} / TP {self.tp} = {local}{copies}",
                f"a layer and token: {local} x ({key_bytes:,} B of {head_size} K + {value_bytes:,} B of {value_size} V)"
                f" in {kv_dtype} = {size:,} B",
            ),
        )

    def replicated(
        self,
        kind: str,
        layers: tuple[int, ...],
        *,
        width: int,
        size: int,
        dtype: str,
        arithmetic: tuple[str, ...],
    ) -> LayerGroup:
        """A group whose rows of ``width`` values and ``size`` bytes are the same on every TP rank."""
        return LayerGroup(
            kind=kind,
            layers=layers,
            kv_heads_per_rank=1,
            head_size=width,
            head_size_v=0,
            element_bytes=size / width,
            dtype=dtype,
            bytes_per_token_per_layer=size,
            replicated=True,
            keys=self._keys(),
            arithmetic=arithmetic,
        )

    def state(
        self,
        layers: tuple[int, ...],
        kind: str,
        parts: tuple[tuple[str, tuple[int, ...], str, tuple[int, ...]], ...],
    ) -> LayerGroup:
        """A group of recurrent layers: per part its name, shape on one rank, dtype and elements per NIXL piece."""
        made, lines = [], []
        for name, shape, dtype, pieces in parts:
            width = MODEL_DTYPES[dtype]
            elements = 1
            for side in shape:
                elements *= side
            assert sum(pieces) == elements
            made.append(
                StatePart(
                    name=name,
                    shape=shape,
                    dtype=dtype,
                    bytes=elements * width,
                    pieces=tuple(p * width for p in pieces),
                )
            )
            sides = " x ".join(str(side) for side in shape)
            lines.append(f"{name} of a layer and sequence: {sides} x {width} B = {elements * width:,} B")
        return LayerGroup(
            kind="recurrent_state",
            layers=layers,
            dtype=made[-1].dtype,
            state_bytes_per_layer=sum(part.bytes for part in made),
            state=kind,
            state_parts=tuple(made),
            keys=self._keys(),
            arithmetic=tuple(lines),
        )

    def share(self) -> None:
        """What was read so far counts for every group that follows."""
        self.shared_keys = tuple(dict.fromkeys((*self.shared_keys, *self.fields.take())))

    def _keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.shared_keys, *self.fields.take())))

    def split(self, value: int, what: str) -> int:
        """``value`` / TP. Raises Refused when it does not divide."""
        if value % self.tp:
            raise self.refuse(
                f"{value:,} {what} cannot be divided over --tp {self.tp}.",
                "state_not_divisible_by_tp",
                "Use a smaller tensor-parallel size.",
            )
        return value // self.tp
