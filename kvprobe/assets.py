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


def docs_dir() -> Path:
    """The folder of the rules' pages, one ``KVPnnn.md`` each."""
    return _PACKAGE / "docs"


def gates() -> dict[str, Path]:
    """The ready-made gates under ``checks/`` by their path there, such as ``systemd/kvprobe.timer``."""
    folder = checks_dir()
    return {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent != folder and path.parent.name not in ("profiles", "signatures")
    }
