"""How long a grown weight stays: counted at every mask update, changing nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.method import DropGrow, Extra, Group, Method, PrunableLayer

AFTER = (1, 3, 10)  # updates after which a grown weight is looked for
_OUT = -1  # in a layer's state: not in the mask. Otherwise the number of the update that grew the weight; 0: attach


class Survival(Extra):
    """Counts, of the weights that updates grew, the share that is still active 1, 3 and 10 updates later.

    A weight that was cut in between and grown again counts as cut. What the last updates grew is not counted at
    distances the run does not reach.
    """

    name: ClassVar[str] = "survival"

    def check(self, method: Method) -> None:
        if not isinstance(method, DropGrow):
            raise ValueError(f"survival counts what is grown and {method.info.name} grows nothing: use one such as rpg")

    def reserve(self, group: Group) -> Mapping[PrunableLayer, Tensor]:
        """Called when an update begins: the masks are those that the update before it left."""
        if group.step:
            self.look(group)
        return {}

    def look(self, group: Group) -> None:
        """Record what the last update grew, and which of the weights grown earlier are still active.

        Args:
            group: The layers of one method.
        """
        # Row u: weights grown by update u, and how many of them were active 1, 3, 10 updates later.
        table = group.state.get("survival", torch.zeros(1, 1 + len(AFTER), dtype=torch.int64))
        last = len(table) - 1  # the update that made the masks as they are; 0: attach
        earlier = [last - n for n in AFTER]
        grown, left = 0, [0] * len(AFTER)
        for layer in group.layers:
            born = layer.state.get("born")
            if born is None:
                born = torch.zeros_like(layer.mask, dtype=torch.int32)
            entered = layer.mask & (born == _OUT)
            born = torch.where(layer.mask, torch.where(entered, last, born), _OUT).to(torch.int32)
            layer.state["born"] = born
            grown += layer.count(entered)
            for i, update in enumerate(earlier):
                left[i] += layer.count(born == update) if update > 0 else 0
        table[last, 0] = grown
        for i, update in enumerate(earlier):
            if update > 0:
                table[update, 1 + i] = left[i]
        group.state["survival"] = torch.cat([table, torch.zeros_like(table[:1])])

    def shares(self, group: Group, since: float = 0.0) -> dict[str, float]:
        """By number of updates, the share of the grown weights that were still active then.

        Args:
            group: The weights that were watched.
            since: Leave out this first part of the updates; the early ones grow most.
        """
        table = group.state.get("survival")
        if table is None:
            return {}
        shares = {}
        for i, after in enumerate(AFTER):
            counted = table[1 + int(since * len(table)) : len(table) - 1 - after]
            if int(counted[:, 0].sum()):
                shares[str(after)] = float(counted[:, 1 + i].sum()) / float(counted[:, 0].sum())
        return shares
