"""A loop nest, and the boxes of tensors that it accesses.

The straight-line code of a register tile accesses many elements at constant distances: they are joined into boxes, so
that the result is as small as the nest that was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from veltair.compiler.locality.affine import AffineExpr, StridedRange, full_range, single_value


@dataclass(slots=True)
class TensorStorage:
    """The memory of one tensor, or of a scratch buffer.

    >>> TensorStorage((4, 8), item_bytes=2, scratch=False).bytes
    64
    """

    shape: tuple[int, ...]
    item_bytes: int
    scratch: bool  # every task has its own

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.item_bytes


Box: TypeAlias = tuple[StridedRange, ...]  # one range a dimension


@dataclass(slots=True)
class Access:
    """Accessed boxes of one storage, relative to the same moving corner.

    >>> Access(storage=0, corner=(AffineExpr(((7, 4),)),), boxes=[(full_range(4),)]).boxes[0][0].length
    4
    """

    storage: int
    corner: tuple[AffineExpr, ...]
    boxes: list[Box]


@dataclass(slots=True)
class Condition:
    """A condition of a branch: none of the sums is negative. Without sums, it depends on data.

    >>> Condition((AffineExpr((), -1),)).never({})
    True
    """

    sides: tuple[AffineExpr, ...] = ()

    def never(self, ranges: Mapping[int, StridedRange]) -> bool:
        return any(side.known and side.span(ranges).last < 0 for side in self.sides)


@dataclass(slots=True)
class Body:
    """The statements of a loop: accesses outside of inner loops, then inner loops and branches.

    >>> Body().accesses, Body().inner
    ([], [])
    """

    accesses: list[Access] = field(default_factory=list)
    inner: list[Loop | Guard] = field(default_factory=list)


@dataclass(slots=True)
class Loop:
    """One loop over `start`, start + 1, … for `extent` iterations.

    >>> loop = Loop(variable=7, start=AffineExpr((), 2), extent=AffineExpr((), 3), parallel=False, body=Body())
    >>> loop_range(loop, {})
    StridedRange(first=2, last=4, step=1)
    """

    variable: int
    start: AffineExpr
    extent: AffineExpr
    parallel: bool
    body: Body


@dataclass(slots=True)
class Guard:
    """A branch: code that runs where the condition holds.

    >>> Guard(Condition(sides=()), Body()).condition.never({})
    False
    """

    condition: Condition
    body: Body


@dataclass(slots=True)
class LoopNest:
    """All loops of one kernel. `tir_reader.read_loop_nest` makes it.

    >>> LoopNest([TensorStorage((4, 8), item_bytes=2, scratch=False)], Body()).storages[0].shape
    (4, 8)
    """

    storages: list[TensorStorage]
    body: Body


def add_box(boxes: list[Box], box: Box) -> None:
    """Add a box to a list: joined with one that is there where their hull wastes little, else as a box of its own."""
    at = 0
    while at < len(boxes):
        other = boxes[at]
        hull = tuple(a.hull(b) for a, b in zip(box, other, strict=True))
        apart = any(a.first > b.last or b.first > a.last for a, b in zip(box, other, strict=True))
        if box_size(hull) <= (1 if apart else 1.5) * (box_size(box) + box_size(other)):
            del boxes[at]
            box, at = hull, 0
        else:
            at += 1
    boxes.append(box)


def box_size(box: Box) -> int:
    """The number of elements in a box."""
    count = 1
    for span in box:
        count *= span.length
    return count


def merge_overrun_dimensions(nest: LoopNest) -> None:
    """Merge each dimension that accesses run far past the end of with the dimension around it.

    Tiles that continue over the ends of rows do so. An access a little past the end is a last tile that is not full.
    """
    for at, storage in enumerate(nest.storages):
        while (dim := _overrun(nest.body, at, storage.shape, {})) > 0:
            width = storage.shape[dim]
            for access in _accesses_of(nest.body, at):
                access.corner = _merged(
                    access.corner, dim, access.corner[dim - 1].times(width).plus(access.corner[dim])
                )
                access.boxes = [_merged(b, dim, b[dim - 1].times(width).plus(b[dim])) for b in access.boxes]
            storage.shape = _merged(storage.shape, dim, storage.shape[dim - 1] * width)


def _merged(parts: tuple[Any, ...], dim: int, value: Any) -> tuple[Any, ...]:
    return (*parts[: dim - 1], value, *parts[dim + 1 :])


def _accesses_of(body: Body, at: int) -> Iterator[Access]:
    yield from (access for access in body.accesses if access.storage == at)
    for part in body.inner:
        yield from _accesses_of(part.body, at)


def _overrun(body: Body, at: int, shape: Sequence[int], ranges: dict[int, StridedRange]) -> int:
    """The innermost dimension that some access of a storage runs far past the end of; 0 where none does."""
    found = 0
    for access in body.accesses:
        if access.storage == at:
            for box in access.boxes:
                for dim in range(1, len(shape)):
                    if access.corner[dim].span(ranges).plus(box[dim]).last >= 1.5 * shape[dim]:
                        found = max(found, dim)
    for part in body.inner:
        inside = ranges | {part.variable: loop_range(part, ranges)} if isinstance(part, Loop) else ranges
        found = max(found, _overrun(part.body, at, shape, inside))
    return found


def loop_range(loop: Loop, ranges: Mapping[int, StridedRange]) -> StridedRange:
    """All values of a loop's variable; where the length of the loop varies, at its longest."""
    first = loop.start.span(ranges).first
    return full_range(max(loop.extent.span(ranges).last, 1)).plus(single_value(first))
