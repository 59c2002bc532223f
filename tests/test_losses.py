from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rankprune.lab.losses import distill


def _case(batch: int = 5, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(3)
    student = torch.randn(batch, classes, generator=gen, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(batch, classes, generator=gen, dtype=torch.float64)
    return student, teacher, torch.randint(classes, (batch,), generator=gen)


def test_by_hand() -> None:
    """Two classes, T = 2: the teacher gives (3/4, 1/4), the student (1/2, 1/2), the label is class 1."""
    student = torch.zeros(1, 2, dtype=torch.float64)
    teacher = torch.tensor([[2 * math.log(3.0), 0.0]], dtype=torch.float64)
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    expected = 0.3 * math.log(2) + 0.7 * 4 * kl
    assert distill(student, teacher, torch.tensor([1]), temperature=2, alpha=0.7).item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_alpha_0_is_cross_entropy(smoothing: float) -> None:
    student, teacher, labels = _case()
    loss = distill(student, teacher, labels, alpha=0, label_smoothing=smoothing)
    assert torch.equal(loss, F.cross_entropy(student, labels, label_smoothing=smoothing))


def test_equal_logits_leave_no_soft_loss() -> None:
    student, _, labels = _case()
    assert distill(student, student, labels, alpha=1.0).item() == 0.0


@given(st.floats(0.5, 50))
@settings(deadline=None)
def test_soft_gradient_has_its_closed_form(temperature: float) -> None:
    """d/dz of T² KL is T (softmax(z/T) - softmax(v/T)), over the batch size."""
    student, teacher, labels = _case()
    (grad,) = torch.autograd.grad(distill(student, teacher, labels, temperature, alpha=1.0), student)
    expected = temperature * ((student / temperature).softmax(1) - (teacher / temperature).softmax(1)) / len(labels)
    torch.testing.assert_close(grad, expected.detach())


def test_gradient_keeps_its_size_as_the_temperature_rises() -> None:
    """In the limit it is (z - v) / classes of the centred logits (section 2.1 of the paper): independent of T."""
    student, teacher, labels = _case()
    (grad,) = torch.autograd.grad(distill(student, teacher, labels, 1e4, alpha=1.0), student)
    gap = (student - teacher).detach()
    limit = (gap - gap.mean(1, keepdim=True)) / gap.shape[1] / len(labels)
    torch.testing.assert_close(grad, limit, rtol=1e-3, atol=1e-6)


def test_teacher_gets_no_gradient() -> None:
    student, teacher, labels = _case()
    teacher.requires_grad_()
    distill(student, teacher, labels).backward()
    assert teacher.grad is None
    assert student.grad is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [({"temperature": 0}, "temperature=0 must"), ({"alpha": 1.5}, "alpha=1.5 between")],
)
def test_bad_settings_are_named(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distill(*_case(), **change)


def test_other_classes_are_named() -> None:
    student, teacher, labels = _case()
    with pytest.raises(ValueError, match=r"\(5, 6\) and the student's \(5, 7\)"):
        distill(student, teacher[:, :6], labels)
