"""Checks a code version against the layer's reference on random inputs, before it may enter an artifact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.references.layer_reference import pack_activation, reference_outputs, unpack_activation
from veltair.compiler.references.quantised_reference import (
    LEAN,
    QUANTISED_REFERENCES,
    rounds_floats,
    steps_allowed,
    within_choices,
    without_jumps,
)
from veltair.compiler.stitch.operators.evaluate import reference_stitched
from veltair.compiler.timing.measure import Bounds, Meter, interior_slices, result_operands
from veltair.compiler.timing.measuring_messages import Operand
from veltair.compiler.tuning.repeated_rows import may_repeat, repeats
from veltair.profiles.artifact.expected_answer import HUGE
from veltair.profiles.artifact.manifest import shape_at

TOLERANCE = {
    "fp32": 1e-3,
    "bf16": 1e-2,
}  # largest error of a layer over the output's largest value, by the model's precision
LOOKUPS = ("columns", "embedding_bag", "lookups", "spmm", "block_gather")  # layers that read rows of tables
# Elements that are compared at a time. Temporary arrays of whole activations are mapped and faulted in again each time:
# with images of 224 pixels that took a third of a compile.
PART = 1 << 15
LOOKUP_TOLERANCE = 1e-5  # their reference reads the rows as they are stored, so only sums are rounded


def layer_tolerance(spec: LayerSpec, precision: str) -> float:
    """The largest relative error allowed of a layer in a model of this precision."""
    exact = spec.op in LOOKUPS and all(tensor.dtype != "uint16" for tensor in spec.outputs)
    return LOOKUP_TOLERANCE if exact else TOLERANCE[precision]


def largest_errors(found: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """The largest absolute difference, and the largest relative one.

    A difference is relative to the largest expected magnitude. Values that only stand for infinity, such as the lowest
    float of an attention mask, are held to their own magnitude, so that they do not hide the errors of all others.
    Infinities and NaN have to be the same in both; where they are not, both errors are infinite.
    """
    flat = np.ascontiguousarray(found).reshape(-1), np.ascontiguousarray(expected).reshape(-1)
    scale = max((_magnitude(part) for part in _parts(flat[1])), default=0.0)
    worst = relative = 0.0
    for part, wanted in zip(_parts(flat[0]), _parts(flat[1]), strict=True):
        a, b = part.astype(np.float64), wanted.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(a - b))
        most = float(difference.max(initial=0.0))
        if not np.isfinite(most):
            return float("inf"), float("inf")
        size = np.where(np.isfinite(b), np.abs(b), 0.0)
        shares = difference / np.where(size < HUGE, max(scale, 1e-30), size)
        worst, relative = max(worst, most), max(relative, float(shares.max(initial=0.0)))
    return worst, relative


def _parts(flat: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (flat[start : start + PART] for start in range(0, flat.size, PART))


def _magnitude(part: NDArray[Any]) -> float:
    """The largest that is finite and does not stand for infinity."""
    size = np.abs(part.astype(np.float64))
    return float(size.max(initial=0.0, where=size < HUGE))


class LayerJudge:
    """What the outputs of a layer may be for some inputs, which are in physical layout. ::

    judge = LayerJudge(spec, "fp32", inputs)
    for found, expected, limit in judge.outputs(results, reference_outputs(spec, inputs)):
        assert largest_errors(found, expected)[1] <= limit
    """

    def __init__(self, spec: LayerSpec, precision: str, inputs: Sequence[NDArray[Any]]) -> None:
        self.spec, self.inputs = spec, inputs
        self._tolerance = layer_tolerance(spec, precision)
        # Outputs that are as right, of a layer that rounds floats: values next to a middle are on its other side.
        self._choices: list[list[NDArray[Any]]] = []
        if rounds_floats(spec):
            values = [unpack_activation(tensor, array) for tensor, array in zip(spec.inputs, inputs, strict=True)]
            self._choices = [reference_stitched(spec, values, lean) for lean in (-LEAN, LEAN)]

    def outputs(
        self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], float]]:
        """Each output as an ONNX tensor, what was expected of it, and the largest relative error that it may have.

        Where roundings of floats may decide either way, an output is as expected.
        """
        return self.values(found, self.unpacked(expected))

    def unpacked(self, physical: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The ONNX tensors of outputs in physical layout."""
        return [unpack_activation(tensor, array) for tensor, array in zip(self.spec.outputs, physical, strict=True)]

    def values(
        self, found: Sequence[NDArray[Any]], goals: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], float]]:
        """`outputs`, of what was expected as ONNX tensors."""
        for nth, (tensor, result, goal) in enumerate(zip(self.spec.outputs, found, goals, strict=True)):
            values = unpack_activation(tensor, result)
            if self._choices:
                margin = self._tolerance * max((_magnitude(part) for part in _parts(goal.reshape(-1))), default=0.0)
                values = within_choices(values, goal, [choice[nth] for choice in self._choices], margin)
                values = without_jumps(values, goal)
            limit = self._tolerance if tensor.dtype in ("float32", "uint16") else 0.0  # integers are exact
            if self.spec.op in QUANTISED_REFERENCES and tensor.dtype in ("uint8", "int8"):
                limit = steps_allowed(self.spec) / max(float(np.abs(goal.astype(np.float64)).max(initial=0)), 1.0)
            yield values, goal, limit


class ReferenceCheck:
    """Checks the versions of one layer at one batch size against the same inputs and expected outputs. ::

    check = ReferenceCheck(spec, 3, bounds, "fp32")
    fault = check.find_fault(meter, library, symbol, weights, cores=2)
    """

    def __init__(self, spec: LayerSpec, batch: int, bounds: Bounds, precision: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.spec, self.batch = spec, batch
        together = spec.parameters.draw_inputs(batch, rng)
        steps = spec.op in QUANTISED_REFERENCES  # integers are steps of a quantised tensor: all of them occur
        drawn = [_draw(t, batch, bounds, rng, quantised=steps) for t in spec.inputs] if together is None else together
        self._inputs = drawn
        self._judge = LayerJudge(spec, precision, self._inputs)
        expected = reference_outputs(spec, self._inputs, batch)
        self._may_repeat = together is None and expected is not None and may_repeat(spec)
        self._goals = None if expected is None else self._judge.unpacked(expected)

    def find_fault(self, meter: Meter, library: Path, symbol: str, weights: Sequence[Operand], cores: int) -> str:
        """Describe what is wrong with a version on a number of cores; empty where it is right.

        A layer without a reference is only run. Raises CandidateError when the version crashes.
        """
        operands = [*meter.hand_over(self._inputs), *weights, *result_operands(self.spec, self.batch)]
        results = meter.call(library, symbol, operands, cores)
        for tensor, physical in zip(self.spec.outputs, results, strict=True):
            if _halo_written(tensor, physical):
                return f"{self._where(tensor, cores)}: the halo was written to"
        if self._goals is None:
            return ""
        outputs = self._judge.values(results, self._goals)
        for tensor, (found, expected, limit) in zip(self.spec.outputs, outputs, strict=True):
            _, error = largest_errors(found, expected)
            if not error <= limit:
                return f"{self._where(tensor, cores)}: off by {error:.2g} of its largest value, more than {limit:g}"
        return ""

    def repeats(
        self, meter: Meter, library: Path, symbol: str, weights: Sequence[Operand], cores: int, batch: int
    ) -> bool:
        """Whether a version without a fault is right at a greater batch too, as far as repeated samples tell.

        Raises CandidateError as `find_fault`.
        """
        return self._may_repeat and repeats(
            meter, library, symbol, weights, self.spec, self._inputs, self.batch, batch, cores
        )

    def _where(self, tensor: Activation, cores: int) -> str:
        return f"{tensor.name} at batch {self.batch} on {cores} cores"


def _halo_written(tensor: Activation, physical: NDArray[Any]) -> bool:
    if not tensor.block:
        return False
    _, _, rows, columns, _ = interior_slices(tensor, len(physical))
    around = physical[:, :, : rows.start], physical[:, :, rows.stop :]
    beside = physical[:, :, rows, : columns.start], physical[:, :, rows, columns.stop :]
    return any(part.any() for part in (*around, *beside))


def _draw(
    tensor: Activation, batch: int, bounds: Bounds, rng: np.random.Generator, *, quantised: bool = False
) -> NDArray[Any]:
    """A random physical tensor: halos and the padding channels are zeros."""
    shape = shape_at(tensor.shape, batch)
    kind = np.dtype(tensor.dtype).kind
    if kind == "f" or tensor.dtype == "uint16":
        return pack_activation(tensor, rng.standard_normal(shape, np.float32))
    if kind == "b":
        return pack_activation(tensor, rng.integers(0, 2, shape).astype(bool))
    every = (np.iinfo(tensor.dtype).min, np.iinfo(tensor.dtype).max) if quantised else (0, 0)
    low, high = bounds.get(tensor.name, every)
    return pack_activation(tensor, rng.integers(low, high, shape, endpoint=True).astype(tensor.dtype))
