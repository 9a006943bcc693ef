"""Reads the failure signatures: those of ``checks/signatures`` and an operator's own."""

from __future__ import annotations

from kvprobe.assets import checks_dir
from kvprobe.formats.log_signatures import Signature, parse_signatures
from kvprobe.system import System


def load_signatures(system: System, extra: str | None = None) -> tuple[Signature, ...]:
    """All signatures; ``extra`` is a further TOML file. Raises UsageError that names a wrong file."""
    folder = checks_dir() / "signatures"
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}
    if extra:
        texts[extra] = system.read_text(extra, limit_bytes=1024 * 1024)
    return parse_signatures(texts)
