"""Lowers what the first layers, which run image by image, hand to the layers that run for several images at once."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph.graph import Node

from .layout import joined_rows
from .lower_state import Lowering
from .lower_window import divided, hand_over
from .stacked import Stack


def hand_all(state: Lowering, stack: Stack, images: int) -> None:
    """Write what the last layers read of the first ones into its place among the images.

    The calls are those of the first image. For the next ones their target is moved (`Lowering.moving`).

    Args:
        state: The state of the lowering, after the first layers.
        stack: Which layers run for how many images.
        images: Number of images.
    """
    original = {copy: value for value, copy in stack.handed.items()}
    last = list(enumerate(state.graph.nodes))[stack.first :]
    whole: set[int] = set()  # values that are read as they are
    state.images = images
    for state.node, node in last:
        whole.update(value for value in node.inputs[1 if _strided(node) else 0 :] if value in original)
        if node.inputs[0] in original and _strided(node):
            source = hand_over(state, node, original[node.inputs[0]])
            _, rows, columns = state.graph.shapes[node.output]
            state.handed[state.node] = source
            state.each_image(source.buffer, rows * columns // images)
    state.node = -1
    for value in sorted(whole):
        layout = joined_rows(state.graph.shapes[value])
        buffer, _ = divided(state, original[value], [1, 1], np.zeros((1, 2), np.int64), layout.channel, layout.channel)
        state.layouts[value], state.places[value] = layout, buffer
        _, rows, columns = layout.shape
        state.each_image(buffer, rows * columns // images)


def _strided(node: Node) -> bool:
    return node.op == "conv" and node.attrs["stride"] != [1, 1]
