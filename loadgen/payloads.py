"""Random inputs for a served model, drawn by seed from its metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import ConfigError
from veltair.loadgen.client import ModelMetadata, RaggedBags, RawFeature, TensorMetadata, Tensors
from veltair.loadgen.scenario import LogNormalSizes

FIXED_BATCH_PAYLOADS = 8
DRAWN_BATCH_PAYLOADS = 32  # more, so that many of the batch sizes occur
RAW_ID_LIMIT = 1 << 40  # of raw integer features, which are hashed or looked up: any value is valid
MAX_TOKEN_DIGITS = 7

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),  # the upper half of a float32
}


def draw_payloads(
    meta: ModelMetadata, batch: int | tuple[int, ...] | LogNormalSizes | None, rng: np.random.Generator
) -> list[Tensors]:
    """Several payloads of a model, of the given or drawn batch sizes.

    Floats are normal; integers are uniform in the input's id range, 0 where the server states none. Raw features are
    integers of 40 bits, and texts of decimal numbers that fill half of their room on average. A dimension that queries
    choose is uniform within its bounds, and masks along it are all ones. Bags have any length that there is room for.

    Raises ConfigError for an input that cannot be drawn, and for a batch size where the batch is fixed.
    """
    flat = {name for each in meta.bags for name in (each.ids, *each.weights)}  # open even where the batch is fixed
    dynamic = [tensor for tensor in meta.inputs if tensor.shape[:1] == (-1,) and tensor.name not in flat]
    if batch is not None and not dynamic:
        raise ConfigError(f"batch: model `{meta.name}` has a fixed batch, expected no such key")
    return [_draw_payload(meta, size, rng) for size in _draw_sizes(batch, meta.max_batch, rng)]


def _draw_sizes(
    batch: int | tuple[int, ...] | LogNormalSizes | None, max_batch: int | None, rng: np.random.Generator
) -> list[int]:
    if isinstance(batch, LogNormalSizes):
        most = min(batch.most, max_batch or batch.most)
        sizes = rng.lognormal(batch.log_mean, batch.log_sigma, DRAWN_BATCH_PAYLOADS)
        return [int(size) for size in np.rint(sizes).clip(1, most)]
    low, high = batch if isinstance(batch, tuple) else (batch or 1, batch or 1)
    count = FIXED_BATCH_PAYLOADS if low == high else DRAWN_BATCH_PAYLOADS
    return [int(size) for size in rng.integers(low, high + 1, count)]


def _draw_payload(meta: ModelMetadata, size: int, rng: np.random.Generator) -> Tensors:
    d = meta.dimension
    extent = 0 if d is None else int(rng.integers(d.low, d.high, endpoint=True))
    sizes, bounds = dict[str, int](), dict[str, NDArray[np.generic]]()
    for bags in meta.bags:
        ids, bounds[bags.bounds] = _draw_bags(meta, bags, size, rng)
        sizes |= dict.fromkeys((bags.ids, *bags.weights), ids)
    return {
        tensor.name: bounds[tensor.name]
        if tensor.name in bounds
        else _draw_tensor(meta, tensor, sizes.get(tensor.name, size), extent, rng)
        for tensor in meta.inputs
    }


def _draw_bags(
    meta: ModelMetadata, bags: RaggedBags, size: int, rng: np.random.Generator
) -> tuple[int, NDArray[np.generic]]:
    """The number of ids in the bags of `size` samples, and the tensor that says which ids each has."""
    found = next((tensor for tensor in meta.inputs if tensor.name == bags.bounds), None)
    if found is None or len(found.shape) != 1 or found.datatype not in ("INT32", "INT64"):
        raise ConfigError(f"model `{meta.name}`: expected an input `{bags.bounds}` of integers in one dimension")
    if found.shape[0] >= 0:
        size = found.shape[0] // bags.features - (bags.form == "ends")
    lengths = rng.integers(0, bags.room, max(size, 0) * bags.features, endpoint=True)
    ends = np.concatenate([[0], lengths.cumsum()])
    drawn = {"offsets": ends[:-1], "ends": ends, "lengths": lengths}[bags.form]
    return int(ends[-1]), drawn.astype(DTYPES[found.datatype])


def _draw_tensor(
    meta: ModelMetadata, tensor: TensorMetadata, size: int, extent: int, rng: np.random.Generator
) -> NDArray[np.generic]:
    """`extent`: of the model's dimension."""
    where = f"model `{meta.name}`, input `{tensor.name}`"
    chosen = meta.dimension.axes.get(tensor.name, ()) if meta.dimension else ()
    extent += meta.dimension.surplus.get(tensor.name, 0) if meta.dimension else 0
    shape = tuple(
        extent if axis in chosen else size if axis == 0 and n == -1 else n for axis, n in enumerate(tensor.shape)
    )
    if any(n < 0 for n in shape):
        raise ConfigError(
            f"{where}: shape {list(tensor.shape)}: only the first dimension may be dynamic, and one that the server "
            "states the bounds of"
        )
    feature = meta.features.get(tensor.name)
    if tensor.datatype == "BYTES":
        return draw_texts(feature or RawFeature(), shape, rng)
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ConfigError(f"{where}: cannot draw {tensor.datatype}, expected one of {', '.join(DTYPES)}, BYTES")
    if tensor.datatype == "BF16":
        return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if meta.dimension and tensor.name in meta.dimension.masks:
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    low, high = meta.id_ranges.get(tensor.name, (0, RAW_ID_LIMIT if feature else 0))
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)


def draw_texts(feature: RawFeature, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.object_]:
    """Strings that fit a feature's room, drawn row by row; an object array of `shape`.

    They are cut from one long text of digits with a separator every few bytes.
    """
    found = np.empty(shape, object)
    ends = rng.integers(1, feature.max_bytes, found.size, endpoint=True).cumsum()
    letters = rng.integers(ord("0"), ord("9") + 1, int(ends[-1]) if ends.size else 0, np.uint8)
    if feature.separator:
        places = rng.integers(2, MAX_TOKEN_DIGITS + 1, letters.size // 2 + 1, endpoint=True).cumsum() - 1
        letters[places[places < letters.size]] = ord(feature.separator)
    whole, bounds = letters.tobytes(), ends.tolist()
    found.reshape(-1)[:] = [whole[begin:end] for begin, end in zip([0, *bounds], bounds, strict=False)]
    return found


def encode_tensor(values: NDArray[np.generic]) -> bytes:
    """The tensor in the protocol's binary form; each string follows its length.

    >>> encode_tensor(np.array([b"ab"], object))
    b'\\x02\\x00\\x00\\x00ab'
    """
    if values.dtype.hasobject:
        return b"".join([len(item).to_bytes(4, "little") + item for item in values.reshape(-1).tolist()])
    return values.tobytes()
