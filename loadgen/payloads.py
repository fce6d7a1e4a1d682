"""Seeded inputs for a served model, drawn from its metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import ConfigError
from veltair.loadgen.client import Feature, ModelMeta, TensorMeta, Tensors
from veltair.loadgen.scenario import LogNormal

FEW, MANY = 8, 32  # payloads of a fixed batch, and of a drawn one so that the sizes are seen
FEATURE_IDS = 1 << 40  # of a raw integer feature, which is hashed or looked up: any is taken
LONGEST_TOKEN = 7  # digits of one, at most

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),  # the upper half of a float32
}


def draw_payloads(
    meta: ModelMeta, batch: int | tuple[int, ...] | LogNormal | None, rng: np.random.Generator
) -> list[Tensors]:
    """Floats are normal; integers uniform in the input's id range, 0 where the server states none.

    Raw features are integers of 40 bits, and texts of decimal numbers that fill half of their room on average.

    Raises ConfigError when the model takes something that cannot be drawn, or a batch that it does not have.
    """
    dynamic = [tensor for tensor in meta.inputs if tensor.shape[:1] == (-1,)]
    if batch is not None and not dynamic:
        raise ConfigError(f"batch: model `{meta.name}` has a fixed batch, expected no such key")
    return [_draw(meta, size, rng) for size in _sizes(batch, meta.max_batch, rng)]


def _sizes(
    batch: int | tuple[int, ...] | LogNormal | None, max_batch: int | None, rng: np.random.Generator
) -> list[int]:
    if isinstance(batch, LogNormal):
        most = min(batch.most, max_batch or batch.most)
        drawn = np.rint(rng.lognormal(batch.log_mean, batch.log_sigma, MANY)).clip(1, most).astype(np.int64)
    else:
        low, high = batch if isinstance(batch, tuple) else (batch or 1, batch or 1)
        drawn = rng.integers(low, high + 1, FEW if low == high else MANY)
    sizes: list[int] = drawn.tolist()
    return sizes


def _draw(meta: ModelMeta, size: int, rng: np.random.Generator) -> Tensors:
    return {tensor.name: _tensor(meta, tensor, size, rng) for tensor in meta.inputs}


def _tensor(meta: ModelMeta, tensor: TensorMeta, size: int, rng: np.random.Generator) -> NDArray[np.generic]:
    where = f"model `{meta.name}`, input `{tensor.name}`"
    shape = tuple(size if axis == 0 and n == -1 else n for axis, n in enumerate(tensor.shape))
    if any(n < 0 for n in shape):
        raise ConfigError(f"{where}: shape {list(tensor.shape)}: only the first dimension may be dynamic")
    feature = meta.features.get(tensor.name)
    if tensor.datatype == "BYTES":
        return texts(feature or Feature(), shape, rng)
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ConfigError(f"{where}: cannot draw {tensor.datatype}, expected one of {', '.join(DTYPES)}, BYTES")
    if tensor.datatype == "BF16":
        return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    low, high = meta.id_ranges.get(tensor.name, (0, FEATURE_IDS if feature else 0))
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)


def texts(feature: Feature, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.object_]:
    """Strings that fit a feature's room, each row by itself.

    They are cut from one long text of digits, in which every few bytes are made a separator.
    """
    found = np.empty(shape, object)
    ends = rng.integers(1, feature.max_bytes, found.size, endpoint=True).cumsum()
    letters = rng.integers(ord("0"), ord("9") + 1, int(ends[-1]) if ends.size else 0, np.uint8)
    if feature.separator:
        places = rng.integers(2, LONGEST_TOKEN + 1, letters.size // 2 + 1, endpoint=True).cumsum() - 1
        letters[places[places < letters.size]] = ord(feature.separator)
    whole, bounds = letters.tobytes(), ends.tolist()
    found.reshape(-1)[:] = [whole[begin:end] for begin, end in zip([0, *bounds], bounds, strict=False)]
    return found


def raw(values: NDArray[np.generic]) -> bytes:
    """As the protocol sends them: strings each behind their length."""
    if values.dtype.hasobject:
        return b"".join([len(item).to_bytes(4, "little") + item for item in values.reshape(-1).tolist()])
    return values.tobytes()
