"""Structural (term) rank: the largest rank any values on a sparsity pattern can have."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .spectrum import matrix


def structural_rank(mask: Tensor) -> int:
    """Size of a maximum matching of rows and columns that are connected by the non-zero entries of a mask or weight.

    By the algorithm of Hopcroft & Karp 1973, from a greedy start.

    Args:
        mask: A matrix, of which only where it is zero matters.
    """
    pattern = matrix(mask.detach()) != 0
    if pattern.shape[0] > pattern.shape[1]:
        pattern = pattern.T
    # A row with as many entries as there are rows finds a column whatever the others take: count it, drop it, repeat.
    certain = 0
    while bool((easy := pattern.sum(1) >= max(len(pattern), 1)).any()):
        certain += int(easy.sum())
        pattern = pattern[~easy]
    rows, cols = (x.tolist() for x in pattern.nonzero(as_tuple=True))
    neighbours: list[list[int]] = [[] for _ in range(pattern.shape[0])]
    for row, col in zip(rows, cols):
        neighbours[row].append(col)
    row_of = _greedy(neighbours, pattern.sum(0).tolist())
    matched = {row for row in row_of if row >= 0}
    free = [row for row, near in enumerate(neighbours) if near and row not in matched]
    while free:
        left = _augment(neighbours, row_of, free)
        if len(left) == len(free):
            break
        free = left
    return certain + sum(row >= 0 for row in row_of)


def _greedy(neighbours: list[list[int]], degree: list[int]) -> list[int]:
    """Row matched to each column (-1: none): rows with the fewest choices first, each taking its rarest column."""
    row_of = [-1] * len(degree)
    for row in sorted(range(len(neighbours)), key=lambda r: len(neighbours[r])):
        open_cols = [col for col in neighbours[row] if row_of[col] < 0]
        if open_cols:
            row_of[min(open_cols, key=degree.__getitem__)] = row
    return row_of


def _augment(neighbours: list[list[int]], row_of: list[int], free: list[int]) -> list[int]:
    """One phase: layers by breadth-first search from the free rows, then disjoint shortest paths by depth-first search.

    Changes `row_of` and returns the rows that stay free.
    """
    layer = dict.fromkeys(free, 0)
    frontier, reached = free, False
    while frontier and not reached:
        following = []
        for row in frontier:
            for col in neighbours[row]:
                owner = row_of[col]
                if owner < 0:
                    reached = True
                elif owner not in layer:
                    layer[owner] = layer[row] + 1
                    following.append(owner)
        frontier = following
    if not reached:
        return free
    untried = {row: iter(neighbours[row]) for row in layer}
    return [root for root in free if not _follow(root, layer, untried, row_of)]


def _follow(root: int, layer: dict[int, int], untried: dict[int, Iterator[int]], row_of: list[int]) -> bool:
    """Flip one augmenting path from `root` through the layers, if any; with a stack, since paths may be long."""
    path, taken = [root], list[int]()
    while path:
        row = path[-1]
        for col in untried[row]:  # an edge is tried once per phase
            owner = row_of[col]
            if owner < 0:
                for r, c in zip(path, [*taken, col]):
                    row_of[c] = r
                return True
            if layer.get(owner, -1) == layer[row] + 1:
                path.append(owner)
                taken.append(col)
                break
        else:
            path.pop()
            if taken:
                taken.pop()
    return False
