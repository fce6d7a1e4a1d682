"""A nest of loops and the boxes of tensors that they touch.

Straight-line code of a register tile touches many places a constant apart: they are joined into boxes, so that what is
left is as small as the nest that was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from veltair.compiler.locality.spans import Linear, Span, single, whole


@dataclass(slots=True)
class Storage:
    """One tensor or scratch."""

    shape: tuple[int, ...]
    item_bytes: int
    scratch: bool  # each task's own

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.item_bytes


Box: TypeAlias = tuple[Span, ...]  # one span a dimension


@dataclass(slots=True)
class Touch:
    """Boxes of one storage that lie around the same moving corner."""

    storage: int
    corner: tuple[Linear, ...]
    boxes: list[Box]


@dataclass(slots=True)
class Condition:
    """Sums that must not be negative, all of them; data decide otherwise."""

    sides: tuple[Linear, ...] = ()

    def never(self, ranges: Mapping[int, Span]) -> bool:
        return any(side.known and side.span(ranges).last < 0 for side in self.sides)


@dataclass(slots=True)
class Body:
    touches: list[Touch] = field(default_factory=list)
    inner: list[Loop | Guard] = field(default_factory=list)


@dataclass(slots=True)
class Loop:
    variable: int
    start: Linear
    extent: Linear
    parallel: bool
    body: Body


@dataclass(slots=True)
class Guard:
    """Code that runs where the condition holds."""

    condition: Condition
    body: Body


@dataclass(slots=True)
class Nest:
    storages: list[Storage]
    body: Body


def join(boxes: list[Box], box: Box) -> None:
    """Add a box, as part of one that is there where their hull wastes little, else beside them."""
    at = 0
    while at < len(boxes):
        other = boxes[at]
        hull = tuple(a.hull(b) for a, b in zip(box, other, strict=True))
        apart = any(a.first > b.last or b.first > a.last for a, b in zip(box, other, strict=True))
        if size(hull) <= (1 if apart else 1.5) * (size(box) + size(other)):
            del boxes[at]
            box, at = hull, 0
        else:
            at += 1
    boxes.append(box)


def size(box: Box) -> int:
    """Elements."""
    count = 1
    for span in box:
        count *= span.length
    return count


def fold(nest: Nest) -> None:
    """Tiles and what becomes of them run on over the ends of rows: where that is so, the dimension and the one around
    it are one. A little past the end is no such case: it is a last tile that is not full.
    """
    for at, storage in enumerate(nest.storages):
        while (dim := _overrun(nest.body, at, storage.shape, {})) > 0:
            width = storage.shape[dim]
            for touch in _touching(nest.body, at):
                touch.corner = _merged(touch.corner, dim, touch.corner[dim - 1].times(width).plus(touch.corner[dim]))
                touch.boxes = [_merged(b, dim, b[dim - 1].times(width).plus(b[dim])) for b in touch.boxes]
            storage.shape = _merged(storage.shape, dim, storage.shape[dim - 1] * width)


def _merged(parts: tuple[Any, ...], dim: int, value: Any) -> tuple[Any, ...]:
    return (*parts[: dim - 1], value, *parts[dim + 1 :])


def _touching(body: Body, at: int) -> Iterator[Touch]:
    yield from (touch for touch in body.touches if touch.storage == at)
    for part in body.inner:
        yield from _touching(part.body, at)


def _overrun(body: Body, at: int, shape: Sequence[int], ranges: dict[int, Span]) -> int:
    """The innermost dimension that some touch of a storage runs far past the end of; 0 where none does."""
    found = 0
    for touch in body.touches:
        if touch.storage == at:
            for box in touch.boxes:
                for dim in range(1, len(shape)):
                    if touch.corner[dim].span(ranges).plus(box[dim]).last >= 1.5 * shape[dim]:
                        found = max(found, dim)
    for part in body.inner:
        inside = ranges | {part.variable: loop_range(part, ranges)} if isinstance(part, Loop) else ranges
        found = max(found, _overrun(part.body, at, shape, inside))
    return found


def loop_range(loop: Loop, ranges: Mapping[int, Span]) -> Span:
    """All values of its variable; of a loop whose length varies, the longest."""
    first = loop.start.span(ranges).first
    return whole(max(loop.extent.span(ranges).last, 1)).plus(single(first))
