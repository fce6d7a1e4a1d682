"""Composes a program into one loop nest: its iteration space, its phases, and the values kept between them.

The composition schemes of FusionStitching (4.1) as they exist on a CPU: a value that is used within the
same loop stays in registers; one that a later loop over the same row needs is computed again ("registers"), or kept in
a buffer that the caches hold (of a row, in L1; of a tile of columns where the reduction runs across rows, in L2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from veltair.compiler.stitch.stitch_program import (
    EXPENSIVE,
    REDUCTIONS,
    Shape,
    StitchOp,
    StitchProgram,
    broadcast_shapes,
)

SCHEMES = ("registers", "expensive", "buffer")  # keep nothing, what holds an expensive operator, everything


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """A point of the design space of stitched layers.

    >>> KernelSchedule(rows=4, scheme="buffer", unroll=2).columns
    0
    """

    rows: int  # units in a task
    scheme: str  # one of SCHEMES: which values are kept between the phases
    unroll: int  # vectors in a step
    columns: int = 0  # of a unit; 0: all


@dataclass(frozen=True)
class IterationSpace:
    """The iteration space of a program, with neighbouring axes merged where no value distinguishes them.

    `extents` has the merged axes, at least one, outermost first; the last is vectorised. `reduced` says which axes the
    reductions run over, `varies` along which axes each value varies.

    `iteration_space` makes one::

        space = iteration_space(program)
        space.phases, space.kept("buffer")
    """

    program: StitchProgram
    extents: Shape
    reduced: tuple[bool, ...]
    varies: Mapping[str, tuple[bool, ...]]

    @property
    def reduces_across(self) -> bool:
        """Whether reductions run across the vectors rather than along them."""
        return any(self.reduced) and not self.reduced[-1]

    @property
    def splits(self) -> bool:
        """Whether columns are independent, so that a row may be cut into several units."""
        return not self.reduced[-1]

    @property
    def outer(self) -> list[int]:
        """Axes of the parallel loop."""
        return [i for i, reduced in enumerate(self.reduced[:-1]) if not reduced]

    @property
    def inner(self) -> list[int]:
        """Axes of the loops inside a task, except for the last axis."""
        return [i for i, reduced in enumerate(self.reduced[:-1]) if reduced]

    def is_row(self, name: str) -> bool:
        """Whether a value is one for a whole row: it varies along no axis that a task's inner loops run over."""
        varies = self.varies[name]
        return not any(varies[i] for i in self._task_loops)

    @cached_property
    def _task_loops(self) -> tuple[int, ...]:
        """Axes of the loops inside a task, along which values of a row differ."""
        return (*self.inner, *(() if self.reduces_across else (len(self.extents) - 1,)))

    @cached_property
    def phase(self) -> Mapping[str, int]:
        """The first loop that has a value, by its name: the number of reductions on the way to it."""
        found = dict.fromkeys(self.program.leaves, 0)
        for op in self.program.ops:
            found[op.output] = max((found[name] for name in op.operands), default=0) + (op.kind in REDUCTIONS)
        return found

    @property
    def phases(self) -> int:
        return max(self.phase.values(), default=0) + 1

    def kept(self, scheme: str) -> tuple[str, ...]:
        """The values along a row that are computed in one loop, needed in a later one, and kept for it."""
        if scheme == "registers":
            return ()
        ops = {op.output: op for op in self.program.ops}
        needed: dict[str, None] = {}
        for op in self.program.ops:
            loop = self._loop(op)
            for name in op.operands:
                if name in ops and not self.is_row(name) and self.phase[name] < loop:
                    needed[name] = None
        if scheme == "expensive":
            return tuple(name for name in needed if self._is_expensive(ops, name))
        return tuple(needed)

    def _loop(self, op: StitchOp) -> int:
        """The loop that an operator runs in; a reduction's value is there one later."""
        return self.phase[op.output] - (op.kind in REDUCTIONS)

    def _is_expensive(self, ops: Mapping[str, StitchOp], name: str) -> bool:
        """Whether computing a value again in a later loop repeats an expensive operator."""
        if name not in ops or self.is_row(name):
            return False
        return ops[name].kind in EXPENSIVE or any(self._is_expensive(ops, n) for n in ops[name].operands)


def at_batch(space: IterationSpace, batch: int) -> IterationSpace:
    """The space of a query of this batch, of fixed extents. Only for estimates: its program has no place for others.

    >>> at_batch(IterationSpace(StitchProgram((), {}, ()), (-2, 8), (False, False), {}), 3).extents
    (6, 8)
    """

    def fixed(shape: Shape) -> Shape:
        return tuple(-extent * batch if extent < 0 else extent for extent in shape)

    program = space.program
    ops = tuple(replace(op, shape=fixed(op.shape)) for op in program.ops)
    leaves = {name: fixed(shape) for name, shape in program.leaves.items()}
    return replace(space, program=StitchProgram(ops, leaves, program.outputs), extents=fixed(space.extents))


def iteration_space(program: StitchProgram) -> IterationSpace | None:
    """The iteration space of a program; None for a program that is no single loop nest.

    A program is none where its shapes do not broadcast to one, where two reductions run over different axes, over an
    axis that an operand does not vary along or over the batch, and where an operator reads what another stores under
    another shape.
    """
    reshaped = {op.output for op in program.ops if op.stored is not None}
    if any(name in reshaped for op in program.ops for name in op.operands):
        return None
    shapes = program.shapes
    common = broadcast_shapes(list(shapes.values()))
    reductions = [op for op in program.ops if op.kind in REDUCTIONS]
    axes = {op.axes for op in reductions}
    if common is None or len(axes) > 1:
        return None
    rank = len(common)
    along = {rank + axis for axis in next(iter(axes), ())}
    varies = {
        name: tuple(extent != 1 for extent in (*[1] * (rank - len(shape)), *shape)) for name, shape in shapes.items()
    }
    along = {axis for axis in along if common[axis] != 1}
    if any(common[axis] < 0 for axis in along) or any(
        not varies[name][axis] for op in reductions for name in op.operands for axis in along
    ):
        return None
    merged: list[tuple[int, tuple[bool, ...], bool]] = []  # extent, who varies, reduced
    for axis, extent in enumerate(common):
        who = tuple(v[axis] for v in varies.values())
        if extent == 1:
            continue
        if merged and merged[-1][1:] == (who, axis in along) and extent > 0 and merged[-1][0] > 0:
            merged[-1] = (merged[-1][0] * extent, *merged[-1][1:])
        else:
            merged.append((extent, who, axis in along))
    if not merged or merged[-1][0] < 0:  # the last axis has a fixed extent
        merged.append((1, (False,) * len(varies), bool(along)))
    variation = {name: tuple(who[i] for _, who, _ in merged) for i, name in enumerate(varies)}
    return IterationSpace(program, tuple(e for e, _, _ in merged), tuple(r for *_, r in merged), variation)
