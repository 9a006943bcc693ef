"""Imports one package of a connector in a process of its own: native libraries can crash, hang or be missing."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import time
from typing import Any

from kvprobe.workers.base import Worker, main

_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[.\d]*)")


def work(worker: Worker) -> dict[str, Any]:
    """Job: ``modules`` (any one will do), ``libraries``. Result: ``module``, ``error``, ``seconds``, ``missing_libraries``."""
    error, missing = "none of the modules is there", []
    for name in worker.args["modules"]:
        started = time.perf_counter()
        try:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                continue
            module = importlib.import_module(name)
            if worker.args["then"] == "nixl_agent":
                create_agent(module)
        except Exception as problem:  # noqa: BLE001  a package may raise anything while it is imported
            error = f"{type(problem).__name__}: {problem}".strip()[:300]
            missing = [*_LIBRARY.findall(str(problem)), *_absent(worker.args["libraries"])]
            continue
        return {
            "module": name,
            "error": None,
            "seconds": time.perf_counter() - started,
            "missing_libraries": [],
        }
    return {
        "module": None,
        "error": error,
        "seconds": None,
        "missing_libraries": list(dict.fromkeys(missing)),
    }


def create_agent(api: Any) -> None:
    """An agent with the UCX backend, as vLLM creates it: loads the plugin and opens the transports."""
    agent = api.nixl_agent("kvprobe-import", api.nixl_agent_config(backends=[]))
    if "UCX" not in agent.get_plugin_list():
        raise RuntimeError("this NIXL has no UCX plugin")
    agent.create_backend("UCX", {})


def _absent(libraries: list[str]) -> list[str]:
    """Those of the libraries that the loader does not find: all at once, not one a run."""
    found = []
    for library in libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            found.append(library)
    return found


if __name__ == "__main__":
    main(work)
