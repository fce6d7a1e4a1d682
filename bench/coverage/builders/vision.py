"""Networks of torchvision and timm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.coverage.exported import Built

SIZE = 64  # height and width of an image where an entry states none
FRAMES = 8  # of a clip, likewise


def classification(name: str, facts: Mapping[str, Any]) -> Built:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, **facts.get("settings", {}))
    return _images(model, facts)


def segmentation(name: str, facts: Mapping[str, Any]) -> Built:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    return _images(model, facts)


def detection(name: str, facts: Mapping[str, Any]) -> Built:
    """One image: torchvision exports the heads for a batch of 1 alone. Boxes, labels, scores, …, as many as found."""
    import torch
    import torchvision

    size = facts["size"]
    settings = facts.get("settings", {})
    if not name.startswith("ssd"):
        settings = {"min_size": size, "max_size": size} | settings
    if "rcnn" in name:
        settings = {"box_score_thresh": 0.0, "box_detections_per_img": 20, "rpn_post_nms_top_n_test": 50} | settings
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, **settings)

    class OneImage(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: Any) -> tuple[Any, ...]:
            return tuple(self.model([image[0]])[0].values())

    return Built(OneImage(), {"image": torch.rand(1, 3, size, size)}, batch=False)


def video(name: str, facts: Mapping[str, Any]) -> Built:
    import torch
    import torchvision

    size, frames = facts.get("size", SIZE), facts.get("frames", FRAMES)
    model = torchvision.models.get_model(name, weights=None, **facts.get("settings", {}))
    return Built(model, {"clip": torch.randn(2, 3, frames, size, size)})


def flow(name: str, facts: Mapping[str, Any]) -> Built:
    """The last of two refinements of the flow between two images."""
    import torch
    import torchvision

    size = facts.get("size", SIZE)
    model = torchvision.models.get_model(name, weights=None)

    class LastFlow(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, second: Any) -> Any:
            return self.model(first, second, num_flow_updates=2)[-1]

    return Built(LastFlow(), {"first": torch.rand(1, 3, size, size), "second": torch.rand(1, 3, size, size)}, False)


def timm(name: str, facts: Mapping[str, Any]) -> Built:
    import timm as library

    model = library.create_model(name, pretrained=False, **facts.get("settings", {}))
    return _images(model, facts)


def _images(model: Any, facts: Mapping[str, Any]) -> Built:
    import torch

    size = facts.get("size", facts.get("settings", {}).get("image_size", SIZE))
    return Built(model, {"image": torch.randn(2, 3, size, size)})
