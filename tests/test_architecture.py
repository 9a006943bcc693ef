"""The direction of imports (design.md section 3), read from the source with ast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kvprobe"
CORE = {"errors", "units", "evidence", "finding", "policy", "report", "figures", "assets"}
ALLOWED = {
    "cli": CORE | {"flows", "render", "rules", "system", "store", "cli", "models", "formats"},
    "flows": CORE | {"probes", "rules", "models", "formats", "system", "flows"},
    "probes": CORE | {"formats", "system", "processes", "probes", "models"},
    "models": CORE | {"models", "formats"},
    "rules": CORE | {"rules", "models", "formats"},
    "formats": CORE | {"formats"},
    "render": CORE | {"render"},
    "workers": {"workers"},
}
PURE = {"models", "rules", "formats", "render"}
IMPURE_MODULES = {
    "subprocess",
    "socket",
    "time",
    "click",
    "httpx",
    "psutil",
    "pynvml",
    "threading",
    "multiprocessing",
}
HEAVY = {"torch", "nixl", "nixl_cu12", "nixl_cu13", "ucxx", "pynvml", "mooncake"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    allowed = ALLOWED.get(layer(path))
    if allowed is None:
        return
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("kvprobe.")}
    packages = {p.stem for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"}
    assert (inner & packages) - allowed == set()


@pytest.mark.parametrize(
    "path", [p for p in modules() if layer(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_pure_layers_do_no_io(path: Path) -> None:
    names = imports(path)
    assert {n.split(".")[0] for n in names} & IMPURE_MODULES == set()
    assert "os.environ" not in names and "environ" not in path.read_text().split("import os", 1)[-1:][0][:0]
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert used & {"os.environ", "os.getenv", "os.system", "datetime.now"} == set()


@pytest.mark.parametrize(
    "path", [p for p in modules() if layer(p) != "workers"], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_heavy_modules_live_in_workers(path: Path) -> None:
    assert {n.split(".")[0] for n in imports(path)} & HEAVY == set()


def test_help_loads_no_heavy_module() -> None:
    code = (
        "import sys; from kvprobe.cli import main; main(['--help']); "
        "bad = {'torch','nixl','nixl_cu12','transformers','pydantic','numpy','httpx','jinja2','rich.console','msgspec'} & set(sys.modules); "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "preflight" in done.stdout
