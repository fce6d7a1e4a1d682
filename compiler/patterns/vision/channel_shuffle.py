"""Channel shuffles (ShuffleNet): permutations that the convolution before them makes for free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute


@dataclass(frozen=True, slots=True)
class ChannelShuffle:
    """The nodes of a channel shuffle.

    >>> ChannelShuffle("y", np.array([0, 2, 1, 3]), 2, ()).groups
    2
    """

    output: str  # name of the tensor that comes out
    order: NDArray[Any]  # for each output channel, the input channel that it is
    groups: int  # their first channels come first, then their second ones, …
    nodes: tuple[onnx.NodeProto, ...]


def shuffle_behind(name: str, view: ModelView) -> ChannelShuffle | None:
    """Reshape (N, C, H, W) to (N, G, C / G, H, W), exchange the two, and back, if that is all that reads a tensor."""
    nodes: list[onnx.NodeProto] = []
    output = name
    for kind in ("Reshape", "Transpose", "Reshape"):
        user = view.free_user(output)
        if user is None or user.op_type != kind or user.input[0] != output:
            return None
        nodes.append(user)
        output = user.output[0]
    shape, apart = view.shape_of(name), view.shape_of(nodes[0].output[0])
    if len(shape) != 4 or len(apart) != 5 or (apart[0], *apart[3:]) != (shape[0], *shape[2:]):
        return None
    if list(attribute(nodes[1], "perm", [])) != [0, 2, 1, 3, 4] or view.shape_of(output) != shape:
        return None
    return ChannelShuffle(output, np.arange(shape[1]).reshape(apart[1:3]).T.ravel(), apart[1], tuple(nodes))
