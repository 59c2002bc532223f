from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankprune.lab.models import create_model
from rankprune.lab.models.vit import Block, positions_2d


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (3, 16), (1, 28)])
def test_shapes(channels: int, size: int) -> None:
    model = create_model("vit-tiny-cpu", num_classes=5, in_channels=channels)
    assert model(torch.randn(2, channels, size, size)).shape == (2, 5)


def test_attention_is_the_textbook_one() -> None:
    block = Block(dim=8, heads=2, mlp_ratio=2).double()
    torch.nn.init.zeros_(block.fc2.weight)
    torch.nn.init.zeros_(block.fc2.bias)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    q, k, v = block.qkv(block.norm1(x)).split(8, dim=2)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        weights = (q[..., h] @ k[..., h].transpose(1, 2) / 2).softmax(-1)
        heads.append(weights @ v[..., h])
    expected = x + block.proj(torch.cat(heads, dim=2))
    torch.testing.assert_close(block(x), expected)


def test_positions_differ_and_matter() -> None:
    code = positions_2d(7, 5, 64)
    assert code.shape == (35, 64)
    distances = torch.cdist(code, code) + torch.eye(35)
    assert distances.min() > 0.1
    model = create_model("vit-tiny-cpu").eval()
    x = torch.randn(1, 3, 16, 16)
    assert not torch.allclose(model(x), model(x.roll(4, dims=3)), atol=1e-4)


def test_patches_are_the_convolution_of_a_patch_embedding() -> None:
    model = create_model("vit-tiny-cpu")
    x = torch.randn(2, 3, 16, 16)
    tokens = model.embed(F.unfold(x, 4, stride=4).transpose(1, 2))  # type: ignore[operator]
    kernel = model.embed.weight.view(64, 3, 4, 4)  # type: ignore[union-attr,operator]
    conv = F.conv2d(x, kernel, model.embed.bias, stride=4)  # type: ignore[union-attr,arg-type]
    torch.testing.assert_close(tokens, conv.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_size_that_does_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match="30x32 does not divide into patches of 4"):
        create_model("vit-tiny-cpu")(torch.zeros(1, 3, 30, 32))
