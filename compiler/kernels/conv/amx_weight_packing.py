"""Weights of a convolution in the order in which AMX tiles are loaded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.codegen.bf16 import array_to_bf16
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.kernels.conv.amx_tile_cover import BLOCK, DEPTH, TILE, fills_one_tile
from veltair.compiler.kernels.conv.conv_weights import fold_columns, folds_columns


def pack_amx_weights(spec: LayerSpec, weight: NDArray[np.float32], channel_tiles: int) -> NDArray[np.uint16]:
    """(OC, IC, KH, KW) -> (OC/unit, IC/32, KH, KW, channel_tiles, 16, 16, 2), a unit being `channel_tiles` x 16.

    For each step of the reduction there are `channel_tiles` tiles of 16 channel pairs x 16 output channels.

    Where columns are folded: (OC/unit, 1, KH, ceil(KW * IC / 32), channel_tiles, 16, 16, 2), KW with the gaps of its
    dilation.
    """
    weight = pad_axis(weight, 0, TILE if fills_one_tile(spec) else BLOCK)
    if folds_columns(spec):
        rows = pad_axis(fold_columns(spec, weight), 2, DEPTH)
        steps = rows.reshape(len(rows) // (channel_tiles * TILE), channel_tiles, TILE, 1, rows.shape[1], -1, 16, 2)
        return array_to_bf16(np.ascontiguousarray(steps.transpose(0, 3, 4, 5, 1, 6, 2, 7)))
    oc, _, kh, kw = weight.shape
    padded = pad_axis(weight, 1, DEPTH)
    steps = padded.reshape(oc // (channel_tiles * TILE), channel_tiles, TILE, -1, DEPTH // 2, 2, kh, kw)
    return array_to_bf16(np.ascontiguousarray(steps.transpose(0, 3, 6, 7, 1, 4, 2, 5)))
