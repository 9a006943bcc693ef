"""YAML from strangers: safe tags only, bounded depth and bounded size after aliases are written out."""

from __future__ import annotations

from typing import Any

import yaml

from kvprobe.errors import FormatError

_DEPTH_LIMIT = 60
_NODE_LIMIT = 200_000

try:  # the parser in C reads a manifest of 1 MB in well under a second; the one in Python takes ten
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]


def load_documents(text: str, source: str) -> list[Any]:
    """All documents of a YAML or JSON text. Raises FormatError that names the source and the line."""
    try:
        _measure(text, source)
        return [document for document in yaml.load_all(text, Loader=Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        chart = "Render the chart first: helm template NAME CHART > all.yaml." if "{{" in text else ""
        raise FormatError(f"{source}{line} is not YAML: {error.problem}.", chart) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{source} is not YAML: {error}.") from None


def _measure(text: str, source: str) -> None:
    """Count nodes as they will be once aliases are expanded, before anything is built."""
    sizes: dict[str, int] = {}
    stack: list[tuple[str | None, int]] = []
    total = 0

    def add(size: int) -> None:
        nonlocal total
        if stack:
            anchor, inside = stack[-1]
            stack[-1] = (anchor, inside + size)
        else:
            total += size
        if size > _NODE_LIMIT or total > _NODE_LIMIT:
            raise FormatError(
                f"{source} unfolds to more than {_NODE_LIMIT:,} YAML nodes; that is no launch file.",
                "Pass only the manifests of the prefill and decode instances.",
            )

    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.AliasEvent):
            add(sizes.get(event.anchor or "", _NODE_LIMIT + 1))  # an alias to itself has no end
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                sizes[event.anchor] = 1
            add(1)
        elif isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, 1))
            if event.anchor:
                sizes.pop(event.anchor, None)
            if len(stack) > _DEPTH_LIMIT:
                raise FormatError(f"{source} is nested more than {_DEPTH_LIMIT} levels deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = stack.pop()
            if anchor:
                sizes[anchor] = size
            add(size)
