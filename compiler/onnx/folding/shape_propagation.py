"""Which tensors follow from constants and from shapes alone, and the shape of every tensor, at sample batch sizes.

Exporters spell shapes as computations: of `Shape`, `Gather`, `Concat` and whatever else their tracer met. At a given
batch every such tensor has one value. So the model is walked with a few batch sizes at once: a node whose inputs are
all known is run by ONNX Runtime, `Shape` and `Size` need no more than the shape of their input, and every other node
gives shapes, by ONNX's own inference. No operator needs a rule of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from veltair.compiler.onnx.branches import take_branch
from veltair.compiler.onnx.constants import captured_names, inner_graphs, read_names
from veltair.compiler.onnx.folding.composed_operators import expand_composed
from veltair.compiler.onnx.folding.fused_operators import expand_fused
from veltair.compiler.onnx.folding.ml_operators import DOMAIN, expand_ml
from veltair.compiler.onnx.folding.opaque_nodes import OWN_DOMAIN
from veltair.compiler.onnx.folding.sized_outputs import PREFIX
from veltair.compiler.onnx.loops import LoopShapes
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_evaluation import (
    Array,
    NodeEvaluator,
    Shape,
    TensorType,
    infer_foreign,
    infer_node,
    is_unfilled,
    measure_node,
)
from veltair.compiler.onnx.scikit_learn.tree_classifier import scores_type
from veltair.compiler.onnx.simplify import describe_error
from veltair.errors import ModelError

MOST_ELEMENTS = 1 << 24  # of a tensor that is computed here
# Operators that pick elements, or look at a shape: what they give of numbers of the batch does not follow from them.
PICKING = frozenset(
    {"Gather", "GatherND", "Slice", "Split", "Squeeze", "Unsqueeze", "Reshape", "Cast", "Shape", "Size"}
)


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of one tensor, at each of the sample batch sizes.

    >>> kind = onnx.TensorProto.INT64
    >>> TensorFacts((TensorType(kind, (2,)),) * 2, (np.array([7, 4]), np.array([11, 4]))).constant is None
    True
    """

    types: tuple[TensorType, ...]
    # None where the values of the model's inputs decide; empty where they were known, and nobody needs them any more.
    values: tuple[Array, ...] | None = None

    @classmethod
    def of_constant(cls, array: Array, samples: int) -> TensorFacts:
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return cls((TensorType(kind, array.shape),) * samples, (array,) * samples)

    @classmethod
    def of_type(cls, kind: int, shapes: Iterable[Shape]) -> TensorFacts:
        """Facts of a tensor of which only its type and its shape at each batch size are known.

        >>> TensorFacts.of_type(onnx.TensorProto.FLOAT, [(2, 0)]).constant
        array([], shape=(2, 0), dtype=float32)
        """
        return cls.of_types(TensorType(kind, shape) for shape in shapes)

    @classmethod
    def of_types(cls, types: Iterable[TensorType]) -> TensorFacts:
        """Facts of a tensor from its type at each batch size. A tensor without elements has one value."""
        known = tuple(types)
        if any(kind.elements != 0 for kind in known):
            return cls(known)
        return cls(known, tuple(np.zeros(k.shape or (), onnx.helper.tensor_dtype_to_np_dtype(k.kind)) for k in known))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(known.shape for known in self.types if known.shape is not None)

    @property
    def constant(self) -> Array | None:
        """The tensor's value, if that is the same at every batch size."""
        if self.values is None or any(not same_values(self.values[0], other) for other in self.values[1:]):
            return None
        return self.values[0]


def same_values(one: Array, other: Array) -> bool:
    """Whether two arrays have one shape and equal elements; NaN equals NaN."""
    return one is other or (one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


class ShapePropagation:
    """Walks the nodes of a graph in topological order, and into branches whose condition is known. ::

    facts = ShapePropagation(graph.node, {"": 17}, inputs, constants, {"logits"}, path).run()
    facts["logits"].shapes  # one for each sample batch size
    """

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        opsets: Mapping[str, int],
        inputs: Mapping[str, TensorFacts],
        constants: Mapping[str, Array],
        outputs: Set[str],
        path: Path,
        stated: Mapping[str, TensorFacts] | None = None,
        unknown: Mapping[str, str] | None = None,
        choices: Sequence[bool] | None = None,
    ) -> None:
        """`stated`: what the file says of outputs whose shape nothing else tells; None: there may be no such tensor.

        unknown: tensors that count as ones that cannot be told, and why.
        choices: what to take the conditions for that are not known, one after the other, and true from there on. None:
        their branches are not entered, and whoever reads the facts afterwards needs no values of what is known.
        """
        samples = len(next(iter(inputs.values())).types) if inputs else 1
        self._given, self._opsets, self._outputs, self._path = nodes, opsets, outputs, path
        self.nodes: list[onnx.NodeProto] = []  # those given; in place of some, the nodes that they stand for
        self.constants: dict[str, Array] = {}  # of such nodes
        self._makers: dict[str, onnx.NodeProto] = {}
        self.opaque: dict[str, str] = {}  # tensors whose shape cannot be told, and why
        self.behind_branches: set[str] = set()  # tensors that depend on a condition that is not known
        self.chosen: list[bool] = []  # what conditions that are not known were taken for
        self.conditions: list[str] = []  # of branches
        self.settled: list[str] = []  # constants that follow from numbers of the batch, as "more than one sample" does
        self._stated, self._unknown, self._choices = stated, unknown or {}, choices
        self._facts = dict(inputs) | {n: TensorFacts.of_constant(a, samples) for n, a in constants.items()}
        self._evaluator = NodeEvaluator(opsets[""])
        self._samples = range(samples)
        self.loops = [LoopShapes(opsets) for _ in self._samples]

    def run(self) -> Mapping[str, TensorFacts]:
        """The facts of every tensor. Values are kept where an output, or a node that is not known, wants them.

        Tensors of `opaque` have none. Raises ModelError naming the node whose outputs' shapes cannot be told where
        that may not be.
        """
        left = deque(self._given)
        readers = Counter(name for node in self._given for name in read_names(node))
        wanted = set(self._outputs)
        while left:
            node = left.popleft()
            readers.subtract(read_names(node))
            if (parts := self._parts(node)) is not None:
                taken, constants = parts
                left.extendleft(reversed(taken))
                readers.update(name for inner in taken for name in read_names(inner))
                self.constants |= constants
                self._facts |= {n: TensorFacts.of_constant(a, len(self._samples)) for n, a in constants.items()}
                continue
            self.nodes.append(node)
            self._makers |= dict.fromkeys(node.output, node)
            found = self._visit(node)
            if node.op_type not in PICKING and any(self._varies(name) for name in node.input):
                self.settled += [name for name, facts in found.items() if facts.constant is not None]
            self._facts |= found
            if any(name in self.opaque or self._facts[name].values is None for name in node.output if name):
                wanted.update(read_names(node))
            for name in read_names(node):
                facts = self._facts.get(name)
                unread = not readers[name] and name not in wanted and self._choices is None
                if unread and facts is not None and facts.values is not None:
                    self._facts[name] = replace(facts, values=())
        return self._facts

    def _parts(self, node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], dict[str, Array]] | None:
        """The nodes and constants that take the place of a node: of a branch, or what a fused one is made of."""
        if node.op_type == "If":
            asked = self._facts.get(node.input[0])
            condition = asked.constant if asked else None
            self.conditions.append(node.input[0])
            if condition is None:
                if self._choices is None:
                    return None
                given = self._choices[len(self.chosen) :]
                condition = np.array(given[0] if given else True)
                self.chosen.append(bool(condition))
            return take_branch(node, bool(condition))
        types = {name: self._facts[name].types for name in node.input if name in self._facts}
        if (parts := expand_composed(node, types)) is not None:
            return parts
        known = {name: kinds[0] for name, kinds in types.items()}
        if (parts := expand_ml(node, known)) is not None:
            return parts
        if any(kind.kind != onnx.TensorProto.FLOAT for kind in known.values()):
            return None
        ranks = {name: len(kind.shape) for name, kind in known.items() if kind.shape is not None}
        return expand_fused(node, ranks, self._makers)

    def _varies(self, name: str) -> bool:
        facts = self._facts.get(name)
        return facts is not None and facts.values is not None and facts.constant is None

    def _visit(self, node: onnx.NodeProto) -> dict[str, TensorFacts]:
        names = [name for name in node.output if name]
        reasons = [self.opaque[name] for name in read_names(node) if name in self.opaque]
        if node.op_type == "If" or not self.behind_branches.isdisjoint(read_names(node)):
            self.behind_branches.update(names)
        looped = self.loops[0].follows(node) and not node.name.startswith(PREFIX)  # what we add ends in what we state
        infer = self._follow if looped else self._infer
        types = [infer(node, sample, lenient=bool(reasons)) for sample in self._samples]
        values = None if reasons or not self._unknown.keys().isdisjoint(names) else self._values(node, types)
        if values is not None:
            kinds = ([TensorType(onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for a in at] for at in values)
            columns = zip(names, zip(*kinds, strict=True), zip(*values, strict=True), strict=True)
            return {name: TensorFacts(tuple(kind), tuple(value)) for name, kind, value in columns}
        found: dict[str, TensorFacts] = {}
        for name in names:
            known = all(name in at and at[name].shape is not None for at in types)
            if known and name not in self._unknown:
                found[name] = TensorFacts.of_types(at[name] for at in types)
                if node.op_type == "Loop":
                    self.opaque[name] = reasons[0] if reasons else f"node {node.name!r}: a Loop"
                continue
            why = "cannot be inferred; it may depend on the values of the inputs"
            why = self._unknown.get(name, f"the shape of {node.op_type}'s output {name!r} {why}")
            reason = f"node {node.name!r}: {why}"
            if self._stated is None:
                raise ModelError(f"{self._path}: {reason}")
            if name in self._stated and not looped:
                found[name] = self._stated[name]
            self.opaque[name] = reasons[0] if reasons else reason
        return found

    def _known(self, node: onnx.NodeProto, sample: int) -> tuple[dict[str, TensorType], dict[str, Array]]:
        """What a node reads: types, and values where they are known."""
        used = dict.fromkeys((*node.input, *captured_names(node)))
        facts = {name: self._facts[name] for name in used if name in self._facts}
        values = {name: fact.values[sample] for name, fact in facts.items() if fact.values is not None}
        return {name: fact.types[sample] for name, fact in facts.items()}, values

    def _follow(self, node: onnx.NodeProto, sample: int, lenient: bool) -> dict[str, TensorType]:
        return self.loops[sample].visit(node, *self._known(node, sample))

    def _infer(self, node: onnx.NodeProto, sample: int, lenient: bool) -> dict[str, TensorType]:
        """`lenient`: some inputs are opaque, so that what they lead to need not fit."""
        types, values = self._known(node, sample)
        if node.domain == OWN_DOMAIN:
            return scores_type(node, types[node.input[0]])
        opset = self._opsets.get("" if node.domain == "ai.onnx" else node.domain)
        if opset is None:
            return {}
        if not onnx.defs.has(node.op_type, node.domain):
            known = all(name in types and types[name].shape is not None for name in read_names(node))
            return infer_foreign(node, self._opsets, types, values) if known else {}
        try:
            found = infer_node(node, opset, types, values)
            if node.domain == DOMAIN and any(name not in found or found[name].shape is None for name in node.output):
                # Of trees and their like ONNX infers no shapes, and files state wrong ones: skl2onnx one target always.
                found |= measure_node(node, self._opsets, types)
            return found
        except Exception as error:  # ONNX raises whatever its checks raise
            if is_unfilled(node, types):
                text = "a part without elements leaves room in the result; expected parts that differ along axis alone"
                raise ModelError(f"{self._path}: node {node.name!r} (Concat): {text}") from None
            if lenient or self._stated is not None:  # ONNX Runtime has loaded the model, and knows better
                return {}
            text = describe_error(error)
            raise ModelError(f"{self._path}: node {node.name!r} ({node.op_type}): {text}") from None

    def _values(self, node: onnx.NodeProto, types: Sequence[Mapping[str, TensorType]]) -> list[list[Array]] | None:
        """The outputs at each sample; None where the values of inputs decide, or where they would be too large."""
        if node.op_type in ("Shape", "Size"):
            return [[_measure(node, shape)] for shape in self._facts[node.input[0]].shapes]
        facts = [self._facts[name] if name else None for name in node.input]
        if any(fact is not None and fact.values is None for fact in facts) or next(inner_graphs(node), None):
            return None
        if any((known.elements or 0) > MOST_ELEMENTS for at in types for known in at.values()):
            return None
        given = list(self._inputs(facts))
        found: list[list[Array]] = []
        for inputs, before in zip(given, [None, *given], strict=False):
            same = before is not None and all(a is b for a, b in zip(inputs, before, strict=True))
            results = found[-1] if same else self._evaluator.run(node, inputs)
            if results is None or not all(isinstance(result, np.ndarray) for result in results):
                return None  # too costly, or a sequence, which has no shape
            found.append(results)
        return found

    def _inputs(self, facts: Sequence[TensorFacts | None]) -> Iterator[list[Array | None]]:
        for sample in self._samples:
            yield [None if fact is None or fact.values is None else fact.values[sample] for fact in facts]


def _measure(node: onnx.NodeProto, shape: Shape) -> Array:
    """What Shape or Size says of a tensor of this shape."""
    if node.op_type == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)), np.int64)
    return np.array(shape[attribute(node, "start", 0) : attribute(node, "end", None)], np.int64)
