"""Reads a template's syntax tree: its switches, its clocks, and how it wants a message's content."""

from __future__ import annotations

from typing import Any

GIVEN = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "namespace", "range", "dict",
    "loop", "caller", "varargs", "kwargs", "self", "cycler", "joiner", "lipsum",
}  # fmt: skip


def inspect_template(tree: Any) -> dict[str, Any]:
    """``{"switches": [...], "strftime": [...], "content_as_parts": bool,
    "reasoning_fields": [...]}`` of a parsed template.

    A switch is a name that the template does not define itself; ``values`` are those it is compared with: true and
    false for a name used as a condition, the texts for one compared with texts, none for a free value.
    """
    from jinja2 import meta, nodes

    names = sorted(meta.find_undeclared_variables(tree) - GIVEN - _own_names(tree))
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
    used = _used_as_values(tree)
    for name in names:
        if name in used:
            values[name] = [v for v in values[name] if not isinstance(v, bool)]
        elif not values[name] and any(word in name for word in ("think", "preserve", "history")):
            values[name] = [True, False]
        if not values[name] and name.endswith("effort"):
            values[name] = ["low", "medium", "high"]
    return {
        "switches": [{"name": name, "values": values[name]} for name in names],
        "strftime": sorted({form for form in map(_strftime, tree.find_all(nodes.Call)) if form}),
        "content_as_parts": _loops_over_content(tree),
        "reasoning_fields": _reasoning_fields(tree),
    }


def _own_names(tree: Any) -> set[str]:
    """Names that the template sets itself; one that it first tests for ``defined`` or gives a default is an argument."""
    from jinja2 import nodes

    targets = [node.target for node in tree.find_all((nodes.Assign, nodes.AssignBlock, nodes.For))]
    targets += [item for t in targets if isinstance(t, nodes.Tuple) for item in t.items]
    targets += [arg for macro in tree.find_all(nodes.Macro) for arg in macro.args]
    tested = [t.node for t in tree.find_all(nodes.Test) if t.name in ("defined", "undefined")]
    tested += [f.node for f in tree.find_all(nodes.Filter) if f.name in ("default", "d")]
    asked = {node.name for node in tested if isinstance(node, nodes.Name)}
    return {node.name for node in targets if isinstance(node, nodes.Name)} - asked


def _used_as_values(tree: Any) -> set[str]:
    """Names that are looped over, looked into or joined with text: no switches, whatever tests stand around them."""
    from jinja2 import nodes

    found = [loop.iter for loop in tree.find_all(nodes.For)]
    found += [node.node for node in tree.find_all((nodes.Getattr, nodes.Getitem))]
    for node in tree.find_all((nodes.Add, nodes.Concat)):
        found += node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
    for node in tree.find_all(nodes.Compare):
        found += [operand.expr for operand in node.ops if operand.op in ("in", "notin")]
    return {node.name for node in found if isinstance(node, nodes.Name)}


def _constants(node: Any) -> list[Any]:
    """Texts and booleans of a literal or a list of literals, which Jinja's analysis may have folded into one."""
    from jinja2 import nodes

    if isinstance(node, nodes.List | nodes.Tuple):
        return [v for item in node.items for v in _constants(item)]
    value = node.value if isinstance(node, nodes.Const) else None
    return [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, str | bool)]


def _strftime(call: Any) -> str | None:
    from jinja2 import nodes

    if isinstance(call.node, nodes.Name) and call.node.name == "strftime_now":
        first = call.args[0] if call.args else None
        return str(first.value) if isinstance(first, nodes.Const) else "(computed)"
    return None


def _reasoning_fields(tree: Any) -> list[str]:
    """Message fields for reasoning that the template reads; vLLM sets ``reasoning`` and ``reasoning_content`` only."""
    from jinja2 import nodes

    known = {"reasoning", "reasoning_content", "thinking", "thought"}
    names = {node.attr for node in tree.find_all(nodes.Getattr)}
    names |= {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
    return sorted(known & names)


def _loops_over_content(tree: Any) -> bool:
    from jinja2 import nodes

    def is_content(node: Any) -> bool:
        if isinstance(node, nodes.Filter | nodes.Test) and node.node is not None:
            return is_content(node.node)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return is_content(node.node)
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
