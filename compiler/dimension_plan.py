"""At which extents a model with an open dimension is compiled, and how queries are brought to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent, open_axes, open_surplus
from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
from veltair.compiler.onnx.folding.sized_outputs import OUTPUT_ROOM, OutputRoom
from veltair.compiler.onnx.id_bounds import id_bounds
from veltair.compiler.onnx.onnx_model import load_model, parse_model
from veltair.compiler.onnx.position_rules import PaddingShowsError
from veltair.compiler.padding_proof import prove_padding
from veltair.profiles.artifact.dynamic_dimension import DynamicDimension

SHORT = (8, 16)  # buckets below the first step
STEP, LONG_STEP, LONG = 32, 64, 256  # between buckets, and from 256 on


@dataclass(frozen=True, slots=True)
class DimensionPlan:
    """What `plan_dimension` decides.

    ::

        plan = plan_dimension(Path("bert.onnx"), GivenDimensions.of({"seq": (1, 512)}, "dims"))
        plan.dimension.extents  # (512, 448, …)
    """

    dimension: DynamicDimension
    output_room: OutputRoom
    ids: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of a model that is not padded: bounds of inputs

    @property
    def fixed(self) -> tuple[FixedExtent, ...]:
        """What is compiled, the largest first."""
        d = self.dimension
        return tuple(FixedExtent(d.name, extent, d.exact, ids=self.ids, last=d.last) for extent in d.extents)


def plan_dimension(path: Path, given: GivenDimensions, output_room: OutputRoom = OUTPUT_ROOM) -> DimensionPlan:
    """Buckets where queries may be padded, else one that has room for the largest and whose kernels know the extent.

    Raises ModelError where no input has the dimension that queries choose, or the model cannot be loaded.
    """
    name, low, high = given.chosen
    proto = parse_model(path, given)
    axes, surplus = open_axes(proto, name), open_surplus(proto, name, path)
    fixed = FixedExtent(name, high)
    fixed.fix(proto, path)
    try:
        for input_name, more in surplus.items():
            raise PaddingShowsError(f"{input_name!r} has {name} + {more}, so that no padding fits all inputs")
        proof = prove_padding(path, given, axes)
    except PaddingShowsError as shown:
        model = load_model(path, fixed=fixed, output_room=output_room, given=given)
        rooms = {port.name: prod(abs(dim) for dim in port.shape) for port in model.outputs}
        rooms |= {name: port.room for name, port in model.sized.items()}
        ids = {port.name: found for port in model.inputs if (found := id_bounds(model, port.name))}
        dimension = DynamicDimension(name, low, high, (high,), axes, exact=True, reason=str(shown), surplus=surplus)
        return DimensionPlan(dimension, rooms, ids)
    extents = bucket_extents(low, high)
    dimension = DynamicDimension(
        name, low, high, extents, axes | dict(proof.axes), dict(proof.pads), proof.masks, last=dict(proof.last)
    )
    return DimensionPlan(dimension, output_room)


def bucket_extents(low: int, high: int) -> tuple[int, ...]:
    """Extents to compile at, descending from `high`. At multiples of 32, at most a tenth of them is padding.

    >>> bucket_extents(1, 512)
    (512, 448, 384, 320, 256, 224, 192, 160, 128, 96, 64, 32, 16, 8)
    >>> bucket_extents(1, 9), bucket_extents(40, 50)
    ((9, 8), (50,))
    """
    found, extent = list(SHORT), STEP
    while extent < high:
        found.append(extent)
        extent += STEP if extent < LONG else max(LONG_STEP, 1 << (extent.bit_length() - 5))
    return (high, *reversed([each for each in found if low <= each < high]))
