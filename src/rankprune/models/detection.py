"""torchvision's Mask R-CNN on a ResNet-50 with feature pyramid, parts of it frozen from whatever start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankprune.models.adapters import load_torchvision
from rankprune.models.errors import ModelError
from rankprune.models.extra import need
from rankprune.models.registry import register_model

# One image in an evaluation: what the region proposal network hands to the box head, and that to the mask head.
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
    """`num_classes` counts the background; `pretrained` is of the backbone, `trainable_layers` of its five train.

    torchvision's own builder freezes nothing without pretrained weights; this one always freezes the same parts (stem,
    first stage and all norms of the backbone, as Detectron2 does), so that any start prunes the same weights. In
    training an image is resized to one of `min_size`, in evaluation to the last.
    """
    if in_channels != 3:
        raise ModelError(f"maskrcnn-resnet50-fpn takes images of 3 channels, not {in_channels}.")
    detection = need("torchvision.models.detection", "detection", "Mask R-CNN")
    fpn = need("torchvision.models.detection.backbone_utils", "detection", "Mask R-CNN")
    backbone = fpn.resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=trainable_layers)
    if pretrained:
        load_torchvision(backbone.body, "resnet50", pretrained)
    else:
        # Norms that are frozen at the identity let 16 residual branches add up: a quarter of each keeps their sum small.
        for name, buffer in backbone.named_buffers():
            if name.endswith("bn3.weight"):
                buffer.fill_(0.25)
    sizes = (min_size,) if isinstance(min_size, int) else tuple(min_size)
    model: nn.Module = detection.MaskRCNN(backbone, num_classes, min_size=sizes, max_size=max_size)
    return model


class NominalPass(nn.Module):
    """A detector's parts in one pass of fixed size, to count MACs with: what its heads meet depends on what is found.

    It goes by the detector's own names. An image passes with `PROPOSALS` boxes for the box head and `DETECTIONS` for
    the mask head, as in an evaluation on COCO.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        for name, child in detector.named_children():
            self.add_module(name, child)

    def forward(self, images: Tensor) -> None:
        parts: Any = self
        sizes = [(images.shape[-2], images.shape[-1])] * len(images)
        features = parts.backbone(images)
        parts.rpn.head(list(features.values()))
        heads = parts.roi_heads
        boxes = images.new_tensor([[0.0, 0.0, images.shape[-1], images.shape[-2]]])

        def pooled(pool: nn.Module, count: int) -> Tensor:
            return pool(features, [boxes.expand(count, 4)] * len(images), sizes)  # type: ignore[no-any-return]

        heads.box_predictor(heads.box_head(pooled(heads.box_roi_pool, PROPOSALS)))
        heads.mask_predictor(heads.mask_head(pooled(heads.mask_roi_pool, DETECTIONS)))


def counted(model: nn.Module) -> nn.Module:
    """What to count the MACs of `model` with."""
    return NominalPass(model) if hasattr(model, "roi_heads") else model


def image_like(model: nn.Module, channels: int, size: int) -> Tensor:
    """An example for `counted(model)`."""
    return torch.zeros(1, channels, size, size, device=next(model.parameters()).device)
