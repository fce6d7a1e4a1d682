"""What is known of the tensors of a graph, and which statements of the file to believe.

Shapes are followed at two sample sizes of the batch. They are followed once more at the least and the greatest batch
where a constant follows from numbers of the batch, or a part is taken of what grows with it, and through each branch
whose condition the values of the inputs decide, since both branches need not give the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx

from veltair.compiler.onnx.constants import all_nodes, read_names
from veltair.compiler.onnx.folding.batch_axes import BATCHES, dimension
from veltair.compiler.onnx.folding.shape_propagation import ShapePropagation, TensorFacts, same_values
from veltair.compiler.onnx.folding.sized_outputs import BranchShape, batch_symbols
from veltair.compiler.onnx.loops import VaryingRank
from veltair.compiler.onnx.node_evaluation import Array, Shape
from veltair.errors import ModelError

Facts: TypeAlias = Mapping[str, TensorFacts]
LIMITING = {"Min", "Max", "Clip", "Mod"}  # of a number that grows with the batch they may make one that does not
MOST_BRANCHES = 3  # of a model whose combinations are followed: each doubles them


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Follows the shapes and the known values of a graph. ::

    graph = GraphFacts(proto=proto, constants=constants, dynamic=True, path=path, fallback=True)
    propagation, facts = graph.propagate({})
    changing = graph.changing(propagation, max_batch)
    """

    proto: onnx.ModelProto
    constants: Mapping[str, Array]  # by name
    dynamic: bool  # whether a symbolic first dimension of an input is the batch
    path: Path
    fallback: bool  # whether a tensor may have a shape that cannot be told

    @property
    def outputs(self) -> set[str]:
        return {output.name for output in self.proto.graph.output}

    def propagate(
        self,
        unknown: Mapping[str, str],
        batches: Sequence[int] = BATCHES,
        choices: Sequence[bool] | None = None,
    ) -> tuple[ShapePropagation, Facts]:
        """What is known of every tensor.

        unknown: tensors that count as ones whose shape cannot be told, and why.
        choices: see `ShapePropagation`; where there are any, statements of the file about outputs are not used.
        """
        graph, sizes = self.proto.graph, batches if self.dynamic else batches[:1]
        inputs = {v.name: _input_facts(v, sizes) for v in graph.input if v.name not in self.constants}
        symbols = batch_symbols(graph) if self.dynamic else frozenset()
        stated = _stated(graph.output, symbols, sizes) if choices is None else {}
        propagation = ShapePropagation(
            graph.node,
            opsets(self.proto),
            inputs,
            self.constants,
            self.outputs,
            self.path,
            stated if self.fallback else None,
            unknown,
            choices,
        )
        return propagation, propagation.run()

    def changing(self, propagation: ShapePropagation, max_batch: int) -> dict[str, str]:
        """The tensors that are alike at the sample sizes of the batch and not at its bounds, and why nothing is known.

        The condition "more than one sample" holds at both sample sizes. It is harmless where whoever reads it gives
        what the sample sizes lead to expect at the bounds too, as `Where(size == 1, 1, size)` does.
        """
        if not propagation.settled:
            return {}
        samples, bounds = self._followed({}, BATCHES, ()), self._followed({}, (1, max_batch), ())
        steps = {
            name
            for name in samples.facts.keys() & bounds.facts.keys()
            if samples.facts[name].constant is not None and not _foreseen(name, samples, bounds, max_batch)
        }
        found = steps & (self.outputs | set(samples.conditions))
        for node in reversed(samples.nodes):
            made = [name for name in node.output if name]
            if any(n in found or not (n in steps or _foreseen(n, samples, bounds, max_batch)) for n in made):
                found |= steps & read_names(node)
        return {name: f"the value of {name!r} is another one for small or large batches" for name in found}

    def cut(self, facts: Facts, unknown: Mapping[str, str], max_batch: int) -> str | None:
        """A tensor that grows as the sample sizes say, and no longer at the bounds of the batch, as `x[:20]` does."""
        if not self.dynamic or not any(_may_cut(node, facts) for node in all_nodes(self.proto.graph.node)):
            return None
        try:
            _, bounds = self.propagate(unknown, (1, max_batch))
        except ModelError:  # some batches fail in any engine
            return None
        for name, at in bounds.items():
            dims = [dimension(extents) for extents in zip(*facts[name].shapes, strict=True)] if name in facts else []
            for dim, *extents in zip(dims, *at.shapes, strict=False):
                if dim is not None and extents != [dim if dim >= 0 else -dim * batch for batch in (1, max_batch)]:
                    return name
        return None

    def doubtful(
        self, propagation: ShapePropagation, facts: Facts, unknown: Mapping[str, str]
    ) -> dict[str, BranchShape]:
        """Outputs whose shapes the trips of loops may decide, or behind branches that do not all give what the file
        states.

        Raises ModelError where nobody knows how many dimensions an output may have.
        """
        decided = propagation.loops[0].partly.keys()
        behind = (propagation.behind_branches & propagation.opaque.keys()) - decided
        outputs = [output for output in self.proto.graph.output if output.name in behind]
        ways = list(self._ways(unknown)) if outputs and self._branches <= MOST_BRANCHES else [{}]
        found = {o.name: self._loop_shape(o, propagation) for o in self.proto.graph.output if o.name in decided}
        for output in outputs:
            shapes = [way[output.name].shapes if output.name in way else None for way in ways]
            if output.name not in facts or any(shape != facts[output.name].shapes for shape in shapes):
                found[output.name] = self._branch_shape(output, shapes)
        return {name: shape for name, shape in found.items() if shape is not None}

    @property
    def _branches(self) -> int:
        return sum(node.op_type == "If" for node in all_nodes(self.proto.graph.node))

    def _ways(self, unknown: Mapping[str, str]) -> Iterator[Facts]:
        """What is known for each combination of conditions that values decide."""
        left = list[Sequence[bool]]([()])
        while left:
            given = left.pop()
            followed = self._followed(unknown, BATCHES, given)
            left += [(*followed.chosen[:i], False) for i in range(len(given), len(followed.chosen))]
            yield followed.facts

    def _followed(self, unknown: Mapping[str, str], batches: Sequence[int], choices: Sequence[bool]) -> _Followed:
        try:
            propagation, facts = self.propagate(unknown, batches, choices)
        except ModelError:  # of a branch that may never be taken
            return _Followed({}, (), (), ())
        return _Followed(facts, propagation.chosen, propagation.nodes, propagation.conditions)

    def _loop_shape(self, output: onnx.ValueInfoProto, propagation: ShapePropagation) -> BranchShape | None:
        """The shape of an output behind a loop; None: nobody knows how many dimensions it has."""
        known = [loops.partly[output.name].extents for loops in propagation.loops]
        if any(extents is VaryingRank for extents in known):
            raise ModelError(self._unknown_rank(output))
        extents = [each for each in known if isinstance(each, tuple)]
        if len(extents) < len(known):
            tensor = output.type.tensor_type
            return BranchShape((0,) * len(tensor.shape.dim), uneven=True) if tensor.HasField("shape") else None
        if output.name in propagation.loops[0].uneven:
            return BranchShape((0,) * len(extents[0]), uneven=True)
        return BranchShape(tuple(_extent(axis, dims) for axis, dims in enumerate(zip(*extents, strict=True))))

    def _unknown_rank(self, output: onnx.ValueInfoProto) -> str:
        return f"{self.path}: output {output.name!r}: the values of the inputs decide how many dimensions it has"

    def _branch_shape(
        self, output: onnx.ValueInfoProto, shapes: Sequence[Sequence[Shape] | None]
    ) -> BranchShape | None:
        """The shape of an output from those that combinations of branches give; None: what the file says will do."""
        tensor = output.type.tensor_type
        known = [shape for shape in shapes if shape is not None]
        ranks = {len(shape[0]) for shape in known}
        if len(known) < len(shapes):  # values decide a shape inside a branch
            if not tensor.HasField("shape"):
                return None
            ranks.add(len(tensor.shape.dim))
            if len(ranks) > 1:
                raise ModelError(self._unknown_rank(output))
            if any(node.op_type == "Loop" for node in all_nodes(self.proto.graph.node)):
                return BranchShape((0,) * len(tensor.shape.dim), uneven=True)  # whose statements are not believed
            return BranchShape(tuple(dim.dim_value for dim in tensor.shape.dim))
        if len(ranks) > 1:
            return BranchShape((0,) * max(ranks), uneven=True)
        ways = [[dimension(extents) for extents in zip(*shape, strict=True)] for shape in known]
        dims = [each[0] or 0 if len(set(each)) == 1 else 0 for each in zip(*ways, strict=True)]
        return BranchShape(tuple(dim if dim > 0 or (dim == -1 and axis == 0) else 0 for axis, dim in enumerate(dims)))


@dataclass(frozen=True, slots=True)
class _Followed:
    """What is known of tensors behind the branches that were taken, and what their conditions were taken for."""

    facts: Facts
    chosen: Sequence[bool]
    nodes: Sequence[onnx.NodeProto]
    conditions: Sequence[str]


def _may_cut(node: onnx.NodeProto, facts: Facts) -> bool:
    """Whether it takes a part of what grows with the batch, or works with numbers that do."""
    read = [facts[name] for name in node.input if name in facts]
    if node.op_type == "Slice":
        grows = [len(set(extents)) > 1 for extents in zip(*read[0].shapes, strict=True)] if read else []
        stated = facts.get(node.input[3]) if len(node.input) > 3 else None
        axes = list(range(len(grows)))
        if stated and stated.values and (constant := stated.constant) is not None:
            axes = constant.ravel().tolist()
        return any(grows[axis] for axis in axes if -len(grows) <= axis < len(grows))
    return node.op_type in LIMITING and any(each.values and each.constant is None for each in read)


def _foreseen(name: str, samples: _Followed, bounds: _Followed, max_batch: int) -> bool:
    """Whether a tensor is known, and has the values at the bounds that lie on a line with those at the sample sizes."""
    at, then = samples.facts.get(name), bounds.facts.get(name)
    if at is None or then is None or not at.values or not then.values:
        return False
    if at.constant is not None:
        return all(same_values(at.constant, each) for each in then.values)
    (few, many), sizes = at.values, (1, max_batch)
    if few.dtype.kind not in "iuf" or few.shape != many.shape or any(each.shape != few.shape for each in then.values):
        return few.shape != many.shape  # such a tensor grows with the batch: others compare its rows
    step = (many - few) / (BATCHES[1] - BATCHES[0])
    return all(np.allclose(few + step * (n - BATCHES[0]), v) for n, v in zip(sizes, then.values, strict=True))


def _extent(axis: int, dims: Sequence[int | None]) -> int:
    """-1 for the batch, 0 for an extent that varies."""
    known = [dim for dim in dims if dim is not None]
    found = dimension(known) if len(known) == len(dims) else None
    return found if found is not None and (found > 0 or (found == -1 and axis == 0)) else 0


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Versions of operator sets, by domain; that of standard ONNX is ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}


def _input_facts(value: onnx.ValueInfoProto, batches: Sequence[int]) -> TensorFacts:
    tensor = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    shapes = [tuple(batch if dim is None else dim for dim in dims) for batch in batches]
    return TensorFacts.of_type(tensor.elem_type, shapes)


def _stated(
    outputs: Iterable[onnx.ValueInfoProto], symbols: Set[str], batches: Sequence[int]
) -> dict[str, TensorFacts]:
    """What the file says of outputs, where that is all of their shapes except for the batch (one of `symbols`)."""
    found = {}
    for value in outputs:
        tensor = value.type.tensor_type
        open_dims = [(i, dim.dim_param) for i, dim in enumerate(tensor.shape.dim) if not dim.HasField("dim_value")]
        if tensor.HasField("shape") and open_dims in ([], *([(0, symbol)] for symbol in symbols)):
            found[value.name] = _input_facts(value, batches)
    return found
