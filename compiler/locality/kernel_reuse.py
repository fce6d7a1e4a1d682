"""Reuse of a kernel: the bytes it moves below a cache of any size, derived from its loops (`machine.cache_traffic`).

A loop that runs again finds in the cache what it left there, if one pass of its body fits: data that passes share lie
no further back than one pass. So a loop has a need: the bytes that one pass of its body accesses (or one pass of the
loop inside, where that accesses all shared data). Once the need is met, it moves the union of all its passes' data;
below, each pass moves what the loops inside it move. The tasks of the parallel loop come in the order of their numbers.
The divisors that split a number into image, group and chunk make a loop each.

Bytes are counted in whole cache lines. Scratch occupies the cache of each core, but moves nothing from task to task,
since the next task of a core writes to the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec
from veltair.compiler.locality.affine import AffineExpr, NonAffineTerm, StridedRange, single_value
from veltair.compiler.locality.loop_nest import Access, Body, Box, Guard, Loop, LoopNest, add_box, loop_range
from veltair.compiler.locality.tir_reader import UnreadableError, read_loop_nest
from veltair.machine.cache_traffic import LoopLevel, Reuse

LINE = 64  # bytes of a cache line
ENOUGH = 0.9  # of the data that passes of a loop share: the rest, rows at the edge of a window, is ignored
Footprint: TypeAlias = dict[int, int]  # bytes accessed of each storage


def kernel_reuse(spec: LayerSpec, kernel: Kernel, batch: int = 1) -> Reuse:
    """The loop levels of a kernel on a query of this batch, innermost first.

    The last level moves each tensor once. It is the only level of code that cannot be read: look-ups, whose indices are
    data, and code that TVM schedules.
    """
    shapes = [
        *(tensor.at(batch) for tensor in spec.inputs),
        *(weight.shape for weight in kernel.weights),
        *(tensor.at(batch) for tensor in spec.outputs),
    ]
    try:
        return loop_levels(read_loop_nest(kernel.function, shapes))
    except UnreadableError:
        total = compulsory_bytes(spec, batch)
        return (LoopLevel(0, total, total),)


def compulsory_bytes(spec: LayerSpec, batch: int) -> int:
    """Bytes that a layer must move once: inputs, outputs and weights; of tables only the rows that are looked up."""
    moved = sum(_bytes(tensor, batch) for tensor in (*spec.inputs, *spec.outputs))
    weight_bytes = spec.parameters.weight_bytes_read(batch)
    if weight_bytes is not None:
        return moved + weight_bytes
    tables: dict[str, int] = {}
    if spec.op in ("embedding", "embedding_bag"):
        tables = {f"table{i}": int(np.prod(ids.at(batch))) for i, ids in enumerate(spec.inputs)}
    if spec.op == "lookups":
        tables = dict.fromkeys(spec.weights, int(np.prod(spec.inputs[0].at(batch))))
    for name, weight in spec.weights.items():
        moved += min(weight.nbytes, tables[name] * weight[0].nbytes) if name in tables else weight.nbytes
    return moved


def loop_levels(nest: LoopNest) -> Reuse:
    """The loop levels of a nest; each one needs more cache than the one before, and moves less."""
    counter = _FootprintCounter(nest)
    top = counter.part(nest.body, {})
    everything = counter.footprint(nest.body, {})
    whole = counter.sum(everything, scratch=False)
    needs = sorted({(loop.task_bytes + loop.shared_bytes, loop.task_bytes, loop.shared_bytes) for loop in top.walk()})
    found: list[LoopLevel] = []
    for need, task, shared in (n for n in needs if n[0]):
        moved = max(top.traffic(need), whole)
        if not found or moved < found[-1].traffic_bytes:
            found.append(LoopLevel(task, shared, moved))
    if not found or whole < found[-1].traffic_bytes:
        found.append(LoopLevel(0, counter.sum(everything), whole))
    return tuple(found)


@dataclass(slots=True)
class _BodyTraffic:
    """One pass of a loop's body, or the whole: what it accesses outside of loops, and its loops."""

    straight_bytes: int
    loops: list[_LoopTraffic]

    def traffic(self, cache_bytes: int) -> int:
        return self.straight_bytes + sum(loop.traffic(cache_bytes) for loop in self.loops)

    def walk(self) -> Iterator[_LoopTraffic]:
        for loop in self.loops:
            yield loop
            yield from loop.inside.walk()


@dataclass(slots=True)
class _LoopTraffic:
    """A loop seen from outside: how often its body is passed, and what that needs and accesses."""

    passes: int
    task_bytes: int  # that one pass needs
    shared_bytes: int
    once: Footprint  # of one pass
    union_bytes: int  # of all passes
    inside: _BodyTraffic

    def traffic(self, cache_bytes: int) -> int:
        if cache_bytes >= self.task_bytes + self.shared_bytes:
            return self.union_bytes
        return max(self.passes * self.inside.traffic(cache_bytes), self.union_bytes)


class _FootprintCounter:
    def __init__(self, nest: LoopNest) -> None:
        self._storages = nest.storages

    def part(self, body: Body, ranges: Mapping[int, StridedRange]) -> _BodyTraffic:
        """One pass of a body in which the variables of the loops around it stand still."""
        loops = [self._tasks(i, ranges) if i.parallel else self._serial(i, ranges) for i in _loops(body, ranges)]
        straight = Body(list(_straight(body, ranges)))
        return _BodyTraffic(self.sum(self.footprint(straight, ranges)), loops)

    def _serial(self, loop: Loop, ranges: Mapping[int, StridedRange]) -> _LoopTraffic:
        over = loop_range(loop, ranges)
        middle = {**ranges, loop.variable: single_value(over.first + over.length // 2)}
        once = self.footprint(loop.body, middle)
        union = self.footprint(loop.body, {**ranges, loop.variable: over})
        inside = self.part(loop.body, middle)
        need = _bytes_to_keep(over.length, once, union, inside)
        pair = (self.sum(once) + need, 0) if isinstance(need, int) else need
        return _LoopTraffic(over.length, *pair, once, self.sum(union), inside)

    def _tasks(self, loop: Loop, ranges: Mapping[int, StridedRange]) -> _LoopTraffic:
        """A parallel loop as one loop for each divisor of a task's number, around each other."""
        count = loop_range(loop, ranges).length
        steps = [1]
        for divisor in sorted({d.span(ranges).first for d in _divisors(loop.body, loop.variable)} | {count}):
            if divisor > steps[-1] and divisor % steps[-1] == 0 and count % divisor == 0:
                steps.append(divisor)

        def some(size: int) -> dict[int, StridedRange]:
            """Variable ranges of the middle one of the stretches of `size` tasks."""
            first = count // size // 2 * size
            return {**ranges, loop.variable: StridedRange(first, first + size - 1, 1 if size > 1 else 0)}

        inside = self.part(loop.body, some(1))
        once = self.footprint(loop.body, some(1))
        own = self.sum(once) - self.sum(once, scratch=False)
        for inner, outer in zip(steps[:-1] or steps, steps[1:] or steps, strict=True):
            union = self.footprint(loop.body, some(outer))
            need = _bytes_to_keep(outer // inner, once, union, inside)
            if isinstance(need, int):
                moved = self.sum(once, scratch=False) + need
                pair = (own + moved, 0) if inner == 1 else (own, moved)
            else:
                pair = need
            inside = _BodyTraffic(
                0, [_LoopTraffic(outer // inner, *pair, once, self.sum(union, scratch=False), inside)]
            )
            once = union
        return inside.loops[0]

    def sum(self, footprint: Footprint, scratch: bool = True) -> int:
        return sum(size for at, size in footprint.items() if scratch or not self._storages[at].scratch)

    def footprint(self, body: Body, ranges: Mapping[int, StridedRange]) -> Footprint:
        """What a body accesses, its loops run through; each byte once."""
        boxes: dict[int, list[Box]] = {}
        self._collect(body, ranges, boxes)
        found: Footprint = {}
        for at, of in boxes.items():
            storage = self._storages[at]
            found[at] = min(sum(_box_bytes(box, storage.shape, storage.item_bytes) for box in of), storage.bytes)
        return found

    def _collect(self, body: Body, ranges: Mapping[int, StridedRange], boxes: dict[int, list[Box]]) -> None:
        for access in body.accesses:
            storage = self._storages[access.storage]
            corner = [index.span(ranges) for index in access.corner]
            for offsets in access.boxes:
                spans = [
                    place.plus(offset).clipped(extent)
                    for place, offset, extent in zip(corner, offsets, storage.shape, strict=True)
                ]
                if None not in spans:
                    add_box(boxes.setdefault(access.storage, []), tuple(span for span in spans if span is not None))
        for inner in body.inner:
            if isinstance(inner, Loop):
                if inner.variable in ranges:
                    self._collect(inner.body, ranges, boxes)
                else:
                    self._collect(inner.body, {**ranges, inner.variable: loop_range(inner, ranges)}, boxes)
            elif not inner.condition.never(ranges):
                self._collect(inner.body, ranges, boxes)


def _bytes_to_keep(passes: int, once: Footprint, union: Footprint, inside: _BodyTraffic) -> tuple[int, int] | int:
    """The bytes that the passes of a loop need in the cache to keep their shared data, beside the bytes of one pass.

    Data that each pass of the one loop inside accesses as a whole are always recent, and that loop's need is enough:
    the result is a pair, as in `_LoopTraffic`. Recent data that are not shared are in the cache twice when one pass
    follows another: the result is the bytes to add.
    """
    if len(inside.loops) != 1 or inside.loops[0].passes < 2:
        return 0
    inner = inside.loops[0]
    gains = {at: passes * size - union[at] for at, size in once.items()}
    young = [at for at, size in once.items() if inner.once.get(at, 0) >= size]
    if sum(gains[at] for at in young) >= ENOUGH * sum(gains.values()) > 0:
        return inner.task_bytes, inner.shared_bytes
    return sum(once[at] for at in young if not gains[at])


def _loops(body: Body, ranges: Mapping[int, StridedRange]) -> Iterator[Loop]:
    """Loops right inside a body that can be reached; conditions are looked through."""
    for inner in body.inner:
        if isinstance(inner, Loop):
            yield inner
        elif not inner.condition.never(ranges):
            yield from _loops(inner.body, ranges)


def _straight(body: Body, ranges: Mapping[int, StridedRange]) -> Iterator[Access]:
    yield from body.accesses
    for inner in body.inner:
        if isinstance(inner, Guard) and not inner.condition.never(ranges):
            yield from _straight(inner.body, ranges)


def _divisors(body: Body, variable: int) -> Iterator[AffineExpr]:
    """What a variable's value is divided by anywhere in a body: multiples that matter to its order."""
    for index in _expressions(body):
        yield from _divided(index, variable)


def _divided(index: AffineExpr, variable: int) -> Iterator[AffineExpr]:
    for atom, _ in index.terms:
        if isinstance(atom, NonAffineTerm):
            yield from _divided(atom.left, variable)
            yield from _divided(atom.right, variable)
            if atom.kind in ("div", "mod"):
                base = _quotient(atom.left, variable)
                if base:
                    yield atom.right.times(base)


def _quotient(index: AffineExpr, variable: int) -> int:
    """k for `variable // k`, 1 for the variable itself, 0 for anything else."""
    if index.constant or len(index.terms) != 1 or index.terms[0][1] != 1:
        return 0
    atom = index.terms[0][0]
    if atom == variable:
        return 1
    if isinstance(atom, NonAffineTerm) and atom.kind == "div" and not atom.right.terms:
        return atom.right.constant * _quotient(atom.left, variable)
    return 0


def _expressions(body: Body) -> Iterator[AffineExpr]:
    for access in body.accesses:
        yield from access.corner
    for inner in body.inner:
        if isinstance(inner, Loop):
            yield inner.start
            yield inner.extent
        yield from _expressions(inner.body)


def _box_bytes(box: Box, shape: Sequence[int], item_bytes: int) -> int:
    """Bytes of the cache lines that a box accesses; rows that are whole follow each other without a gap."""
    *outer, row = box
    if row.length == shape[-1]:
        count = row.length * item_bytes
    elif row.step * item_bytes >= LINE:
        count = row.length * LINE
    else:
        count = -(-(row.last - row.first + 1) * item_bytes // LINE) * LINE
    return count * int(np.prod([span.length for span in outer], dtype=np.int64))


def _bytes(tensor: Activation, batch: int) -> int:
    return int(np.prod(tensor.at(batch), dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
