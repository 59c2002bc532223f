"""Losses that torch does not have: distillation of a teacher into a sparse student."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def distill(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    temperature: float = 4.0,
    alpha: float = 0.5,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the distillation loss ``(1 - alpha) * CE(student, labels) + alpha * T² * KL(teacher/T || student/T)``.

    Hinton, Vinyals & Dean (2015), section 2: soft targets give gradients of order 1/T², so their term is
    multiplied by T² to keep its share of the gradient when the temperature changes. No gradient reaches the teacher.

    Args:
        student_logits: Output of the student, (batch, classes).
        teacher_logits: Output of the teacher, (batch, classes).
        labels: Class indices, (batch,).
        temperature: ``T`` above; larger values give softer targets.
        alpha: Weight of the teacher's term, from 0 (labels only) to 1 (teacher only).
        label_smoothing: Smoothing of the cross entropy against the labels.

    Returns:
        The loss, averaged over the batch, as a scalar.

    Raises:
        ValueError: The two models have different classes, or `temperature` or `alpha` is out of range.
    """
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"The teacher's logits are {tuple(teacher_logits.shape)} and the student's {tuple(student_logits.shape)}: "
            "both models must have the same classes."
        )
    if temperature <= 0 or not 0 <= alpha <= 1:
        raise ValueError(f"temperature={temperature} must be above 0 and alpha={alpha} between 0 and 1.")
    hard = F.cross_entropy(student_logits, labels, label_smoothing=label_smoothing)
    log_student = F.log_softmax(student_logits / temperature, dim=1)
    log_teacher = F.log_softmax(teacher_logits.detach() / temperature, dim=1)
    soft = F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    return (1 - alpha) * hard + alpha * temperature**2 * soft
