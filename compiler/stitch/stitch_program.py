"""The small language of memory-intensive operators: element-wise ones with numpy's broadcasting, and reductions.

Values are float32 in computations; true is 1 and false is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")
EXPENSIVE = ("exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "div", "sqrt", "reciprocal")

Shape = tuple[int, ...]  # -k stands for k times the batch
OpTerm = str | float  # a value by name, or a constant


@dataclass(frozen=True, slots=True)
class StitchOp:
    """One operator. A reduction keeps its axes, with extent 1; where ONNX drops them, other kernels see it as `stored`.

    >>> list(StitchOp("y", "mul", ("x", 2.0), (4,)).operands)
    ['x']
    """

    output: str
    kind: str
    terms: tuple[OpTerm, ...]
    shape: Shape
    axes: tuple[int, ...] = ()  # of a reduction: counted from the end, so negative
    stored: Shape | None = None  # the shape under which it leaves the kernel, if another one

    @property
    def stored_shape(self) -> Shape:
        """The shape that other kernels see."""
        return self.shape if self.stored is None else self.stored

    @property
    def operands(self) -> Iterator[str]:
        return (term for term in self.terms if isinstance(term, str))


@dataclass(frozen=True)
class StitchProgram:
    """Operators in topological order that become one kernel. `leaves` are the shapes of what they read, by name.

    >>> build_program([StitchOp("y", "neg", ("x",), (4,))], {"x": (4,)}, {"y"}).text
    '[4]:neg(i0):v0'
    """

    ops: tuple[StitchOp, ...]
    leaves: Mapping[str, Shape]
    outputs: tuple[str, ...]

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        return {**self.leaves, **{op.output: op.shape for op in self.ops}}

    @cached_property
    def text(self) -> str:
        """The program without names: equal for programs that differ in names alone."""
        names = {name: f"i{n}" for n, name in enumerate(self.leaves)}
        lines = []
        for n, op in enumerate(self.ops):
            names[op.output] = f"v{n}"
            terms = ",".join(names[t] if isinstance(t, str) else repr(t) for t in op.terms)
            lines.append(f"{op.kind}({terms}){_extents(op.axes)}")
        shapes = ",".join(_extents(shape) for shape in self.leaves.values())
        return f"{shapes}:{';'.join(lines)}:{','.join(names[o] for o in self.outputs)}"


def build_program(
    ops: Sequence[StitchOp], shapes: Mapping[str, Shape], wanted: frozenset[str] | set[str]
) -> StitchProgram:
    """The program of some operators of a graph; `wanted` are the values that others read."""
    made = {op.output for op in ops}
    leaves = dict.fromkeys(name for op in ops for name in op.operands if name not in made)
    return StitchProgram(
        tuple(ops), {name: shapes[name] for name in leaves}, tuple(op.output for op in ops if op.output in wanted)
    )


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape, aligned at the end; None where two extents differ and neither is 1."""
    rank = max(map(len, shapes), default=0)
    common = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and common[axis] not in (1, extent):
                return None
            if extent != 1:
                common[axis] = extent
    return tuple(common)


def count_elements(shape: Shape) -> int:
    """Elements of a shape at batch 1."""
    count = 1
    for extent in shape:
        count *= abs(extent)
    return count


def _extents(values: Sequence[int]) -> str:
    return f"[{','.join(map(str, values))}]" if values else ""
