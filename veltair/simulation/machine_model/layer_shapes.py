"""The layers of a model as machine models see them: matrix products and streams, with their sizes in elements.

`machine_model.derive_layers` writes the files in `data/layers` from the networks of the zoo.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import msgspec

from veltair.errors import ConfigError

_DATA = resources.files("veltair.simulation.machine_model") / "data" / "layers"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer of one query; sizes are in elements.

    >>> LayerShape("fc", "matmul", flops=2048, inputs=32, weights=1024, outputs=32, m=1, n=32, k=32).groups
    1
    """

    name: str
    op: str
    flops: int
    inputs: int  # activations that the operator reads
    weights: int  # constants, which are cold at each query
    outputs: int
    extra: int = 0  # further activations that are read once, such as a residual
    second: int = 0  # activations that are the second operand of a product: keys and values
    m: int = 0  # of a product: output rows (pixels) of each group; 0: a stream, which reads each element once
    n: int = 0  # output columns (channels) of each group
    k: int = 0  # length of the sums
    groups: int = 1  # independent products, such as attention heads
    row: int = 1  # outputs that a block always takes together: a row of pixels
    reach: float = 0.0  # further rows of inputs that a block of rows reads, in rows of the block


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The layers of a model.

    >>> ModelShape("empty", "", ()).layers
    ()
    """

    model: str
    source_digest: str  # sha256 of the ONNX file
    layers: tuple[LayerShape, ...]


def shipped_models() -> list[str]:
    """Returns the models whose layers ship with the package."""
    return sorted(file.name.removesuffix(".json") for file in _DATA.iterdir() if file.name.endswith(".json"))


def load_model_shape(model: str) -> ModelShape:
    """Returns the layers of a model that ships; raises ConfigError for any other."""
    if model not in shipped_models():
        raise ConfigError(f"no layers of model {model!r}: expected one of {', '.join(shipped_models())}")
    return msgspec.json.decode((_DATA / f"{model}.json").read_bytes(), type=ModelShape)
