"""In-time over-parameterisation (Liu et al. 2021, arXiv:2102.02887): update rarely, exchange much, to the very end."""

from __future__ import annotations

from typing import Any

_STEPS = 97_750  # 250 epochs of CIFAR-10 at batch 128: the length of training at which the authors chose their periods


def itop_settings(every: int, total_steps: int) -> dict[str, Any]:
    """The authors' settings: half of a layer is exchanged at first, every `every` steps or fewer in a shorter training.

    A weight must be trained for long before it is compared with others, and all weights should be tried, so there are
    as many updates as fit with a long period: the authors' number in a shorter training, more in a longer one.

    Args:
        every: The authors' period.
        total_steps: Optimizer steps of the training.
    """
    return {"every": min(every, max(1, total_steps * every // _STEPS)), "grow": 0.5, "update_end": 1.0}
