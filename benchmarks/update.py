"""A whole RPG mask update on ResNet-50 (without the rank part): ours against the usual way.

The usual way: concatenate all |w|, kthvalue for the threshold, then two full sorts a layer to drop and to grow.
Prints ours, theirs and the ratio of one interleaved run, and the peak memory of each beyond the masks.

    python benchmarks/update.py
"""

from __future__ import annotations

import torch
import torchvision

import rankprune as rp
from _memory import peak_bytes
from _timing import interleave

DENSITY, FRACTION = 0.1, 0.2


def usual(weights: list[torch.Tensor], grads: list[torch.Tensor], keep: int) -> list[torch.Tensor]:
    everything = torch.cat([w.abs().view(-1) for w in weights])
    threshold = torch.kthvalue(everything, everything.numel() - keep + 1).values
    masks = []
    for weight, grad in zip(weights, grads):
        count = int((weight.abs() >= threshold).sum())
        leaving = int(count * FRACTION)
        kept = torch.zeros(weight.numel(), dtype=torch.bool)
        kept[torch.sort(weight.abs().view(-1), descending=True).indices[: count - leaving]] = True
        grow = torch.where(kept, -torch.inf, grad.abs().view(-1))
        kept[torch.sort(grow, descending=True).indices[:leaving]] = True
        masks.append(kept.view(weight.shape))
    return masks


def main() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = rp.methods.RPG(lam=0.0, grow=FRACTION, every=100, prune_end=1000)
    sp = rp.attach(model, optimizer, method, sparsity=1 - DENSITY, total_steps=100_000)
    (group,) = sp.groups
    for layer in group.layers:
        layer.parameter.grad = torch.randn_like(layer.parameter)
        # Small weights of other rows and layers make an even spread of layer densities, as training does.
        layer.weight.mul_(torch.rand(layer.shape[0], *[1] * (layer.weight.ndim - 1)))
    weights = [layer.weight.clone() for layer in group.layers]
    grads = [layer.parameter.grad.clone() for layer in group.layers]
    keep = group.final

    def ours() -> None:
        for layer in group.layers:
            layer.mask.fill_(True)
        group.step = 1100  # the first update at the final density: all layers shrink, the hardest one
        group.run_update()

    def reset() -> None:
        for layer, weight in zip(group.layers, weights):
            layer.weight.copy_(weight)

    def ours_again() -> None:
        ours()
        reset()

    def theirs() -> None:
        usual(weights, grads, keep)
        reset()  # costs both the same

    times = interleave({"rankprune": ours_again, "concatenate, kthvalue, 2 sorts": theirs}, rounds=5)
    for timing in times.values():
        print(timing)
    ours_time, theirs_time = times.values()
    low, middle = theirs_time.minimum / ours_time.minimum, theirs_time.median / ours_time.median
    print(f"ratio, minima: {low:.1f}x   medians: {middle:.1f}x")
    largest = max(w.numel() * w.element_size() for w in weights)
    for name, peak in (("rankprune", peak_bytes(ours)), ("the usual way", peak_bytes(theirs))):
        print(f"peak memory beyond the masks, {name}: {peak / 2**20:.1f} MiB = {peak / largest:.2f} largest layers")


if __name__ == "__main__":
    main()
