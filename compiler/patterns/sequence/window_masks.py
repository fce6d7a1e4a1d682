"""Masks of Swin's shifted windows: what a constant adds to the scores of each window of an image, behind a Reshape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView

MOST_BYTES = 64 << 20  # of a mask whose windows and heads are written out


@dataclass(frozen=True, slots=True)
class WindowMask:
    """A mask that repeats with the images: (windows, heads or 1, tokens or 1, keys) of float32.

    >>> WindowMask("scores", np.zeros((4, 1, 49, 49), np.float32), ()).values.shape
    (4, 1, 49, 49)
    """

    scores: str  # (images * windows, heads, tokens, keys), to which it is added
    values: NDArray[np.float32]
    nodes: tuple[onnx.NodeProto, ...]  # two reshapes and the addition between

    def joined(self, mask: NDArray[Any] | None) -> NDArray[np.float32] | None:
        """The sum with a mask that is added too, if it is the same for every window and not too large."""
        if mask is None:
            return self.values
        shapes = zip((1,) * (4 - mask.ndim) + mask.shape, self.values.shape, strict=True)
        too_large = 4 * np.prod([max(pair) for pair in shapes], dtype=np.float64) > MOST_BYTES
        return None if too_large else (self.values + mask).astype(np.float32)


def match_window_mask(name: str, view: ModelView) -> WindowMask | None:
    """The mask that was added last to these scores, if it is one of windows; else None.

    (n * windows, …) -> (n, windows, …) + constant (windows, …) -> (n * windows, …).
    """
    last = view.makers.get(name)
    add = view.makers.get(last.input[0]) if last is not None and last.op_type == "Reshape" else None
    if last is None or add is None or add.op_type != "Add":
        return None
    places = [place for place, other in enumerate(add.input) if other in view.constants]
    first = view.makers.get(add.input[1 - places[0]]) if len(places) == 1 else None
    if first is None or first.op_type != "Reshape":
        return None
    inner = (first.output[0], add.output[0], last.output[0])
    if any(view.only_user(between) is None for between in inner):
        return None
    scores, split = view.shape_of(first.input[0]), view.shape_of(add.output[0])
    values = view.constants[add.input[places[0]]]
    values = values.reshape((1,) * (5 - values.ndim) + values.shape) if values.ndim < 5 else values
    if len(split) != 5 or values.ndim != 5 or view.shape_of(first.output[0]) != split:
        return None
    images, windows, *rest = split
    if view.shape_of(name) != scores or scores != (images * windows, *rest) or windows < 1:
        return None
    expected = (1, windows, *rest)
    fits = all(given in (1, extent) for given, extent in zip(values.shape, expected, strict=True))
    if not fits or values.shape[-1] != rest[-1]:
        return None
    whole = np.broadcast_to(values[0], (windows, *values.shape[2:]))
    return WindowMask(first.input[0], np.ascontiguousarray(whole, np.float32), (first, add, last))
