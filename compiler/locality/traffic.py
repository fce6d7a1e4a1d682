"""What a kernel moves below a cache of any size, worked out from its loops (`veltair.machine.cache_traffic`).

A loop that is run again finds in the cache what it left there, if one pass of its body fits: what passes share lies no
further back than one pass. So a loop has a need, the bytes that one pass of its body touches (or one pass of the loop
inside, where that touches all that is shared), and moves the union of what all its passes touch once the need is met;
below, each pass moves what the loops inside it move. Tasks of the parallel loop come in the order of their numbers and
are taken apart by the divisors that split a number into image, group and chunk: each of them is a loop of its own.

Bytes are counted in whole cache lines. Scratch takes room in the cache of each core, but moves nothing from task to
task, since the next task of a core writes to the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from veltair.compiler.features.kernel.columns_parameters import ColumnsParameters
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec
from veltair.compiler.locality.loop_nest import Body, Box, Guard, Loop, Nest, Touch, join, loop_range
from veltair.compiler.locality.spans import Linear, Opaque, Span, single
from veltair.compiler.locality.tir_reader import UnreadableError, read
from veltair.machine.cache_traffic import LoopLevel, Reuse

LINE = 64  # bytes of a cache line
ENOUGH = 0.9  # of what the passes of a loop share: the rest, rows at the edge of a window, is let go
Footprint: TypeAlias = dict[int, int]  # bytes touched of each storage


def kernel_reuse(spec: LayerSpec, kernel: Kernel, batch: int = 1) -> Reuse:
    """Loop levels of a kernel on a query of this batch, innermost first.

    The last level moves each tensor once. It is the only one of code that cannot be read: look-ups, whose places are
    data, and what TVM schedules.
    """
    shapes = [
        *(tensor.at(batch) for tensor in spec.inputs),
        *(weight.shape for weight in kernel.weights),
        *(tensor.at(batch) for tensor in spec.outputs),
    ]
    try:
        return levels(read(kernel.function, shapes))
    except UnreadableError:
        total = compulsory_bytes(spec, batch)
        return (LoopLevel(0, total, total),)


def compulsory_bytes(spec: LayerSpec, batch: int) -> int:
    """What must be moved once: inputs, outputs, and the weights, of tables only the rows that are picked."""
    moved = sum(_bytes(tensor, batch) for tensor in (*spec.inputs, *spec.outputs))
    tables: dict[str, int] = {}
    if spec.op in ("embedding", "embedding_bag"):
        tables = {f"table{i}": int(np.prod(ids.at(batch))) for i, ids in enumerate(spec.inputs)}
    if spec.op == "lookups":
        tables = dict.fromkeys(spec.weights, int(np.prod(spec.inputs[0].at(batch))))
    if spec.op == "columns":
        return moved + min(spec.weights["tables"].nbytes, batch * spec.parameters_as(ColumnsParameters).table.row_bytes)
    for name, weight in spec.weights.items():
        moved += min(weight.nbytes, tables[name] * weight[0].nbytes) if name in tables else weight.nbytes
    return moved


def levels(nest: Nest) -> Reuse:
    """Loop levels of a nest; each next one needs more and moves less."""
    counter = _Counter(nest)
    top = counter.part(nest.body, {})
    everything = counter.touched(nest.body, {})
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
class _Part:
    """One pass of a loop's body, or the whole: what it touches outside of loops, and its loops."""

    straight_bytes: int
    loops: list[_Pass]

    def traffic(self, cache_bytes: int) -> int:
        return self.straight_bytes + sum(loop.traffic(cache_bytes) for loop in self.loops)

    def walk(self) -> Iterator[_Pass]:
        for loop in self.loops:
            yield loop
            yield from loop.inside.walk()


@dataclass(slots=True)
class _Pass:
    """A loop seen from outside: how often its body is passed, and what that needs and touches."""

    passes: int
    task_bytes: int  # that one pass needs
    shared_bytes: int
    once: Footprint  # of one pass
    union_bytes: int  # of all passes
    inside: _Part

    def traffic(self, cache_bytes: int) -> int:
        if cache_bytes >= self.task_bytes + self.shared_bytes:
            return self.union_bytes
        return max(self.passes * self.inside.traffic(cache_bytes), self.union_bytes)


class _Counter:
    def __init__(self, nest: Nest) -> None:
        self._storages = nest.storages

    def part(self, body: Body, ranges: Mapping[int, Span]) -> _Part:
        """One pass of a body in which the variables of the loops around it stand still."""
        loops = [self._tasks(i, ranges) if i.parallel else self._serial(i, ranges) for i in _loops(body, ranges)]
        straight = Body(list(_straight(body, ranges)))
        return _Part(self.sum(self.touched(straight, ranges)), loops)

    def _serial(self, loop: Loop, ranges: Mapping[int, Span]) -> _Pass:
        over = loop_range(loop, ranges)
        middle = {**ranges, loop.variable: single(over.first + over.length // 2)}
        once = self.touched(loop.body, middle)
        union = self.touched(loop.body, {**ranges, loop.variable: over})
        inside = self.part(loop.body, middle)
        need = _need(over.length, once, union, inside)
        pair = (self.sum(once) + need, 0) if isinstance(need, int) else need
        return _Pass(over.length, *pair, once, self.sum(union), inside)

    def _tasks(self, loop: Loop, ranges: Mapping[int, Span]) -> _Pass:
        """A parallel loop as one loop for each divisor of a task's number, around each other."""
        count = loop_range(loop, ranges).length
        steps = [1]
        for divisor in sorted({d.span(ranges).first for d in _divisors(loop.body, loop.variable)} | {count}):
            if divisor > steps[-1] and divisor % steps[-1] == 0 and count % divisor == 0:
                steps.append(divisor)

        def some(size: int) -> dict[int, Span]:
            """The middle one of the stretches of so many tasks."""
            first = count // size // 2 * size
            return {**ranges, loop.variable: Span(first, first + size - 1, 1 if size > 1 else 0)}

        inside = self.part(loop.body, some(1))
        once = self.touched(loop.body, some(1))
        own = self.sum(once) - self.sum(once, scratch=False)
        for inner, outer in zip(steps[:-1] or steps, steps[1:] or steps, strict=True):
            union = self.touched(loop.body, some(outer))
            need = _need(outer // inner, once, union, inside)
            if isinstance(need, int):
                moved = self.sum(once, scratch=False) + need
                pair = (own + moved, 0) if inner == 1 else (own, moved)
            else:
                pair = need
            inside = _Part(0, [_Pass(outer // inner, *pair, once, self.sum(union, scratch=False), inside)])
            once = union
        return inside.loops[0]

    def sum(self, footprint: Footprint, scratch: bool = True) -> int:
        return sum(size for at, size in footprint.items() if scratch or not self._storages[at].scratch)

    def touched(self, body: Body, ranges: Mapping[int, Span]) -> Footprint:
        """What a body touches, its loops run through; each byte once."""
        boxes: dict[int, list[Box]] = {}
        self._collect(body, ranges, boxes)
        found: Footprint = {}
        for at, of in boxes.items():
            storage = self._storages[at]
            found[at] = min(sum(_box_bytes(box, storage.shape, storage.item_bytes) for box in of), storage.bytes)
        return found

    def _collect(self, body: Body, ranges: Mapping[int, Span], boxes: dict[int, list[Box]]) -> None:
        for touch in body.touches:
            storage = self._storages[touch.storage]
            corner = [index.span(ranges) for index in touch.corner]
            for offsets in touch.boxes:
                spans = [
                    place.plus(offset).within(extent)
                    for place, offset, extent in zip(corner, offsets, storage.shape, strict=True)
                ]
                if None not in spans:
                    join(boxes.setdefault(touch.storage, []), tuple(span for span in spans if span is not None))
        for inner in body.inner:
            if isinstance(inner, Loop):
                if inner.variable in ranges:
                    self._collect(inner.body, ranges, boxes)
                else:
                    self._collect(inner.body, {**ranges, inner.variable: loop_range(inner, ranges)}, boxes)
            elif not inner.condition.never(ranges):
                self._collect(inner.body, ranges, boxes)


def _need(passes: int, once: Footprint, union: Footprint, inside: _Part) -> tuple[int, int] | int:
    """What the passes of a loop need to keep what they share, other than what one of them touches.

    Where it is touched whole by each pass of the one loop inside, it is always young, and what that loop needs is
    enough: a pair, as in `_Pass`. What is young but not shared is there twice when one pass follows another: the bytes
    to add.
    """
    if len(inside.loops) != 1 or inside.loops[0].passes < 2:
        return 0
    inner = inside.loops[0]
    gains = {at: passes * size - union[at] for at, size in once.items()}
    young = [at for at, size in once.items() if inner.once.get(at, 0) >= size]
    if sum(gains[at] for at in young) >= ENOUGH * sum(gains.values()) > 0:
        return inner.task_bytes, inner.shared_bytes
    return sum(once[at] for at in young if not gains[at])


def _loops(body: Body, ranges: Mapping[int, Span]) -> Iterator[Loop]:
    """Loops right inside a body that can be reached; conditions are looked through."""
    for inner in body.inner:
        if isinstance(inner, Loop):
            yield inner
        elif not inner.condition.never(ranges):
            yield from _loops(inner.body, ranges)


def _straight(body: Body, ranges: Mapping[int, Span]) -> Iterator[Touch]:
    yield from body.touches
    for inner in body.inner:
        if isinstance(inner, Guard) and not inner.condition.never(ranges):
            yield from _straight(inner.body, ranges)


def _divisors(body: Body, variable: int) -> Iterator[Linear]:
    """What a variable's value is divided by anywhere in a body: multiples that matter to its order."""
    for index in _expressions(body):
        yield from _divided(index, variable)


def _divided(index: Linear, variable: int) -> Iterator[Linear]:
    for atom, _ in index.terms:
        if isinstance(atom, Opaque):
            yield from _divided(atom.left, variable)
            yield from _divided(atom.right, variable)
            if atom.kind in ("div", "mod"):
                base = _quotient(atom.left, variable)
                if base:
                    yield atom.right.times(base)


def _quotient(index: Linear, variable: int) -> int:
    """k for `variable // k`, 1 for the variable itself, 0 for anything else."""
    if index.constant or len(index.terms) != 1 or index.terms[0][1] != 1:
        return 0
    atom = index.terms[0][0]
    if atom == variable:
        return 1
    if isinstance(atom, Opaque) and atom.kind == "div" and not atom.right.terms:
        return atom.right.constant * _quotient(atom.left, variable)
    return 0


def _expressions(body: Body) -> Iterator[Linear]:
    for touch in body.touches:
        yield from touch.corner
    for inner in body.inner:
        if isinstance(inner, Loop):
            yield inner.start
            yield inner.extent
        yield from _expressions(inner.body)


def _box_bytes(box: Box, shape: Sequence[int], item_bytes: int) -> int:
    """Bytes of the cache lines that a box touches; rows that are whole follow each other without a gap."""
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
