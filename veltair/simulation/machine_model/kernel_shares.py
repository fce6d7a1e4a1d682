"""How near to its bound a kernel comes, by the shape of its layer, as tuning records have measured it.

`python -m bench.paper.machine_model --kernels avx2` writes `data/kernels/avx2.json` from the shipped records of direct
kernels with these instructions. A layer has the share of the most similar shape that was measured, which is the shape
itself for most layers of the networks that the records were taken for.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from math import log2
from statistics import NormalDist
from typing import Annotated

import msgspec

from veltair.errors import ConfigError
from veltair.simulation.machine_model.layer_shapes import LayerShape

_DATA = resources.files("veltair.simulation.machine_model") / "data" / "kernels"


class KernelShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured shape: the share of the bound of its best tiling that the best kernel reaches on one core.

    >>> KernelShare("conv2d", wide=True, m=196, n=256, k=2304, outputs=50176, share=0.76).share
    0.76
    """

    op: str
    wide: bool  # the kernel spans several rows of pixels
    m: int  # sizes as in `LayerShape`
    n: int
    k: int
    outputs: int
    share: Annotated[float, msgspec.Meta(gt=0)]

    def distance(self, shape: LayerShape) -> float:
        """Returns how many doublings lie between the sizes of this shape and another."""
        mine, other = (self.m, self.n, self.k, self.outputs), (shape.m, shape.n, shape.k, shape.outputs)
        return sum(abs(log2(max(a, 1) / max(b, 1))) for a, b in zip(mine, other, strict=True))


class KernelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of measured shares.

    >>> load_kernel_table("avx2").imbalance < 0.1
    True
    """

    source: str
    imbalance: Annotated[float, msgspec.Meta(ge=0)]  # standard deviation of a thread's time over the mean
    shares: Annotated[tuple[KernelShare, ...], msgspec.Meta(min_length=1)]

    def share(self, shape: LayerShape) -> float | None:
        """Returns the share of the most similar shape of the same kind; None if no such kind was measured."""
        alike = [each for each in self.shares if each.op == shape.op and each.wide == (shape.reach > 0)]
        return min(alike, key=lambda each: each.distance(shape)).share if alike else None


def kernel_table_names() -> list[str]:
    """Returns the names of the tables that ship with the package."""
    return sorted(file.name.removesuffix(".json") for file in _DATA.iterdir() if file.name.endswith(".json"))


@cache
def load_kernel_table(name: str) -> KernelTable:
    """Returns a table that ships with the package; raises ConfigError for any other name."""
    if name not in kernel_table_names():
        raise ConfigError(f"unknown kernels {name!r}: expected {', '.join(kernel_table_names())}")
    return msgspec.json.decode((_DATA / f"{name}.json").read_bytes(), type=KernelTable)


@cache
def slowest_of(threads: int) -> float:
    """Returns the mean of the greatest of this many draws of a standard normal distribution, after Blom (1958).

    >>> round(slowest_of(64), 2)
    2.34
    """
    return NormalDist().inv_cdf((threads - 0.375) / (threads + 0.25)) if threads > 1 else 0.0
