"""Finds the files of ``checks/``: inside the wheel as ``kvprobe/_checks``, beside the package otherwise."""

from __future__ import annotations

from pathlib import Path

from kvprobe.errors import UsageError

_PACKAGE = Path(__file__).parent


def checks_dir() -> Path:
    """The folder of profiles, signatures and ready-made gates."""
    for place in (_PACKAGE / "_checks", _PACKAGE.parent / "checks"):
        if place.is_dir():
            return place
    raise UsageError("kvprobe's checks/ folder is missing.", "Reinstall kvprobe.")


def profile_path(name: str) -> Path:
    """Path of ``checks/profiles/NAME.toml``. Raises UsageError that lists the names there are."""
    folder = checks_dir() / "profiles"
    path = folder / f"{name}.toml"
    if path.is_file():
        return path
    names = ", ".join(sorted(p.stem for p in folder.glob("*.toml")))
    raise UsageError(f"There is no profile {name!r}.", f"Profiles: {names}.")
