"""Drop and grow between layers: what is dropped anywhere is shared out over all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankprune.core.budget import largest_remainder
from rankprune.core.method import DropGrow, Group


@dataclass(kw_only=True)
class Redistributing(DropGrow):
    """A method defines how many weights of each layer stay, and what share of the freed ones each layer grows."""

    distribution: str = "uniform"  # at the start only

    def check(self) -> None:
        super().check()
        if self.budget != "weights":
            raise ValueError(f"budget={self.budget!r} cannot hold while weights move between layers: use 'weights'")

    def stay(self, group: Group) -> list[int]:
        """How many weights of each layer stay.

        Args:
            group: The layers that the method works on.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a stay(group)")

    def shares(self, group: Group, stay: Sequence[int]) -> Sequence[float]:
        """How much of the freed weights each layer should grow, in any unit.

        Args:
            group: The layers that the method works on.
            stay: How many weights of each layer stay.
        """
        raise NotImplementedError(f"{type(self).__name__} needs shares(group, stay)")

    def room(self, group: Group, stay: Sequence[int]) -> list[int]:
        """How many weights each layer can grow.

        Args:
            group: The layers that the method works on.
            stay: How many weights of each layer stay.
        """
        return [layer.numel - count for layer, count in zip(group.layers, stay)]

    def update(self, group: Group) -> None:
        stay = [max(count, 1) for count in self.stay(group)]  # an empty layer might never get weights again
        freed = group.budget - sum(stay)
        counts = share_out(self.shares(group, stay), freed, self.room(group, stay))
        for layer, count, more in zip(group.layers, stay, counts):
            kept = group.keep(layer, self.drop_score, count, among=layer.mask)
            layer.mask.copy_(kept | group.keep(layer, self.growth_key, more, without=kept))
        self.adapt(group, freed)

    def adapt(self, group: Group, freed: int) -> None:
        """Called at the end of an update, to adapt to the number of weights that it freed.

        Args:
            group: The layers that the method works on.
            freed: How many weights the update has freed.
        """


def share_out(shares: Sequence[float], total: int, room: Sequence[int]) -> list[int]:
    """Integers that sum to `total`, in proportion to `shares` as far as there is room; overflow is shared again.

    Args:
        shares: What each should get, in any unit.
        total: What to share out.
        room: The upper bound of each.
    """
    amounts, full = [0.0] * len(room), set[int]()
    while True:
        free = [i for i in range(len(room)) if i not in full]
        left = total - sum(room[i] for i in full)
        weights = {i: shares[i] for i in free}
        if sum(weights.values()) <= 0.0:  # all shares are 0: in proportion to the room
            weights = {i: float(room[i]) for i in free}
        whole = sum(weights.values()) or 1.0
        amounts = [float(room[i]) if i in full else left * weights[i] / whole for i in range(len(room))]
        over = {i for i in free if amounts[i] > room[i]}
        if not over:
            return largest_remainder(amounts, total, room)
        full |= over
