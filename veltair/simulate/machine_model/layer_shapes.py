"""What the layers of a model are to the machine models: products and streams of so many elements.

The files under `data/layers` are written by `machine_model.derive_layers` from the zoo's real networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import msgspec

from veltair.errors import ConfigError

_DATA = resources.files("veltair.simulate.machine_model") / "data" / "layers"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of one query. Sizes are in elements, except where the name says bytes."""

    name: str
    op: str
    flops: int
    inputs: int  # activations that the operator reads
    weights: int  # constants: cold at each query
    outputs: int
    extra: int = 0  # activations that are read beside, once each: a residual
    second: int = 0  # activations that are a product's second operand: keys and values
    m: int = 0  # a product: outputs (pixels, rows), of each group; 0: a stream, each element seen once
    n: int = 0  # output channels, columns, of each group
    k: int = 0  # products that are summed
    groups: int = 1  # independent products, such as attention heads
    row: int = 1  # neighbouring outputs that a block takes whole: a row of pixels
    reach: float = 0.0  # rows of inputs beyond its own that a block of rows reads, in rows of its own


@dataclass(frozen=True, slots=True)
class ModelShape:
    model: str
    source_digest: str  # sha256 of the ONNX file
    layers: tuple[LayerShape, ...]


def models() -> list[str]:
    """Models whose layers ship."""
    return sorted(file.name.removesuffix(".json") for file in _DATA.iterdir() if file.name.endswith(".json"))


def load(model: str) -> ModelShape:
    """The layers of a model that ships. ConfigError for any other."""
    if model not in models():
        raise ConfigError(f"no layers of model {model!r}: expected one of {', '.join(models())}")
    return msgspec.json.decode((_DATA / f"{model}.json").read_bytes(), type=ModelShape)
