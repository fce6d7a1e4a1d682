"""The layer graph: what a model is between its ONNX nodes and its kernels.

A layer is an anchor operator with its epilogue. Vision activations travel in a channel-blocked layout

    (N, C / block, top + H + bottom, left + W + right, block)

with a halo of zeros that the next convolution reads as its padding: 16 fp32 channels a block (one AVX-512 register)
or 32 bfloat16 ones (one row of an AMX tile). Everything else travels row-major, as in ONNX.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from veltair.compiler.graph.parameters import LayerParameters
from veltair.errors import InvariantError
from veltair.profiles.artifact.manifest import shape_at

P = TypeVar("P", bound=LayerParameters)
Point = dict[str, int | str]  # a point of a design space: the value of each coordinate


@dataclass(frozen=True, slots=True)
class Halo:
    """Rows and columns of zeros around the plane of a blocked tensor.

    >>> Halo(1, 1, 1, 1).union(Halo(0, 3, 0, 3))
    Halo(top=1, left=3, bottom=1, right=3)
    """

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0

    def union(self, other: Halo) -> Halo:
        """The least halo that holds both."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        return Halo(top, left, max(self.bottom, other.bottom), max(self.right, other.right))


@dataclass(frozen=True, slots=True)
class Activation:
    """A tensor between layers. `shape` is the ONNX one; a dimension -k stands for k times the batch.

    >>> Activation("y", "float32", (1, 20, 8, 8), block=16).physical
    (1, 2, 8, 8, 16)
    """

    name: str
    dtype: str  # numpy name; "uint16" holds bfloat16 bits
    shape: tuple[int, ...]
    block: int = 0  # channels in a block; 0 = row-major
    halo: Halo = field(default_factory=Halo)

    @property
    def physical(self) -> tuple[int, ...]:
        """The shape in memory."""
        if not self.block:
            return self.shape
        n, c, h, w = self.shape
        halo = self.halo
        return (n, -(-c // self.block), halo.top + h + halo.bottom, halo.left + w + halo.right, self.block)

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape in memory for a query of this batch."""
        return shape_at(self.physical, batch)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer before it has code. `weights` are its constants as ONNX lays them out.

    >>> x, y = Activation("x", "float32", (-1, 8)), Activation("y", "float32", (-1, 8))
    >>> LayerSpec("softmax_0", "softmax", (x,), (y,), weights={}, flops=0).workload
    'softmax float32[-1,8]/0 float32[-1,8]/0'
    """

    name: str
    op: str
    inputs: tuple[Activation, ...]
    outputs: tuple[Activation, ...]
    weights: Mapping[str, NDArray[Any]]
    flops: int  # at batch 1 of a dynamic batch: scales with it
    max_batch: int = 1
    parameters: LayerParameters = field(default_factory=LayerParameters)

    def parameters_as(self, kind: type[P]) -> P:
        """The parameters as those of one kind of layer. Raises InvariantError where they are of another kind."""
        if not isinstance(self.parameters, kind):
            raise InvariantError(f"{self.name}: expected {kind.__name__}, found {type(self.parameters).__name__}")
        return self.parameters

    def most(self, extent: int) -> int:
        """An extent at the greatest batch."""
        return shape_at((extent,), self.max_batch)[0]

    @property
    def workload(self) -> str:
        """The key of tuning records: everything that the time depends on; no names, halos, weights."""
        tensors = [f"{t.dtype}{list(t.shape)}/{t.block}" for t in (*self.inputs, *self.outputs)]
        terms = self.parameters.terms()
        return " ".join([self.op, *tensors, *(f"{k}={terms[k]}" for k in sorted(terms))]).replace(", ", ",")

    @property
    def symbol(self) -> str:
        """A C identifier for the workload, halos and rows of tables: layers that share it share their code."""
        halos = [str(t.halo) for t in (*self.inputs, *self.outputs)]
        extents = [f"{name}{list(weight.shape)}" for name, weight in self.weights.items()]
        facts = [self.workload, *halos, str(self.max_batch), *extents]
        digest = hashlib.sha256(" ".join(facts).encode()).hexdigest()
        return f"{self.op}_{digest[:12]}"


def version_symbol(spec: LayerSpec, point: Point) -> str:
    """A C identifier for a layer's code at a point: equal ones are the same code.

    >>> x = Activation("x", "float32", (4,))
    >>> layer = LayerSpec("relu", "elementwise", (x,), (x,), weights={}, flops=0)
    >>> version_symbol(layer, {"tile": 8}) == version_symbol(layer, {"tile": 16})
    False
    """
    digest = hashlib.sha256(repr(sorted(point.items())).encode()).hexdigest()
    return f"{spec.symbol}_{digest[:8]}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """Code of one version of one layer: takes the inputs, the packed weights, then the outputs.

    >>> Kernel(function=None, weights=(), block_size=4096, parallelism=16).parallelism
    16
    """

    function: Any  # tvm.tirx.PrimFunc without a name
    weights: tuple[NDArray[Any], ...]
    block_size: int  # bytes of working set of one parallel task
    parallelism: int  # parallel extent x unroll


class Space(Protocol):
    """The design space of one kind of layer."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """Every point worth measuring, a good default first. Never empty."""

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        """Generate the code of one candidate and pack the weights that it wants."""
