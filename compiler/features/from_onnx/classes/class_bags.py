"""Bags that a graph of classes has: tensors whose rows are sums or means of rows of a table, over a row's classes.

As for single values (`class_columns`), how the graph computes them does not matter. A row of n times the same class
says what the class adds; a row of one class among n - 1 others says whether the class counts; and random rows say
whether that is all there is to it. (With U(c) the result for n times c, a class a that counts among n - 1 times c gives
(U(a) + (n - 1) U(c)) / n, whatever the combiner is. One that does not count leaves the combination of n - 1 values.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.feature_description import FeatureColumn, IndexGuard
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses

BATCHES = (1, 2, 3, 64, 512)
TOLERANCE = 1e-5  # relative: sums of several rows may be rounded in another order
AT_ONCE = 1 << 14  # rows of classes that are computed together
FEW = 512  # classes that are tried before all of a large table are
Combiner: TypeAlias = Literal["sum", "mean", "sqrtn"]
COMBINERS: tuple[Combiner, ...] = ("mean", "sum", "sqrtn")

# From classes (batch, width) to the tensor of such a batch, None where it cannot be computed.
Compute: TypeAlias = Callable[[NDArray[np.int64]], NDArray[Any] | None]


@dataclass(frozen=True, slots=True)
class ClassBag:
    """Rows of classes, combined. The first `absent` keys of `classes` do not count, nor does any other value than a
    key where `drops_others`.

    >>> classes = ValueClasses("tags", "string", ("", "a"), width=3)
    >>> ClassBag(classes, "mean", np.ones((3, 4), np.float32), absent=1).absent
    1
    """

    classes: ValueClasses
    combiner: Combiner
    rows: NDArray[np.float32]  # (classes, numbers), and one more where a row without values is not zero
    absent: int = 0
    drops_others: bool = False
    distinct: bool = False  # whether a class counts once

    def column(self, name: str, table: str) -> FeatureColumn:
        """The column that gives the combined rows of a table."""
        classes, count = self.classes, self.classes.count
        column = classes.column(name, table)
        guards = (IndexGuard(remove=(self.absent, count)),) if self.absent else ()
        return msgspec.structs.replace(
            column,
            combiner=self.combiner,
            distinct=self.distinct,
            default=-1 if self.drops_others else column.default,
            guards=guards,
            empty_row=count if len(self.rows) > count else None,
        )


def find_bag(classes: ValueClasses, compute: Compute, rng: np.random.Generator) -> ClassBag | None:
    """The bag that a tensor is, None where it is none. Its numbers are float32, (batch, …)."""
    every = np.arange(classes.count)
    if classes.count > FEW:
        few = np.linspace(0, classes.count - 1, FEW).astype(np.int64)
        tried = _compute_rows(compute, np.repeat(few[:, None], classes.width, 1))
        if tried is None or _which_count(few, classes.width, compute, tried)[0] is None:
            return None
    whole = _compute_rows(compute, np.repeat(every[:, None], classes.width, 1))
    if whole is None:
        return None
    counts, combiner = _which_count(every, classes.width, compute, whole)
    unknown = counts[len(classes.keys) : classes.count - classes.may_be_absent] if counts is not None else ()
    if counts is None or ((classes.buckets or classes.edges) and not np.all(unknown)):
        return None
    if classes.may_be_absent and counts[-1]:  # the kernel passes over what is absent
        if combiner != "sum" or whole[-1].any():
            return None
        counts[-1] = False  # in a sum, zeros count or not
    factor = {"mean": 1.0, "sum": 1 / classes.width, "sqrtn": classes.width**-0.5}[combiner]
    rows = whole * factor
    empty = np.zeros(rows.shape[1])
    if not counts.all():
        empty = whole[np.flatnonzero(~counts)[0]]
        if not _close(whole[~counts], np.broadcast_to(empty, whole[~counts].shape)):
            return None
        rows[~counts] = 0
    if not _tried(classes, compute, rows, empty, counts, combiner, rng):
        return None
    keys = len(classes.keys)
    order = [*np.flatnonzero(~counts[:keys]), *np.flatnonzero(counts[:keys]), *range(keys, classes.count)]
    stored = rows[np.array(order)] if not empty.any() else np.concatenate([rows[np.array(order)], empty[None]])
    return ClassBag(
        replace(classes, keys=tuple(classes.keys[place] for place in order[:keys])),
        combiner,
        np.ascontiguousarray(stored, np.float32),
        int((~counts[:keys]).sum()),
        not classes.buckets and not counts[-1],
    )


def _which_count(
    classes: NDArray[np.int64], width: int, compute: Compute, whole: NDArray[np.float64]
) -> tuple[NDArray[np.bool_] | None, Combiner]:
    """Which of these classes count, None where it is not as in any bag, and how those that do are combined. whole: what
    a row of `width` times each gives."""
    norms = np.abs(whole).sum(1)
    order = np.argsort(-norms, kind="stable")[: min(len(norms), 8)]
    for main in order.tolist():  # one that counts: among others it changes what comes out
        among = np.full((len(classes), width), classes[main])
        among[:, 0] = classes
        found = _compute_rows(compute, among)
        if found is None:
            return None, "sum"
        counts = _close_rows(found, (whole + (width - 1) * whole[main]) / width)
        if counts.all():
            return counts, "sum"  # always the same number of values: all combiners are one
        left = found[~counts]
        for combiner in COMBINERS:
            share = {"mean": 1.0, "sum": (width - 1) / width, "sqrtn": ((width - 1) / width) ** 0.5}[combiner]
            if _close(left, np.broadcast_to(share * whole[main], left.shape)):
                return counts, combiner
    return None, "sum"


def _tried(
    classes: ValueClasses,
    compute: Compute,
    rows: NDArray[np.float64],
    empty: NDArray[np.float64],
    counts: NDArray[np.bool_],
    combiner: Combiner,
    rng: np.random.Generator,
) -> bool:
    """Whether random rows of classes, among them many keys and values that do not count, give what the bag gives."""
    odd = np.concatenate([np.flatnonzero(~counts), np.arange(len(classes.keys)), [classes.count - 1]])
    for batch in BATCHES:
        drawn = rng.integers(0, classes.count, (batch, classes.width))
        few = rng.choice(odd, drawn.shape)
        drawn = np.where(rng.random(drawn.shape) < rng.choice([0.0, 0.5, 1.0], (batch, 1)), few, drawn)
        found = compute(drawn)
        if found is None or len(found) != batch:
            return False
        many = counts[drawn].sum(1)
        scale = {"sum": np.ones(batch), "mean": 1 / np.maximum(many, 1), "sqrtn": np.maximum(many, 1) ** -0.5}[combiner]
        expected = np.where(many[:, None] > 0, rows[drawn].sum(1) * scale[:, None], empty)
        if not _close(found.reshape(batch, -1), expected):
            return False
    return True


def _compute_rows(compute: Compute, classes: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """The results (rows, numbers), computed in pieces."""
    found: list[NDArray[Any]] = []
    for start in range(0, len(classes), AT_ONCE):
        piece = classes[start : start + AT_ONCE]
        part = compute(piece)
        if part is None or part.shape[:1] != (len(piece),):
            return None
        found.append(part.reshape(len(piece), -1))
    if len({part.shape[1] for part in found}) != 1:
        return None
    return np.concatenate(found).astype(np.float64)


def _close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and bool(_close_rows(one, other).all())


def _close_rows(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(np.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE).all(axis=1))
