"""Columns that a graph of classes has: tensors whose rows depend on the class of one feature alone.

How the graph computes them does not matter: TensorFlow's safe look-ups are some forty operators of ONNX that sort,
filter and scatter. Rows are computed by ONNX Runtime, for each class once, and are a table. That a row depends on its
own class alone is tried: the classes in other orders, many times the same, in batches of several sizes, have to give
the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from veltair.compiler.features.from_onnx.classes.class_bags import ClassBag, find_bag
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.features.from_onnx.tokens.token_columns import TokenSequence, find_sequence, find_token_bag
from veltair.compiler.onnx.constants import captured_names

MOST_NUMBERS = 1 << 28  # of a table
FEW_NUMBERS = 1 << 16  # of a table of rows that no look-up has: of one-hots
TRIED_BATCHES = (1, 2, 3, 64)
TOLERANCE = 1e-6  # relative: sums of rows may be rounded in another order
HELD_BYTES = 1 << 16  # larger constants are given to ONNX Runtime as they lie in memory
ELEMENTWISE = (*VIEWS, "Add", "Mul", "Sub", "Div", "Where", "Cast", "Max", "Min", "Sqrt", "Neg", "Clip")
LOOKING_UP = ("Gather", "MatMul", "Gemm")  # operators that take rows of a matrix
NO_ROWS = np.zeros((0, 0), np.float32)
CARRIED = frozenset(("", "ai.onnx.ml"))  # domains whose operators ONNX Runtime carries out

# From classes to the tensor of such a batch, None where ONNX Runtime fails; draws what other inputs have.
Run: TypeAlias = Callable[[NDArray[np.int64], np.random.Generator], NDArray[Any] | None]


@dataclass(frozen=True, slots=True)
class ClassColumn:
    """A tensor whose rows are those of a table. `row_shape`: of one row, without the batch.

    >>> ClassColumn("rows", ValueClasses("city", "string", buckets=3), np.zeros((3, 8), np.float32), (8,)).row_shape
    (8,)
    """

    tensor: str
    classes: ValueClasses
    rows: NDArray[np.float32]  # (classes, numbers)
    row_shape: tuple[int, ...]
    bag: ClassBag | None = None  # of a feature of several values a row: how their rows are combined
    sequence: TokenSequence | None = None  # of tokens that stay apart: what stands for each, instead of `rows`


class ClassColumns:
    """Finds the columns of a graph whose features are classes already: the tensors nearest to the features.

    Use::

        ClassColumns(proto_index, inputs, infer_element_types(proto)).find(outputs)
    """

    def __init__(self, graph: OnnxGraphIndex, inputs: Mapping[str, ValueClasses], types: Mapping[str, int]) -> None:
        """`types`: ONNX's types of elements, as far as they are known."""
        self._graph, self._inputs, self._types = graph, inputs, types
        self._reads: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in graph.inputs}  # inputs before
        for node in graph.nodes:
            given = {*node.input, *captured_names(node)}
            before = frozenset().union(*(self._reads.get(name, frozenset()) for name in given))
            for output in node.output:
                self._reads[output] = before
        self._found: dict[str, ClassColumn | None] = {}
        self._cuts: dict[str, frozenset[str] | None] = {}

    def find(self, outputs: Sequence[str]) -> list[ClassColumn]:
        """The columns that the outputs depend on."""
        kept: dict[str, None] = {}
        for node in self._graph.nodes:  # in graph order, so that no chain is followed in depth
            for output in filter(None, node.output):
                self._cuts[output] = self._cuts_before(node, output)
        left, seen = list(outputs), set[str]()
        while left:
            name = left.pop()
            if name in seen:
                continue
            seen.add(name)
            cuts = self._cuts.get(name)
            if cuts is not None:
                kept |= dict.fromkeys(sorted(cuts))
            elif name in self._graph.producer:
                left += {*self._graph.producer[name].input, *captured_names(self._graph.producer[name])}
        return [found for name in kept if (found := self._column(name)) is not None]

    def _features(self, name: str) -> set[tuple[str, ...]]:
        return {self._inputs[i].features for i in self._reads.get(name, ()) if i in self._inputs}

    def _cuts_before(self, node: onnx.NodeProto, output: str) -> frozenset[str] | None:
        """The tensors that cut a tensor off its features; None where some way to one is not cut."""
        before: set[str] = set()
        whole = True
        for name in filter(None, (*node.input, *captured_names(node))):
            if name in self._inputs:
                whole = False
            elif self._features(name):
                cuts = self._cuts.get(name)
                whole &= cuts is not None
                before |= cuts or frozenset()
        if whole and (len(before) <= 1 or node.op_type not in ELEMENTWISE):
            return frozenset(before)
        only = len(self._features(output)) == 1 and self._reads[output] <= self._inputs.keys()
        if only and self._column(output) is not None:
            return frozenset((output,))
        return frozenset(before) if whole else None

    def _column(self, name: str) -> ClassColumn | None:
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> ClassColumn | None:
        """The tensor as a column, if its rows are those of its classes."""
        chosen = {i: self._inputs[i] for i in sorted(self._reads[name])}
        is_float = self._types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT
        if not is_float and all(classes.separator is None for classes in chosen.values()):
            return None
        mains = sorted(chosen, key=lambda i: -chosen[i].count)
        kinds = {
            (chosen[i].keys, chosen[i].form): i for i in reversed(mains)
        }  # the largest of those with the same keys
        tried = (self._read_by(name, chosen, main) for main in mains if main in kinds.values())
        return next((found for found in tried if found is not None), None)

    def _read_by(self, name: str, chosen: Mapping[str, ValueClasses], main: str) -> ClassColumn | None:
        """The tensor as a column of the classes of `main`, whatever the others among `chosen` are."""
        classes = chosen[main]
        nodes = self._graph.nodes_before(name)
        run = self._runner(name, nodes, chosen, main)
        if run is None:
            return None
        rng = np.random.default_rng(0)
        if classes.separator is not None:
            return self._of_tokens(name, classes, run, rng, any(map(self._has_table, nodes)))
        if classes.width > 1:
            return self._bag(name, classes, run, rng, any(node.op_type == "Gather" for node in nodes))
        sample = np.unique(np.concatenate([rng.integers(0, classes.count, 64), np.arange(len(classes.keys))[:64]]))
        few = run(sample, rng)
        if few is None or few.dtype != np.float32 or few.ndim < 1 or len(few) != len(sample) or not few.size:
            return None
        numbers = few[0].size * classes.count
        looked_up = any(node.op_type == "Gather" for node in nodes)
        if numbers > (MOST_NUMBERS if looked_up else FEW_NUMBERS) or not _is_by_rows(run, sample, few, rng):
            return None
        every = np.arange(classes.count)
        rows = run(every, rng)
        if rows is None or rows.shape != (classes.count, *few.shape[1:]):
            return None
        if not _is_by_rows(run, every, rows, rng):
            return None
        return ClassColumn(name, classes, np.ascontiguousarray(rows.reshape(classes.count, -1)), rows.shape[1:])

    def _bag(
        self, name: str, classes: ValueClasses, run: Run, rng: np.random.Generator, looked_up: bool
    ) -> ClassColumn | None:
        """The tensor as sums or means of rows, one for each value of a row of the batch."""
        few = run(rng.integers(0, classes.count, (2, classes.width)), rng)
        if few is None or few.dtype != np.float32 or few.ndim < 1 or len(few) != 2 or not few.size:
            return None
        if few[0].size * classes.count > (MOST_NUMBERS if looked_up else FEW_NUMBERS):
            return None
        row_shape = few.shape[1:]

        def compute(drawn: NDArray[np.int64]) -> NDArray[Any] | None:
            found = run(drawn, rng)
            return found if found is not None and found.shape == (len(drawn), *row_shape) else None

        bag = find_bag(classes, compute, rng)
        return None if bag is None else ClassColumn(name, bag.classes, bag.rows, row_shape, bag)

    def _has_table(self, node: onnx.NodeProto) -> bool:
        """Whether a node picks or adds up rows of a constant matrix."""
        read = (self._graph.weights[name].dims for name in node.input if name in self._graph.weights)
        return node.op_type in LOOKING_UP and any(len(dims) == 2 for dims in read)

    def _of_tokens(
        self, name: str, classes: ValueClasses, run: Run, rng: np.random.Generator, looked_up: bool
    ) -> ClassColumn | None:
        """The tensor as a sequence of what stands for tokens, or as sums or means of their rows."""
        few = run(np.array([[0, 0], [0, classes.count - 1]]), rng)
        if few is None or few.dtype.kind not in "ifb" or few.ndim < 1 or len(few) != 2 or not few.size:
            return None

        def compute(drawn: NDArray[np.int64]) -> NDArray[Any] | None:
            found = run(drawn, rng)
            return found if found is not None and len(found) == len(drawn) else None

        most = MOST_NUMBERS if looked_up else FEW_NUMBERS
        if few.ndim > 1 and few[0, 0].size * classes.count <= most:
            sequence = find_sequence(classes, compute, rng)
            if sequence is not None:
                return ClassColumn(name, sequence.classes, NO_ROWS, (), sequence=sequence)
        if few.dtype != np.float32 or few[0].size * classes.count > most:
            return None
        bag = find_token_bag(classes, compute, rng)
        return None if bag is None else ClassColumn(name, bag.classes, bag.rows, few.shape[1:], bag)

    def _runner(
        self, name: str, nodes: Sequence[onnx.NodeProto], chosen: Mapping[str, ValueClasses], main: str
    ) -> Run | None:
        """The tensor that these nodes compute by the classes (batch,) of the input `main`; other inputs with the same
        keys, of the same tokens, have the same ones. None where ONNX Runtime cannot carry it out.
        """
        if any(node.domain not in CARRIED for node in nodes):
            return None
        weights = {n: self._graph.weights[n] for node in nodes for n in node.input if n in self._graph.weights}
        large = {n: self._graph.constant(n) for n, w in weights.items() if w.ByteSize() > HELD_BYTES or w.external_data}
        ranks = {i: len(self._graph.inputs[i].type.tensor_type.shape.dim) for i in chosen}
        inputs = [
            helper.make_tensor_value_info(
                i,
                TensorProto.INT64,
                ["batch", chosen[i].width if chosen[i].separator is None else "tokens"][: ranks[i]],
            )
            for i in chosen
        ]
        inputs += [helper.make_tensor_value_info(n, weights[n].data_type, weights[n].dims) for n in large]
        small = [weight for n, weight in weights.items() if n not in large]
        outputs = [helper.make_value_info(name, onnx.TypeProto())]
        model = helper.make_model(
            helper.make_graph(nodes, "column", inputs, outputs, small), opset_imports=self._graph.opsets, ir_version=8
        )
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime raises its own types; what it cannot run is no column
            return None

        alike = _reading(chosen[main])

        def run(classes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any] | None:
            feeds: dict[str, Any] = dict(large)
            for i, own in chosen.items():
                value, keys = classes, len(own.keys)
                if i != main:  # values that are no keys are in any bucket; of other keys, any value is
                    last, same = own.count - own.may_be_absent, _reading(own) == alike
                    first = keys if same else 0
                    value = np.where(same & (classes < keys), classes, rng.integers(first, last, classes.shape))
                    if own.separator is not None:
                        value = np.where(classes == chosen[main].count - 1, own.count - 1, value)
                feeds[i] = value.reshape(len(value), -1) if ranks[i] == 2 else value
            try:
                return np.asarray(session.run(None, feeds)[0])
            except Exception:  # ONNX Runtime raises its own types; what it cannot run is no column
                return None

        return run


def _reading(classes: ValueClasses) -> tuple[Any, ...]:
    """What two inputs have in common where a class that is a key of one is the same key of the other."""
    return classes.keys, classes.form, classes.separator


def _is_by_rows(run: Run, classes: NDArray[np.int64], rows: NDArray[Any], rng: np.random.Generator) -> bool:
    """Whether rows stay what they are in other batches."""
    for batch in TRIED_BATCHES:
        chosen = rng.integers(0, len(classes), batch)
        again = run(classes[chosen], rng)
        if again is None or again.shape != (batch, *rows.shape[1:]):
            return False
        if not np.allclose(again, rows[chosen], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return False
    return True
