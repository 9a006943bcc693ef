"""What tests need of the machine, with the reason shown where it is absent."""

from __future__ import annotations

import importlib.util

import pytest

NIXL = [
    pytest.mark.nixl,
    pytest.mark.skipif(
        not any(importlib.util.find_spec(n) for n in ("nixl_cu12", "nixl_cu13", "nixl")),
        reason="no NIXL wheel for this platform",
    ),
]
