"""What a graph makes of a row of tokens: sums and means of rows of a table, or a sequence of fixed length.

As for rows of a fixed number of values (`class_bags`), how the graph computes it does not matter. Rows of no token, of
one and of two say what each class adds and how they are combined; random rows, of many lengths, say whether that is all
there is to it. What depends on the other rows of a batch, as a mean over as many places as the longest row has, fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.features.from_onnx.classes.class_bags import ClassBag
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses

TRIED_BATCHES = (2, 3, 64, 200)
TRIED_LENGTHS = (1, 2, 7, 40)  # tokens of the longest row
LONG = 1 << 10  # tokens of a row that shows where it is cut off
AT_ONCE = 1 << 9  # rows of classes that are computed together
TOLERANCE = 1e-5  # relative: sums of several rows may be rounded in another order
MAINS = 3  # classes beside which others are tried
WAYS = ("mean", "sum", "sqrtn", "distinct")  # how rows are combined; distinct: a sum where each class counts once

# From classes (batch, places) that end with absent ones to the tensor of such a batch, None where it cannot be.
Compute: TypeAlias = Callable[[NDArray[np.int64]], NDArray[Any] | None]
Rows: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A tensor (batch, places, …) that holds something for each of the first tokens of a row.

    >>> classes = ValueClasses("text", "string", ("a",), separator="", places=5)
    >>> TokenSequence(classes, np.array([1, 2, 0])).classes.places
    5
    """

    classes: ValueClasses
    values: NDArray[Any]  # (classes, …), the last of no token


def find_sequence(classes: ValueClasses, compute: Compute, rng: np.random.Generator) -> TokenSequence | None:
    """The sequence that a tensor is, None where it is none."""
    absent = classes.count - 1
    few = compute(_padded([[0], [0] * 3, []], absent, 4))
    again = compute(_padded([[0]], absent, 9))
    if few is None or again is None or few.ndim < 2 or few.shape[1:] != again.shape[1:] or not few.size:
        return None
    places = few.shape[1]
    if places > LONG or not _looks_apart(few):
        return None
    values = _in_pieces(compute, np.arange(classes.count)[:, None].repeat(places, 1))
    if values is None or values.shape[1:] != few.shape[1:] or values.dtype != few.dtype:
        return None
    if not all(_same(values[:, 0], values[:, place]) for place in range(places)):
        return None
    values = values[:, 0]
    for batch in TRIED_BATCHES:
        for longest in (*TRIED_LENGTHS, places + 3):
            drawn = _draw(classes, batch, longest, rng)
            found = compute(drawn)
            cut = np.full((batch, places), absent)
            cut[:, : min(places, drawn.shape[1])] = drawn[:, :places]
            if found is None or not _same(found, values[cut]):
                return None
    return TokenSequence(replace(classes, places=places), values)


def _looks_apart(few: NDArray[Any]) -> bool:
    """Whether rows of one token, of it three times and of none may be sequences: tried before all classes are, since a
    row of counts has as many numbers as there are classes.
    """
    one, three, none = few
    ones = np.broadcast_to(one[:1], three[:3].shape)
    return (
        _same(none, np.broadcast_to(none[:1], none.shape))
        and _same(one[1:], none[1:])
        and _same(three[:3], ones)
        and _same(three[3:], none[3:])
    )


def find_token_bag(classes: ValueClasses, compute: Compute, rng: np.random.Generator) -> ClassBag | None:
    """The bag that a tensor (batch, …) of float32 is, None where it is none."""
    absent, count = classes.count - 1, classes.count
    single = _in_pieces(compute, np.arange(count)[:, None])
    if single is None or single.dtype != np.float32 or len(single) != count:
        return None
    single = single.reshape(count, -1).astype(np.float64)
    empty = single[absent]
    counts = _which_count(compute, single, absent)
    if counts is None or counts[absent]:  # a place without a token counts: how many there are, other rows say
        return None
    rows = np.where(counts[:, None], single, 0)

    def fits(way: str, places: int | None) -> bool:
        return _tried(classes, compute, rows, empty, counts, way, places, rng)

    places = _find_cut(compute, single, counts, absent)
    way = next((way for way in WAYS if fits(way, None)), None)
    if way is None:  # rows longer than the cut do not fit
        way = next((way for way in WAYS if places is not None and fits(way, places)), None)
    elif places is not None and not fits(way, places):
        return None
    if way is None:
        return None
    keys = len(classes.keys)
    unknown = counts[keys:absent]
    if classes.buckets and not unknown.all():
        return None
    order = np.array([*np.flatnonzero(~counts[:keys]), *np.flatnonzero(counts[:keys]), *range(keys, count)])
    stored = rows[order]
    if empty.any():
        stored = np.concatenate([stored, empty[None]])
    return ClassBag(
        replace(classes, keys=tuple(classes.keys[place] for place in order[:keys]), places=places),
        "sum" if way == "distinct" else way,  # type: ignore[arg-type]
        np.ascontiguousarray(stored, np.float32),
        int((~counts[:keys]).sum()),
        not classes.buckets and not unknown.any(),
        distinct=way == "distinct",
    )


def _which_count(compute: Compute, single: Rows, absent: int) -> NDArray[np.bool_] | None:
    """Which classes count: those beside which, or without others, something changes. None where it is no bag."""
    mains = np.argsort(-_sizes(single, absent), kind="stable")[:MAINS]
    idle = np.isclose(single, single[absent], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).all(1)
    for main in mains.tolist():
        beside = _in_pieces(compute, np.stack([np.full(absent + 1, main), np.arange(absent + 1)], 1))
        if beside is None or beside.size != single.size:
            return None
        beside = beside.reshape(single.shape)
        idle &= np.isclose(beside, single[main], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).all(1)
    return np.asarray(np.logical_not(idle), np.bool_)


def _sizes(single: Rows, absent: int) -> NDArray[np.float64]:
    """How much a row of each class alone differs from one of none."""
    return np.asarray(np.abs(single[:absent] - np.nan_to_num(single[absent])).sum(1), np.float64)


def _find_cut(compute: Compute, single: Rows, counts: NDArray[np.bool_], absent: int) -> int | None:
    """How many tokens of a row are read; None where all of them are."""
    order = np.argsort(-_sizes(single, absent) * counts[:absent], kind="stable")
    if len(order) < 2 or not counts[order[1]]:
        return None
    main, other = int(order[0]), int(order[1])

    def matters(place: int) -> bool:
        """Whether the token at a place, or one behind it, changes what comes out."""
        row = np.full((2, LONG), main)
        row[1, place:] = other
        found = compute(row)
        return found is not None and not np.allclose(found[0], found[1], rtol=1e-7, atol=0)

    if not matters(0) or matters(LONG - 1):
        return None
    low, high = 0, LONG - 1  # the first matters, the last does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if matters(middle) else (low, middle)
    return high


def _tried(
    classes: ValueClasses,
    compute: Compute,
    rows: Rows,
    empty: NDArray[np.float64],
    counts: NDArray[np.bool_],
    way: str,
    places: int | None,
    rng: np.random.Generator,
) -> bool:
    """Whether random rows of tokens, among them empty ones, give what the bag gives."""
    for batch in TRIED_BATCHES:
        for longest in TRIED_LENGTHS if places is None else (*TRIED_LENGTHS, 2 * places + 1):
            drawn = _draw(classes, batch, longest, rng)
            found = compute(drawn)
            if found is None or found.size != batch * rows.shape[1]:
                return False
            taken = drawn if places is None else drawn[:, :places]
            if way == "distinct":
                taken = np.sort(taken, 1)
                repeated = np.concatenate([np.zeros((batch, 1), bool), taken[:, 1:] == taken[:, :-1]], 1)
                taken = np.where(repeated, classes.count - 1, taken)
            many = counts[taken].sum(1)
            scale = {"mean": 1 / np.maximum(many, 1), "sqrtn": np.maximum(many, 1) ** -0.5}.get(way, np.ones(batch))
            expected = np.where(many[:, None] > 0, rows[taken].sum(1) * scale[:, None], empty)
            if not _same(found.reshape(batch, -1), expected):
                return False
    return True


def _draw(classes: ValueClasses, batch: int, longest: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Random rows of classes, many of them keys and repeated, of which the first and another are not empty."""
    absent, keys = classes.count - 1, len(classes.keys)
    few = rng.integers(0, min(absent, max(keys, 1)), (batch, longest))
    drawn = np.where(rng.random((batch, longest)) < rng.choice([0.0, 0.5, 1.0], (batch, 1)), few, 0)
    drawn = np.where(rng.random((batch, longest)) < 0.3, rng.integers(0, absent, (batch, longest)), drawn)
    lengths = rng.integers(0, longest + 1, batch)
    lengths[[0, batch // 2]] = longest
    return np.where(np.arange(longest) < lengths[:, None], drawn, absent)


def _padded(rows: list[list[int]], absent: int, places: int) -> NDArray[np.int64]:
    return np.array([row + [absent] * (places - len(row)) for row in rows])


def _in_pieces(compute: Compute, classes: NDArray[np.int64]) -> NDArray[Any] | None:
    """The results of rows, computed in pieces; the last row, of no token, has others beside it."""
    found: list[NDArray[Any]] = []
    size = min(AT_ONCE, len(classes))
    for start in range(0, len(classes), size):
        first = min(start, len(classes) - size)  # the last piece begins earlier
        part = compute(classes[first : first + size])
        if part is None or part.shape[:1] != (size,) or (found and part.shape[1:] != found[0].shape[1:]):
            return None
        found.append(part[start - first :])
    return np.concatenate(found)


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
