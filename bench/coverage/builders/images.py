"""Networks that give images or signals again: segmentation, restoration, generation; at the sizes of their use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from bench.coverage.exported import Built

SHAPES = {
    "unet": (3, 256, 256),
    "unet_bilinear": (3, 256, 256),
    "edsr": (3, 96, 96),
    "espcn": (1, 240, 320),
    "dncnn": (1, 128, 128),
    "pix2pix": (3, 256, 256),
    "dcgan": (100, 1, 1),
    "tcn": (16, 512),
    "wavenet": (1, 4000),
    "axial_einsum": (64, 32, 32),
}


def network(name: str, facts: Mapping[str, Any]) -> Built:
    import torch

    made: dict[str, Callable[[], Any]] = {**_of_images(), **_of_signals(), "axial_einsum": _axial_einsum}
    return Built(made[name](), {"x": torch.randn(1, *SHAPES[name])})


def _of_images() -> dict[str, Callable[[], Any]]:
    """Classes stand in functions, since this module is read where there is no PyTorch."""
    import torch
    from torch import nn

    def twice(inputs: int, outputs: int) -> Any:
        parts = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        parts += [nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts)

    class UNet(nn.Module):  # type: ignore[misc]
        """Ronneberger et al., "U-Net" (2015), with a quarter of its channels."""

        def __init__(self, enlarge: Callable[[int, int], Any]) -> None:
            super().__init__()
            widths = [32, 64, 128, 256, 512]
            self.down = nn.ModuleList(map(twice, [3, *widths], widths))
            self.up = nn.ModuleList(map(enlarge, widths[:0:-1], widths[-2::-1]))
            self.join = nn.ModuleList(twice(2 * width, width) for width in widths[-2::-1])
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: Any) -> Any:
            kept = list[Any]()
            for depth, block in enumerate(self.down):
                x = block(nn.functional.max_pool2d(x, 2) if depth else x)
                kept.append(x)
            for up, join, other in zip(self.up, self.join, kept[-2::-1], strict=True):
                x = join(torch.cat([other, up(x)], 1))
            return self.head(x)

    class Edsr(nn.Module):  # type: ignore[misc]
        """Lim et al., "Enhanced deep residual networks for single image super-resolution" (2017), twice as large."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 64, 3, padding=1)
            self.body = nn.ModuleList(
                nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
                for _ in range(8)
            )
            tail = nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(64, 3, 3, padding=1)
            self.tail = nn.Sequential(*tail)

        def forward(self, x: Any) -> Any:
            x = whole = self.head(x)
            for block in self.body:
                x = x + block(x) * 0.1
            return self.tail(x + whole)

    class DnCnn(nn.Module):  # type: ignore[misc]
        """Zhang et al., "Beyond a Gaussian denoiser" (2017), of ten layers."""

        def __init__(self) -> None:
            super().__init__()
            parts = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
            for _ in range(8):
                parts += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
            self.noise = nn.Sequential(*parts, nn.Conv2d(64, 1, 3, padding=1))

        def forward(self, x: Any) -> Any:
            return x - self.noise(x)

    def espcn() -> Any:
        parts = [nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh()]
        return nn.Sequential(*parts, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3))

    def pix2pix() -> Any:
        """The encoder and decoder of Isola et al. (2017), without what leads past them."""
        widths = [3, 64, 128, 256, 512]
        parts = list[Any]()
        for inputs, outputs in pairwise(widths):
            parts += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.InstanceNorm2d(outputs), nn.LeakyReLU(0.2)]
        for inputs, outputs in pairwise(widths[:0:-1]):
            parts += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.InstanceNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def dcgan() -> Any:
        """The generator of Radford et al. (2016)."""
        parts = list[Any]()
        for inputs, outputs, stride, pad in [(100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)]:
            convolution = nn.ConvTranspose2d(inputs, outputs, 4, stride, pad, bias=False)
            parts += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())

    def transposed(inputs: int, outputs: int) -> Any:
        return nn.ConvTranspose2d(inputs, outputs, 2, 2)

    def bilinear(inputs: int, outputs: int) -> Any:
        return nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(inputs, outputs, 3, padding=1))

    return {
        "unet": lambda: UNet(transposed),
        "unet_bilinear": lambda: UNet(bilinear),
        "edsr": Edsr,
        "dncnn": DnCnn,
        "espcn": espcn,
        "pix2pix": pix2pix,
        "dcgan": dcgan,
    }


def _of_signals() -> dict[str, Callable[[], Any]]:
    import torch
    from torch import nn
    from torch.nn import functional

    class Tcn(nn.Module):  # type: ignore[misc]
        """Bai et al., "An empirical evaluation of generic convolutional and recurrent networks" (2018)."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(16, 64, 1)
            self.layers = nn.ModuleList(nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i) for i in range(8))
            self.head = nn.Conv1d(64, 10, 1)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for layer in self.layers:
                x = x + functional.relu(layer(x))
            return self.head(x).mean(-1)

    class WaveNet(nn.Module):  # type: ignore[misc]
        """van den Oord et al. (2016), of sixteen layers."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv1d(1, 32, 1), nn.Conv1d(32, 256, 1)
            self.gates = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2 ** (i % 8)) for i in range(16))
            self.rest = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(16))

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            whole = torch.zeros_like(x)
            for i, (gate, rest) in enumerate(zip(self.gates, self.rest, strict=True)):
                value, factor = gate(functional.pad(x, (2 ** (i % 8), 0))).chunk(2, 1)
                made = rest(torch.tanh(value) * torch.sigmoid(factor))
                whole, x = whole + made, x + made
            return self.head(functional.relu(whole))

    return {"tcn": Tcn, "wavenet": WaveNet}


def _axial_einsum() -> Any:
    """Attention along the rows of an image, written with `einsum` (Wang et al., "Axial-DeepLab", 2020)."""
    import torch
    from torch import nn

    class Axial(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Conv2d(64, 192, 1)
            self.mix = nn.Parameter(torch.randn(64, 64) / 8)

        def forward(self, x: Any) -> Any:
            q, k, v = self.parts(x).unflatten(1, (12, 16)).chunk(3, 1)
            weights = torch.einsum("bgchi,bgchj->bghij", q, k).mul(0.25).softmax(-1)
            made = torch.einsum("bghij,bgchj->bgchi", weights, v).flatten(1, 2)
            return torch.einsum("bchw,cd->bdhw", made, self.mix)

    return Axial()
