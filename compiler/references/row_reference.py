"""References of the layers on rows in numpy: matrix products, attention, recurrent units, lookups and their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding import family_reference as embedding
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters, MatmulParameters, WeightStorage
from veltair.compiler.graph.parameters.recommendation import (
    BlockGatherParameters,
    ConcatSumParameters,
    EmbeddingBagParameters,
    LookupParameters,
    OneHotSumParameters,
)
from veltair.compiler.graph.parameters.sequence import (
    AttentionParameters,
    LayerNormParameters,
)
from veltair.compiler.references.recurrent_reference import reference_recurrent
from veltair.compiler.references.reference_arithmetic import apply_activation, bf16_to_float32, float32_to_bf16
from veltair.compiler.references.tree_reference import reference_trees

Array = NDArray[Any]


def reference_matmul(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """activation((x @ weight + bias) [* gate] [+ residual]), with the weights as the kernel holds them."""
    parameters, weight = spec.parameters_as(MatmulParameters), np.ascontiguousarray(spec.weights["weight"], np.float32)
    if spec.op == "matmul_bf16" or parameters.storage is WeightStorage.BF16:
        weight = bf16_to_float32(float32_to_bf16(weight))
    rows, *sides = x
    product = rows.astype(np.float64) @ weight + spec.weights["bias"]
    if parameters.gated:
        product = product * sides.pop(0)
    if sides:
        product = product + sides[0]
    return [apply_activation(product.astype(np.float32), parameters.activation)]


def reference_batched_matmul(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """activation(scale * left @ right + bias)."""
    parameters, computed = spec.parameters_as(BatchedMatmulParameters), iter(x)
    left, right = (
        (spec.weights[side] if side in spec.weights else next(computed)).transpose(order)
        for side, order in (("left", parameters.left_order), ("right", parameters.right_order))
    )
    product = left.astype(np.float64) @ right.astype(np.float64) * parameters.scale + spec.weights["bias"]
    return [apply_activation(product.astype(np.float32), parameters.activation)]


def reference_attention(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """softmax(Q K^T * scale + mask) V of every image and head, as rows; zeros where -infinity hides all keys."""
    parameters = spec.parameters_as(AttentionParameters)
    q, k, v = (side.astype(np.float64) for side in split_heads(spec, x))
    scores = q @ k.transpose(0, 1, 3, 2) * parameters.scale
    if parameters.masked:
        mask = spec.weights["mask"] if "mask" in spec.weights else x[-1]
        scores = scores + (mask if len(mask) == 1 else np.tile(mask, (len(scores) // len(mask), 1, 1, 1)))
    highest = scores.max(-1, keepdims=True)
    likely = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    sums = likely.sum(-1, keepdims=True)
    return merge_heads(spec, [likely / np.where(sums == 0, 1, sums) @ v])


def split_heads(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """Q, K and V (images, heads, tokens, width)."""
    parameters, sides = spec.parameters_as(AttentionParameters), []
    width = parameters.width
    every = zip(parameters.places, parameters.heads_first, parameters.extents, parameters.heads_of_sides, strict=True)
    for (place, column), heads_first, tokens, heads in every:
        if heads_first:
            split = x[place][:, column : column + width].reshape(-1, heads, tokens, width)
        else:
            side = x[place][:, column : column + heads * width]
            split = side.reshape(-1, tokens, heads, width).transpose(0, 2, 1, 3)
        sides.append(split.repeat(parameters.heads // heads, axis=1))
    return sides


def merge_heads(spec: LayerSpec, x: list[Array]) -> list[Array]:
    return [x[0].transpose(0, 2, 1, 3).reshape(-1, spec.outputs[0].shape[1])]


def reference_layer_norm(spec: LayerSpec, x: list[Array]) -> list[Array]:
    return [_normalise(spec, x[0].astype(np.float64))]


def reference_token_embedding(spec: LayerSpec, x: list[Array]) -> list[Array]:
    rows = sum(spec.weights[f"table{i}"][ids].astype(np.float64) for i, ids in enumerate(x))
    return [_normalise(spec, (rows + spec.weights["positions"]).reshape(-1, spec.outputs[0].shape[1]))]


def reference_embedding_bag(spec: LayerSpec, x: list[Array]) -> list[Array]:
    reduce = spec.parameters_as(EmbeddingBagParameters).reduce
    return [embedding.sls(ids, spec.weights[f"table{i}"], None, reduce=reduce) for i, ids in enumerate(x)]


def reference_lookups(spec: LayerSpec, x: list[Array]) -> list[Array]:
    return [embedding.reference_lookups(spec.parameters_as(LookupParameters), x, list(spec.weights.values()))]


def reference_spmm(spec: LayerSpec, x: list[Array]) -> list[Array]:
    ids, offsets, entries = (spec.weights[name] for name in ("ids", "offsets", "entries"))
    return [embedding.csr_product(ids, offsets, entries, x[0])]


def reference_block_gather(spec: LayerSpec, x: list[Array]) -> list[Array]:
    samples = x[0].reshape(-1, spec.parameters_as(BlockGatherParameters).blocks, x[0].shape[1])
    return [samples[:, spec.weights["ids"]].reshape(-1, x[0].shape[1])]


def reference_one_hot_sum(spec: LayerSpec, x: list[Array]) -> list[Array]:
    parameters, parts = spec.parameters_as(OneHotSumParameters), []
    for ids, depth, scale in zip(x, parameters.depths, parameters.scales, strict=True):
        places = np.where(ids < 0, ids + depth, ids)
        parts.append((places[:, :, None] == np.arange(depth)).sum(1) * np.float64(scale))
    counts = np.concatenate(parts, axis=1)
    return [counts @ spec.weights["table"] + spec.weights["bias"] if "table" in spec.weights else counts]


def reference_concat_sum(spec: LayerSpec, x: list[Array]) -> list[Array]:
    width = spec.outputs[0].shape[1]
    parts = [piece.reshape(len(piece), -1, width).sum(1, dtype=np.float64) for piece in x]
    return [np.sum(parts, axis=0) * spec.parameters_as(ConcatSumParameters).scale]


def _normalise(spec: LayerSpec, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    epsilon = spec.parameters_as(LayerNormParameters).epsilon
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return np.asarray(centred / deviation * spec.weights["scale"] + spec.weights["shift"])


# By the operation of a layer.
ROW_REFERENCES: Mapping[str, Callable[[LayerSpec, list[Array]], list[Array]]] = {
    "matmul": reference_matmul,
    "matmul_bf16": reference_matmul,
    "batched_matmul": reference_batched_matmul,
    "batched_matmul_bf16": reference_batched_matmul,
    "attention": reference_attention,
    "split_heads": split_heads,
    "merge_heads": merge_heads,
    **dict.fromkeys(("recurrent", "projected_recurrent"), reference_recurrent),
    "layer_norm": reference_layer_norm,
    "embedding": reference_token_embedding,
    "embedding_bag": reference_embedding_bag,
    "lookups": reference_lookups,
    "spmm": reference_spmm,
    "block_gather": reference_block_gather,
    "one_hot_sum": reference_one_hot_sum,
    "concat_sum": reference_concat_sum,
    "trees": reference_trees,
}
