"""What the transfer rules judge: one ordered pair with its rungs."""

from __future__ import annotations

import msgspec

from kvprobe.formats.ucx_proto import Transport
from kvprobe.models.ladder import Rung
from kvprobe.models.transfer import Series, TransferFacts


class LadderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight knows of one ordered pair."""

    subject: str
    """``GPU 0 -> GPU 1`` or ``host memory``."""
    memory: str
    judged_tokens: int
    """The prompt length that the policy judges."""
    operation: str = "READ"
    """READ for a pull connector, WRITE for a push one."""
    rungs: tuple[Rung, ...] = ()
    transfer: TransferFacts | None = None
    promised_p2p: bool | None = None
    """The topology says OK for the deciding direction; None: not known, or host memory."""
    busy: tuple[str, ...] = ()
    """Why the GPUs are not idle; empty: idle."""
    reduced: str | None = None
    """Why less was measured than asked for (memory, interrupted)."""
    reduced_remedy: str = ""

    diagnosed: bool = False
    """Experiments were run on it, so KVP211 and KVP212 say more."""
    evidence: tuple[str, ...] = ()
    """Ids of what was measured for this pair."""

    @property
    def judged(self) -> Series | None:
        return self.transfer.find(self.operation, "shuffled", self.judged_tokens) if self.transfer else None

    @property
    def observed(self) -> Transport | None:
        return self.transfer.transport(self.operation) if self.transfer else None

    def rung(self, number: int) -> Rung | None:
        return next((r for r in self.rungs if r.number == number and r.seconds), None)
