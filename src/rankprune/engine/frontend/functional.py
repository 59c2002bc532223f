"""Rewrites an exported program so that no operator works in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten


def functional(exported: Any) -> Any:
    """Rewrite an exported program so that no operator works in place.

    An in-place operator on a tensor without other views becomes its out-of-place form. If views of the changed tensor
    are read afterwards, torch's own functionalization is used, which traces the program once more.

    Args:
        exported: The exported program.

    Returns:
        The functional program.
    """
    if _autocast(exported.graph) or not _replace(exported.graph):
        exported = exported.run_decompositions({})
        _restore_batch_norm(exported.graph)
    return exported


def writes(node: fx.Node) -> bool:
    """Whether an operator changes its first argument.

    Args:
        node: The operator.

    Returns:
        True if it does.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or not node.args:
        return False
    first = schema.arguments[0].alias_info
    return first is not None and first.is_write and isinstance(node.args[0], fx.Node)


def memory(node: fx.Node) -> int | None:
    """Identify the storage of a tensor, which views share and copies do not.

    Args:
        node: A node of an exported program.

    Returns:
        The storage's id; None if the node is not a tensor.
    """
    shown = node.meta.get("val")
    return shown.untyped_storage()._cdata if isinstance(shown, Tensor) else None


def _autocast(graph: fx.Graph) -> bool:
    """Whether a part runs under autocast on the CPU, whose casts only torch's functionalization makes explicit."""
    return any(str(n.target) == "wrap_with_autocast" and n.args[0] == "cpu" and n.args[2] for n in graph.nodes)


def _replace(graph: fx.Graph) -> bool:
    """Replace in-place operators one by one; False as soon as one cannot be replaced."""
    nodes = list(graph.nodes)
    if any(n.op == "get_attr" for n in nodes):  # an inner graph, which may also write
        return not any(writes(n) for n in nodes)
    at = {node: i for i, node in enumerate(nodes)}
    sharing: dict[int | None, list[fx.Node]] = {}
    for node in nodes:
        sharing.setdefault(memory(node), []).append(node)
    for node in nodes:
        if not writes(node):
            continue
        changed = node.args[0]
        plain = _out_of_place(node.target)
        # What is made of the changed tensor later on is made of the new one.
        shared = [n for n in sharing[memory(changed)] if n is not changed and at[n] < at[node]]
        if plain is None or any(at[user] > at[node] for other in shared for user in other.users if user in at):
            return False
        with graph.inserting_before(node):
            replacement = graph.call_function(plain, node.args, node.kwargs)
        replacement.meta = dict(node.meta)
        at[replacement] = at[node]
        changed.replace_all_uses_with(replacement, lambda user, here=node: at[user] > at[here])  # type: ignore[misc]
        node.replace_all_uses_with(replacement)
        sharing[memory(changed)] = [n for n in sharing[memory(changed)] if n not in (changed, node)] + [replacement]
        graph.erase_node(node)
    return True


def _out_of_place(target: Any) -> Any:
    name = target._schema.name.removeprefix("aten::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(_aten, name[:-1], None)
    return None if packet is None else getattr(packet, target._overloadname, None)


def _restore_batch_norm(graph: fx.Graph) -> None:
    """Restore batch norm in evaluation mode, which functionalization replaces by an operator with three results."""
    for node in list(graph.nodes):
        if node.target is not _aten._native_batch_norm_legit_no_training.default:
            continue
        x, weight, bias, mean, var, momentum, eps = node.args
        parts = list(node.users)
        if any(part.args[1] != 0 and part.users for part in parts):
            continue
        with graph.inserting_before(node):
            restored = graph.call_function(
                _aten.batch_norm.default, (x, weight, bias, mean, var, False, momentum, eps, False)
            )
        restored.meta = {**node.meta, "val": node.meta["val"][0]}
        for part in parts:
            part.replace_all_uses_with(restored)
            graph.erase_node(part)
        graph.erase_node(node)
