"""Which distributions are installed here, found without importing them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from kvprobe.system import System


def installed(system: System, names: Sequence[str]) -> dict[str, str]:
    """Those of ``names`` that are installed -> version, in the order asked for."""

    def seen() -> dict[str, str]:
        found = {}
        for name in names:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return found

    return dict(system.observe("packages", list(names), seen))
