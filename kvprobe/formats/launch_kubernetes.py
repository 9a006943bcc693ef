"""Kubernetes: any object with a pod spec in it, so Deployment, StatefulSet, DaemonSet, Job, CronJob, Pod,
LeaderWorkerSet, KServe's LLMInferenceService, llm-d's values and Dynamo's graph need no reader of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvprobe.formats.launch_docker import is_vllm_image
from kvprobe.formats.launch_model import Box, Command, Setting, base_name
from kvprobe.formats.launch_shell import Script

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.]*)\)")
_ROLE_LABELS = re.compile(r"role|component|disagg|kind|type|name|app", re.IGNORECASE)
_STRUCTURE = {
    "spec", "template", "services", "components", "roles", "podTemplate", "leaderWorkerTemplate", "workerTemplate",
    "leaderTemplate", "jobTemplate", "replicatedJobs", "items",
}  # fmt: skip
"""Keys on the way to a pod spec that name nothing of the user's."""
_RDMA = re.compile(r"rdma|infiniband|roce|\bhca|mlnx|\befa\b|/ib$", re.IGNORECASE)


class Cluster:
    """What pods refer to: the ConfigMaps among the documents."""

    def __init__(self, documents: list[Any]) -> None:
        self.maps: dict[str, dict[str, str]] = {}
        for document in documents:
            if isinstance(document, dict) and document.get("kind") == "ConfigMap":
                data = document.get("data")
                name = str((document.get("metadata") or {}).get("name", ""))
                if isinstance(data, dict):
                    self.maps[name] = {str(k): str(v) for k, v in data.items()}

    def file(self, path: str) -> str | None:
        """A file that a ConfigMap mounts, by its last name."""
        return next((m[base_name(path)] for m in self.maps.values() if base_name(path) in m), None)


def read_manifest(document: dict[str, Any], script: Script, cluster: Cluster) -> bool:
    """Add the commands of every container in the document; False if it holds no container."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    title = str(metadata.get("name") or document.get("kind") or "")
    outer = script.resolve
    script.resolve = lambda name: outer(name) or cluster.file(name)
    some = False
    try:
        for pod in _pods(document, (), ()):
            some = True
            _pod(pod, title, str(metadata.get("namespace") or ""), script, cluster)
    finally:
        script.resolve = outer
    return some or bool(document.get("apiVersion"))


@dataclass(frozen=True)
class _Pod:
    """A pod spec and what it stands in: keys and names on the way, the objects themselves."""

    path: tuple[str, ...]
    trail: tuple[dict[str, Any], ...]
    spec: dict[str, Any]
    containers: list[dict[str, Any]]


def _pods(node: Any, path: tuple[str, ...], trail: tuple[dict[str, Any], ...]) -> Iterator[_Pod]:
    """Every pod spec below ``node``."""
    if isinstance(node, list):
        for item in node:
            named = item.get("name") if isinstance(item, dict) else None
            yield from _pods(item, (*path, str(named)) if named else path, trail)
    if not isinstance(node, dict):
        return
    trail = (*trail, node)
    containers = node.get("containers")
    if isinstance(containers, list) and any(isinstance(c, dict) for c in containers):
        sidecars = [
            c for c in _list(node.get("initContainers")) if isinstance(c, dict) and c.get("restartPolicy")
        ]
        yield _Pod(path, trail, node, [*(c for c in containers if isinstance(c, dict)), *sidecars])
    extra = node.get("extraPodSpec")
    if isinstance(extra, dict) and isinstance(extra.get("mainContainer"), dict):
        main = dict(extra["mainContainer"])
        main["env"] = [*_list(node.get("envs")), *_list(main.get("env"))]
        main.setdefault("name", path[-1] if path else "main")
        main.setdefault("resources", node.get("resources"))
        yield _Pod(path, trail, extra, [main])
    for key, value in node.items():
        if key not in ("containers", "initContainers", "extraPodSpec", "metadata", "status"):
            yield from _pods(value, (*path, str(key)), trail)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _labels(metadata: Any) -> list[str]:
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return (
        [str(v) for k, v in labels.items() if _ROLE_LABELS.search(str(k))] if isinstance(labels, dict) else []
    )


def _pod(pod: _Pod, title: str, namespace: str, script: Script, cluster: Cluster) -> None:
    replicas: int | None = None
    labels: list[str] = []
    roles: list[str] = []
    for outer in pod.trail:
        if isinstance(outer.get("replicas"), int):
            replicas = outer["replicas"]
        labels += _labels(outer.get("metadata"))
        roles += [str(outer["subComponentType"])] if isinstance(outer.get("subComponentType"), str) else []
    own = [p for p in pod.path if p not in _STRUCTURE]
    hints = (*reversed(roles), *reversed(own), *reversed(labels), title)
    around = _Around(
        name=own[-1] if own else title,
        # Leader and worker of one group are two pods, and so are objects of one name in two namespaces.
        unit="/".join((title, *pod.path, str(len(script.commands)))),
        hints=hints,
        replicas=replicas,
        namespace=namespace,
        spec=pod.spec,
    )
    for container in pod.containers:
        _container(container, around, script, cluster)


@dataclass(frozen=True)
class _Around:
    """What all containers of a pod share."""

    name: str
    unit: str
    hints: tuple[str, ...]
    replicas: int | None
    namespace: str
    spec: dict[str, Any]


def _container(container: dict[str, Any], around: _Around, script: Script, cluster: Cluster) -> None:
    from kvprobe.formats.launch_wrappers import found

    spec = around.spec
    name = str(container.get("name") or "")
    where = f"{script.file} {around.name}".strip()
    image = str(container.get("image") or "")
    env = _environment(container, where, cluster)
    words = [_filled(w, env) for w in (*_words(container.get("command")), *_words(container.get("args")))]
    default = not container.get("command") and is_vllm_image(image)
    resources = container.get("resources") if isinstance(container.get("resources"), dict) else {}
    command = Command(
        argv=tuple(words),
        env=env,
        file=script.file,
        name=around.name,
        hints=tuple(h for h in (name, *around.hints) if h),
        box=Box(
            kind="pod",
            name=name,
            image=image,
            unit=around.unit,
            network_host=spec.get("hostNetwork") is True,
            pid="host"
            if spec.get("hostPID") is True
            else "shared"
            if spec.get("shareProcessNamespace")
            else "",
            ipc="host" if spec.get("hostIPC") is True else "",
            gpus=_gpus(resources),
            replicas=around.replicas,
            namespace=around.namespace,
            node=_node(spec),
            rdma=bool(_RDMA.search(str(resources))) or "/dev/infiniband" in str(spec.get("volumes")),
            restart=True,
            default_entrypoint=default,
        ),
        raw=str(container.get("args") or container.get("command") or ""),
    )
    if default:
        script.commands.append(command)
    elif words:
        found(command, script)


def _words(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [str(v).lower() if isinstance(v, bool) else str(v) for v in items]


def _filled(word: str, env: dict[str, Setting]) -> str:
    return _REFERENCE.sub(lambda m: env[m[1]].value if m[1] in env else m[0], word)


def _environment(container: dict[str, Any], where: str, cluster: Cluster) -> dict[str, Setting]:
    env: dict[str, Setting] = {}
    for entry in _list(container.get("envFrom")):
        reference = entry.get("configMapRef") if isinstance(entry, dict) else None
        name = str(reference.get("name")) if isinstance(reference, dict) else ""
        for key, value in cluster.maps.get(name, {}).items():
            env[key] = Setting(value, f"{where} (ConfigMap {name})")
    for entry in _list(container.get("env")):
        if not isinstance(entry, dict) or not entry.get("name"):
            continue
        source, given = entry.get("valueFrom"), entry.get("value")
        text = _from(source, cluster) if isinstance(source, dict) else "".join(_words(given))
        env[str(entry["name"])] = Setting(_filled(text, env), where)
    return env


def _from(source: dict[str, Any], cluster: Cluster) -> str:
    reference = source.get("configMapKeyRef")
    if isinstance(reference, dict):
        known = cluster.maps.get(str(reference.get("name")), {}).get(str(reference.get("key")))
        if known is not None:
            return known
    field = source.get("fieldRef")
    return f"$({field.get('fieldPath')})" if isinstance(field, dict) else "$(from the cluster)"


def _gpus(resources: Any) -> str:
    for part in ("limits", "requests"):
        table = resources.get(part) if isinstance(resources, dict) else None
        for key, value in table.items() if isinstance(table, dict) else ():
            if str(key).endswith("/gpu") or key == "gpu":
                return str(value)
    return ""


def _node(spec: dict[str, Any]) -> str:
    selector = spec.get("nodeSelector")
    named = selector.get("kubernetes.io/hostname") if isinstance(selector, dict) else None
    return str(spec.get("nodeName") or named or "")
