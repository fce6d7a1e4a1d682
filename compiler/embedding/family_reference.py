"""Each family of embedding operations in numpy and float64: tests and the check of code versions compare with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import decode_rows
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters, Reduction

Array = NDArray[Any]
REDUCED: dict[str, Callable[[Array, int], Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max}


def pick_rows(ids: Array, table: Array) -> Array:
    """Rows by id, negative ones from the end; an id that is no row of the table gives row 0."""
    ids = np.where(ids < 0, ids + len(table), ids)
    picked = table[np.where((ids >= 0) & (ids < len(table)), ids, 0)]
    return decode_rows(picked.reshape(-1, table.shape[1])).astype(np.float64).reshape(*ids.shape, -1)


def sls(ids: Array, table: Array, offsets: Array | None, weights: Array | None = None, reduce: str = "sum") -> Array:
    """Segments' sums, means or maxima. No offsets: ids is (segments, lookups)."""
    picked = pick_rows(ids, table)
    if weights is not None:
        picked = picked * weights[..., None]
    if offsets is None:
        return np.asarray(REDUCED[reduce](picked, 1))
    found = np.zeros((len(offsets) - 1, picked.shape[-1]))
    for b, (begin, stop) in enumerate(clip_segments(offsets, len(ids))):
        if begin < stop:
            found[b] = REDUCED[reduce](picked[begin:stop], 0)
    return found


def ragged_bags(
    ids: Array, lengths: Array, table: Array, weights: Array | None, reduce: str = "sum", padding: int | None = None
) -> Array:
    """Sums, means or maxima of the rows of each bag's first ids but `padding`; ids (bags, room)."""
    held = lengths.clip(0, ids.shape[1])
    rows = sls(ids[..., None].reshape(-1, 1), table, None, None if weights is None else weights.reshape(-1, 1))
    inside = np.arange(ids.shape[1]) < held[:, None]
    if padding is not None:
        inside &= ids != padding
    rows, count = rows.reshape(*ids.shape, -1), inside.sum(1)[:, None]
    if reduce == "max":
        most = np.where(inside[..., None], rows, -np.inf).max(1)
        return np.asarray(np.where(count > 0, most, 0))
    total = np.where(inside[..., None], rows, 0).sum(1)
    return np.asarray(total / np.maximum(count, 1) if reduce == "mean" else total)


def csr_product(ids: Array, offsets: Array, entries: Array, dense: Array) -> Array:
    """A sparse matrix in CSR times a dense one (R, D), some rows of the result at a time."""
    found = np.zeros((len(offsets) - 1, dense.shape[1]))
    step = max(1, (1 << 22) // max(dense.shape[1], 1))  # entries
    first = 0
    while first < len(found):
        last = max(int(np.searchsorted(offsets, offsets[first] + step, "right")) - 1, first + 1)
        held = slice(offsets[first], offsets[last])
        products = dense[ids[held]].astype(np.float64)
        products *= entries[held, None]
        filled = np.flatnonzero(np.diff(offsets[first : last + 1]))  # reduceat has no empty parts
        if len(filled):
            found[first + filled] = np.add.reduceat(products, offsets[first + filled] - offsets[first])
        first = last
    return found


def clip_segments(offsets: Array, lookups: int) -> list[tuple[int, int]]:
    """Begin and end of each segment, for offsets that may fall or pass [0, lookups]."""
    begins = [min(max(int(o), 0), lookups) for o in offsets]
    return [(begin, max(begin, stop)) for begin, stop in pairwise(begins)]


def message_passing(ids: Array, table: Array, offsets: Array, selves: Array | None = None) -> Array:
    own = decode_rows(table).astype(np.float64) if selves is None else pick_rows(selves, table)
    rows = pick_rows(ids, table)
    found = np.zeros((len(offsets) - 1, own.shape[1]))
    for b, (begin, stop) in enumerate(clip_segments(offsets, len(ids))):
        near = rows[begin:stop]
        found[b] = (near / (1 + np.exp(-near @ own[b]))[:, None]).sum(0)
    return found


def knowledge_graph(heads: Array, kinds: Array, tails: Array, entities: Array, relations: Array, norm: int) -> Array:
    gap = pick_rows(heads, entities) + pick_rows(kinds, relations) - pick_rows(tails, entities)
    return np.asarray(-np.abs(gap).sum(1) if norm == 1 else -np.sqrt((gap**2).sum(1)))


def block_gather(ids: Array, table: Array) -> Array:
    return pick_rows(ids, table)


def reference_lookups(parameters: LookupParameters, inputs: Sequence[Array], tables: Sequence[Array]) -> Array:
    """The output of a layer "lookups" (`kernels.rows.lookups`)."""
    ids, *others = inputs
    match parameters.family:
        case LookupFamily.WEIGHTED_SUM:
            return sls(ids, tables[0], None, others[0], parameters.reduce or Reduction.SUM)
        case LookupFamily.RAGGED_BAG:
            lengths = next((each for each in others if each.dtype == np.int64), np.full(len(ids), ids.shape[1]))
            weights = next((each for each in others if each.dtype == np.float32), None)
            reduce = parameters.reduce or Reduction.SUM
            return ragged_bags(ids, lengths, tables[0], weights, reduce, parameters.padding)
        case LookupFamily.MESSAGE_PASSING:
            return message_passing(ids.reshape(-1), tables[0], np.arange(len(ids) + 1) * ids.shape[1], others[0])
        case LookupFamily.KNOWLEDGE_GRAPH:
            kinds, tails = others
            return knowledge_graph(ids, kinds, tails, tables[0], tables[1], parameters.norm or 1)
