"""Inlines the graphs that torch.export makes of code under no_grad or autocast."""

from __future__ import annotations

from typing import Any

from torch import fx

_WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def inline(module: fx.GraphModule) -> None:
    """Move the operators of inner graphs into the outer graph, in place. Enabled autocast on the CPU is not changed.

    Args:
        module: The exported module.
    """
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or str(node.target) not in _WRAPPERS:
            continue
        if str(node.target) == "wrap_with_autocast" and node.args[0] == "cpu" and node.args[2]:
            continue
        at = next(i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr")
        inner = module.get_submodule(node.args[at].target)
        assert isinstance(inner, fx.GraphModule)
        inline(inner)
        takes = [n for n in inner.graph.nodes if n.op == "placeholder"]
        arguments: dict[fx.Node, Any] = dict(zip(takes, node.args[at + 1 :]))
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(inner.graph, arguments)
        for part in list(node.users):  # each is a getitem of one result
            part.replace_all_uses_with(results[part.args[1]])
            graph.erase_node(part)
        holder = node.args[at]
        graph.erase_node(node)
        if not holder.users:
            graph.erase_node(holder)
