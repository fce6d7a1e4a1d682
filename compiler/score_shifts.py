"""Numbers that the extent adds to all scores of a row alike: softmax does not see them.

MPT's position bias counts from the last position back, so that it is another constant at each extent: the one of a
greater extent, cut, is the one of a smaller extent less a number for each head. A softmax over the axis along which the
number is the same gives the same probabilities. Scores that a mask replaces are not shifted, which shows unless they
are so low that they have no probability in either case.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.position_rules import PaddingShowsError, Positions

LOWEST = -1e30  # masks at or below it stay without probability, however far the other scores are shifted
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # of a difference, relative to the greatest value
DEEPEST = 8  # operators between the constant and the softmax


def check_shifts(positions: Positions) -> None:
    """Raises PaddingShowsError for a constant that the extent shifts, unless a softmax takes the shift away."""
    model = positions.large
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in model.nodes:
        for name in node.input:
            users.setdefault(name, []).append(node)
    outputs = {port.name for port in model.outputs}

    def is_lowest(name: str) -> bool:
        value = model.initializers.get(name)
        return value is not None and bool((value <= LOWEST).all())

    def ends_in_softmax(name: str, depth: int = 0) -> bool:
        """Whether nothing but softmaxes over the last axis sees a number that is added to all of it."""
        shape = model.values[name].shape
        if name in outputs or depth > DEEPEST or not shape:
            return False
        for node in users.get(name, ()):
            scores = node.output[0]
            if model.values[scores].shape[-1] != shape[-1]:
                return False
            match node.op_type:
                case "Softmax":
                    if attribute(node, "axis", -1) not in (-1, len(shape) - 1):
                        return False
                case "Add":
                    if node.input[0] == node.input[1] or not ends_in_softmax(scores, depth + 1):
                        return False
                case "Where":
                    masked = [other for other in node.input[1:] if other != name]
                    if name == node.input[0] or len(masked) != 1 or not is_lowest(masked[0]):
                        return False
                    if not ends_in_softmax(scores, depth + 1):
                        return False
                case _:
                    return False
        return True

    for name in positions.shifted:
        cut = positions.cut(name, model.initializers[name])
        if not _is_shifted(cut, positions.small.initializers[name]) or not ends_in_softmax(name):
            raise PaddingShowsError(f"constant {name!r} depends on the extent")


def _is_shifted(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Whether two constants differ by one number along their last axis, up to roundings."""
    if first.shape != second.shape or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return False
    apart = first.astype(np.float64) - second
    most = max(np.abs(first).max(initial=0), np.abs(second).max(initial=0))
    return bool((np.ptp(apart, axis=-1) <= ROUNDING * most).all())
