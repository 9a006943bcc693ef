"""Reads a template's syntax tree: its switches, its clocks, and how it wants a message's content."""

from __future__ import annotations

from typing import Any

GIVEN = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "namespace", "range", "dict",
    "loop", "caller", "varargs", "kwargs", "self", "cycler", "joiner", "lipsum",
}  # fmt: skip


def inspect_template(tree: Any) -> dict[str, Any]:
    """``{"switches": [...], "strftime": [...], "content_as_parts": bool}`` of a parsed template.

    A switch is a name that the template does not define itself; ``values`` are those it is compared with: true and
    false for a name used as a condition, the texts for one compared with texts, none for a free value.
    """
    from jinja2 import meta, nodes

    names = sorted(meta.find_undeclared_variables(tree) - GIVEN)
    values: dict[str, list[Any]] = {name: [] for name in names}

    def note(node: Any, value: Any) -> None:
        if isinstance(node, nodes.Name) and node.name in values and value not in values[node.name]:
            values[node.name].append(value)

    def condition(node: Any) -> None:
        if isinstance(node, nodes.Name):
            note(node, True)
            note(node, False)
        elif isinstance(node, nodes.Filter) and node.node is not None:
            condition(node.node)

    for node in tree.find_all((nodes.If, nodes.CondExpr)):
        condition(node.test)
    for node in tree.find_all((nodes.And, nodes.Or)):
        condition(node.left)
        condition(node.right)
    for node in tree.find_all(nodes.Not):
        condition(node.node)
    for node in tree.find_all(nodes.Test):
        if node.name in ("true", "false"):
            condition(node.node)
    for node in tree.find_all(nodes.Filter):
        if (
            node.name in ("default", "d")
            and node.args
            and isinstance(node.args[0], nodes.Const)
            and isinstance(node.args[0].value, bool)
        ):
            condition(node.node)
    for node in tree.find_all(nodes.Compare):
        for operand in node.ops:
            for value in _constants(operand.expr):
                target = node.expr.node if isinstance(node.expr, nodes.Filter) else node.expr
                if isinstance(value, bool):
                    condition(target)
                else:
                    note(target, value)
    for name in names:
        if not values[name] and any(word in name for word in ("think", "reason", "preserve", "history")):
            values[name] = [True, False]
    return {
        "switches": [{"name": name, "values": values[name]} for name in names],
        "strftime": sorted({form for form in map(_strftime, tree.find_all(nodes.Call)) if form}),
        "content_as_parts": _loops_over_content(tree),
    }


def _constants(node: Any) -> list[Any]:
    from jinja2 import nodes

    if isinstance(node, nodes.Const) and isinstance(node.value, str | bool | int):
        return [node.value]
    if isinstance(node, nodes.List | nodes.Tuple):
        return [v for item in node.items for v in _constants(item)]
    return []


def _strftime(call: Any) -> str | None:
    from jinja2 import nodes

    if isinstance(call.node, nodes.Name) and call.node.name == "strftime_now":
        first = call.args[0] if call.args else None
        return str(first.value) if isinstance(first, nodes.Const) else "(computed)"
    return None


def _loops_over_content(tree: Any) -> bool:
    from jinja2 import nodes

    def is_content(node: Any) -> bool:
        if isinstance(node, nodes.Getattr):
            return bool(node.attr == "content")
        return (
            isinstance(node, nodes.Getitem)
            and isinstance(node.arg, nodes.Const)
            and node.arg.value == "content"
        )

    aliases = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name) and is_content(node.node)
    }
    return any(
        is_content(loop.iter) or (isinstance(loop.iter, nodes.Name) and loop.iter.name in aliases)
        for loop in tree.find_all(nodes.For)
    )
