"""Which YAML is it: Kubernetes manifests (also a List, also Helm's output), a compose file; each to its reader."""

from __future__ import annotations

from typing import Any

from kvprobe.formats.launch_compose import read_compose
from kvprobe.formats.launch_kubernetes import Cluster, read_manifest
from kvprobe.formats.launch_shell import Script
from kvprobe.formats.launch_yaml import load_documents


def read_manifests(text: str, script: Script) -> bool:
    """Add the commands of all documents in ``text``; False if none of them is of a known kind. Raises FormatError."""
    documents = flatten(load_documents(text, script.file))
    known = False
    cluster = Cluster(documents)
    for document in documents:
        if is_compose(document):
            read_compose(document, script)
            known = True
        elif isinstance(document, dict):
            known = read_manifest(document, script, cluster) or known
    return known


def flatten(documents: list[Any]) -> list[Any]:
    """The items of ``kind: List`` in place of the list."""
    out: list[Any] = []
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("items"), list):
            out += flatten(document["items"])
        elif isinstance(document, list):
            out += flatten(document)
        else:
            out.append(document)
    return out


def is_compose(document: Any) -> bool:
    """A compose file: ``services`` with an image, a build or a command in each, and no apiVersion."""
    if not isinstance(document, dict) or "apiVersion" in document:
        return False
    services = document.get("services")
    return isinstance(services, dict) and any(
        isinstance(s, dict) and {"image", "build", "command", "extends"} & set(s) for s in services.values()
    )
