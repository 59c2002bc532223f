"""A plain ViT small enough for a CPU: fixed sine-cosine positions and mean pooling (Beyer et al. 2022)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import register_model


def positions_2d(height: int, width: int, dim: int) -> Tensor:
    """Return sine-cosine position embeddings of a grid: a quarter of the dimensions each is sin x, cos x, sin y, cos y.

    Args:
        height: Rows of the grid.
        width: Columns of the grid.
        dim: Dimensions, divisible by 4.

    Returns:
        (height * width, dim).
    """
    omega = 1e4 ** -torch.linspace(0, 1, dim // 4)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angle_x, angle_y = x.reshape(-1, 1) * omega, y.reshape(-1, 1) * omega
    return torch.cat([angle_x.sin(), angle_x.cos(), angle_y.sin(), angle_y.cos()], dim=1)


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream.

    Args:
        dim: Width of the tokens.
        heads: Attention heads.
        mlp_ratio: Width of the MLP relative to `dim`.
    """

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, mlp_ratio * dim)
        self.fc2 = nn.Linear(mlp_ratio * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform the tokens.

        Args:
            x: (batch, tokens, dim).

        Returns:
            (batch, tokens, dim).
        """
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, tokens, dim / heads)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + self.proj(attended)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SmallViT(nn.Module):
    """A ViT for images of any size that is a multiple of the patch size.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.
        patch: Height and width of a patch.
        dim: Width of the tokens.
        depth: Number of blocks.
        heads: Attention heads.
        mlp_ratio: Width of the MLP relative to `dim`.

    Raises:
        ValueError: `dim` is not divisible by 4 and by `heads`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        patch: int = 4,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: int = 4,
    ) -> None:
        super().__init__()
        if dim % 4 or dim % heads:
            raise ValueError(f"dim={dim} must be divisible by 4 and by heads={heads}.")
        self.patch, self.dim = patch, dim
        self.embed = nn.Linear(in_channels * patch * patch, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images.

        Args:
            x: (batch, in_channels, H, W).

        Returns:
            Logits, (batch, num_classes).
        """
        height, width = x.shape[-2] // self.patch, x.shape[-1] // self.patch
        if (height * self.patch, width * self.patch) != tuple(x.shape[-2:]):
            raise ValueError(f"An image of {x.shape[-2]}x{x.shape[-1]} does not divide into patches of {self.patch}.")
        tokens = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)  # (batch, patches, in_channels * patch²)
        embedded = self.embed(tokens)
        x = embedded + positions_2d(height, width, self.dim).to(embedded)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


@register_model("vit-tiny-cpu")
def vit_tiny_cpu(num_classes: int, in_channels: int, patch: int = 4) -> SmallViT:
    """Create a ViT with four blocks of width 64: 0.2 M weights.

    Args:
        num_classes: Number of classes.
        in_channels: Input channels.
        patch: Height and width of a patch.

    Returns:
        The model.
    """
    return SmallViT(num_classes, in_channels, patch)
