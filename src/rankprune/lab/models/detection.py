"""torchvision's Mask R-CNN with a ResNet-50 FPN backbone; the same parts are frozen whatever weights it starts from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankprune._util import need
from rankprune.flops import FlopReport, count

from .adapters import load_torchvision
from .errors import ModelError, WeightsError
from .registry import register_model
from .weights import read_state_dict

# Per image in an evaluation: boxes that reach the box head, and boxes that reach the mask head.
PROPOSALS, DETECTIONS = 1000, 100


@register_model("maskrcnn-resnet50-fpn")
def maskrcnn(
    num_classes: int,
    in_channels: int,
    pretrained: bool | str = False,
    trainable_layers: int = 3,
    min_size: int | Sequence[int] = 800,
    max_size: int = 1333,
) -> nn.Module:
    """Create a Mask R-CNN.

    torchvision's own builder freezes nothing without pretrained weights. This one always freezes the same parts (stem,
    first stage and all norms of the backbone, as Detectron2 does), so that the same weights are prunable in every case.

    Args:
        num_classes: Number of classes, including the background.
        in_channels: Must be 3.
        pretrained: Weights of the backbone: a name of torchvision's ResNet-50 weights, or a file.
        trainable_layers: How many of the backbone's five stages train.
        min_size: Shorter side of an image; if several, training draws one and evaluation uses the last.
        max_size: Maximum of the longer side.

    Returns:
        The detector.

    Raises:
        ModelError: `in_channels` is not 3.
        WeightsError: The weights cannot be loaded.
    """
    if in_channels != 3:
        raise ModelError(f"maskrcnn-resnet50-fpn takes images of 3 channels, not {in_channels}.")
    detection = need("torchvision.models.detection", "detection", "Mask R-CNN")
    fpn = need("torchvision.models.detection.backbone_utils", "detection", "Mask R-CNN")
    backbone = fpn.resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=trainable_layers)
    if isinstance(pretrained, str) and Path(pretrained).suffix in (".pth", ".pt", ".safetensors"):
        _load_backbone(backbone.body, Path(pretrained))
    elif pretrained:
        load_torchvision(backbone.body, "resnet50", pretrained)
    else:
        # Norms frozen at the identity would let 16 residual branches add up, so each is scaled by a quarter.
        for name, buffer in backbone.named_buffers():
            if name.endswith("bn3.weight"):
                buffer.fill_(0.25)
    sizes = (min_size,) if isinstance(min_size, int) else tuple(min_size)
    model: nn.Module = detection.MaskRCNN(backbone, num_classes, min_size=sizes, max_size=max_size)
    return model


def _load_backbone(body: nn.Module, path: Path) -> None:
    state, own = read_state_dict(path), body.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    if missing := sorted(own.keys() - fitting.keys()):
        raise WeightsError(f"{path.name} holds no ResNet-50: {len(missing)} tensors are missing (first {missing[0]}).")
    body.load_state_dict(fitting)


class NominalPass(nn.Module):
    """A detector's forward pass with a fixed number of boxes, for counting MACs, which otherwise depend on the image.

    It relies on torchvision's names of the parts. Each image has `PROPOSALS` boxes for the box head and `DETECTIONS`
    boxes for the mask head, as in an evaluation on COCO.

    Args:
        detector: The detector.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        for name, child in detector.named_children():
            self.add_module(name, child)

    def forward(self, images: Tensor) -> None:
        """Run all parts once.

        Args:
            images: (N, 3, H, W).
        """
        parts: Any = self
        heads = parts.roi_heads
        features = list(parts.backbone(images).values())
        parts.rpn.head(features)

        def pooled(pool: Any, count: int) -> Tensor:
            return images.new_zeros(count * len(images), features[0].shape[1], *pool.output_size)

        heads.box_predictor(heads.box_head(pooled(heads.box_roi_pool, PROPOSALS)))
        heads.mask_predictor(heads.mask_head(pooled(heads.mask_roi_pool, DETECTIONS)))


def count_macs(model: nn.Module, channels: int, size: int) -> FlopReport:
    """Count the MACs of one image; for a detector, those of its nominal pass.

    Args:
        model: The model.
        channels: Input channels.
        size: Height and width of the image.

    Returns:
        MACs per layer.
    """
    if not hasattr(model, "roi_heads"):
        return count(model, torch.zeros(1, channels, size, size, device=next(model.parameters()).device))
    # On the meta device, because the pass itself would take hundreds of billions of MACs.
    shapes = NominalPass(copy.deepcopy(model).to("meta"))
    weights = {name: p.detach() for name, p in model.named_parameters() if p.ndim > 1}
    return count(shapes, torch.zeros(1, channels, size, size, device="meta"), weights)
