"""Seeded inputs for a served model, drawn from its metadata."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import ConfigError
from veltair.loadgen.contract import ModelMeta, TensorMeta, Tensors

FEW, MANY = 8, 32  # payloads of a fixed batch, and of a drawn one so that the sizes are seen

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),  # the upper half of a float32
}


def draw_payloads(meta: ModelMeta, batch: int | tuple[int, ...] | None, rng: np.random.Generator) -> list[Tensors]:
    """Floats are normal; integers uniform in the input's id range, 0 where the server states none.

    Raises ConfigError when the model takes something that cannot be drawn, or a batch that it does not have.
    """
    dynamic = [tensor for tensor in meta.inputs if tensor.shape[:1] == (-1,)]
    if batch is not None and not dynamic:
        raise ConfigError(f"batch: model `{meta.name}` has a fixed batch, expected no such key")
    low, high = batch if isinstance(batch, tuple) else (batch or 1, batch or 1)
    count = FEW if low == high else MANY
    return [_draw(meta, size, rng) for size in rng.integers(low, high + 1, count).tolist()]


def _draw(meta: ModelMeta, size: int, rng: np.random.Generator) -> Tensors:
    return {tensor.name: _tensor(meta, tensor, size, rng) for tensor in meta.inputs}


def _tensor(meta: ModelMeta, tensor: TensorMeta, size: int, rng: np.random.Generator) -> NDArray[np.generic]:
    where = f"model `{meta.name}`, input `{tensor.name}`"
    shape = tuple(size if axis == 0 and n == -1 else n for axis, n in enumerate(tensor.shape))
    if any(n < 0 for n in shape):
        raise ConfigError(f"{where}: shape {list(tensor.shape)}: only the first dimension may be dynamic")
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ConfigError(f"{where}: cannot draw {tensor.datatype}, expected one of {', '.join(DTYPES)}")
    if tensor.datatype == "BF16":
        return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    low, high = meta.id_ranges.get(tensor.name, (0, 0))
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)


def parse_id_ranges(text: str) -> dict[str, tuple[int, int]]:
    """The `id_range` parameter of a model's config, JSON {input: [low, high]}; both inclusive, null is an open end.

    Raises ConfigError.
    """
    try:
        ranges = {str(name): _range(low, high) for name, (low, high) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        ranges = {"": (0, -1)}
    if any(low > high for low, high in ranges.values()):
        raise ConfigError(f"the server's id_range: expected {{input: [low, high]}}, got {text[:200]}")
    return ranges


def _range(low: int | None, high: int | None) -> tuple[int, int]:
    """An open end gives way to 0, or to the other end where 0 is beyond that."""
    if low is None:
        low = 0 if high is None else min(0, int(high))
    return int(low), max(0, int(low)) if high is None else int(high)
