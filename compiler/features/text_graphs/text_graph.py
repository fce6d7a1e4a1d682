"""Takes the operators on text out of a model: a graph of their own, from inputs of text to tensors of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from veltair.compiler.features.from_onnx.known_locales import name_known_locales
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.features.text_graphs.text_trial import TextInput, try_texts
from veltair.compiler.onnx.constants import all_nodes, read_names
from veltair.compiler.onnx.limits import bounded_memory
from veltair.errors import ModelError
from veltair.profiles.runtime.onnx_layers import TEXT
from veltair.types import TensorSpec

IR_VERSION = 10  # any that ONNX Runtime reads
ENCODERS, KEYED_ENCODERS = "ai.onnx.ml", 2
MOST_BYTES = 1 << 30  # of constants: each session holds a copy
MOST_NODES = 4096  # that ONNX Runtime loads some times
MOST_STEPS = 64  # of operators that are no views, one behind the other
MOST_WORDS = 4096  # of the file, that random texts are made of


@dataclass(frozen=True, slots=True)
class TextGraph:
    """What ONNX Runtime computes of texts; `take_text_graph` makes it.

    >>> counts = TensorSpec("counts", "float32", (-1, 9))
    >>> TextGraph(b"onnx", (TextInput("review", 1),), (counts,), "Tokenizer", ("good", "bad")).operators
    'Tokenizer'
    """

    model: bytes  # ONNX
    inputs: tuple[TextInput, ...]
    outputs: tuple[TensorSpec, ...]  # row by row
    operators: str  # for people
    words: tuple[str, ...]  # that they know


def take_text_graph(
    proto: onnx.ModelProto, path: Path, is_taken: Callable[[onnx.NodeProto], bool] | None = None
) -> TextGraph | None:
    """Put inputs of numbers in the place of operators on text, in place; None where there are none.

    is_taken: whether a column may take a node; then those texts stay of which all operators may be taken. Every node
    has a name. Raises ModelError for operators that ONNX Runtime does not run, or not row by row.
    """
    with bounded_memory(proto.ByteSize(), path, "its operators on text"):
        return _take(proto, OnnxGraphIndex(proto, path), is_taken)


def _take(
    proto: onnx.ModelProto, index: OnnxGraphIndex, is_taken: Callable[[onnx.NodeProto], bool] | None
) -> TextGraph | None:
    texts = _Texts.find(proto, index)
    names = [node.name for node in proto.graph.node if node.name in texts.nodes]
    if is_taken is not None:
        names = _not_taken(index, texts, is_taken)
    if not names:
        return None
    chosen = set(names)
    while True:
        nodes = _complete(index, chosen)
        chosen = {node.name for node in nodes}
        _check_inputs(index, nodes, texts)
        taken = _cut(proto, index, nodes)
        # Integers may be indices, which nobody has checked: what reads them goes along.
        integers = [spec.name for spec in taken.outputs if np.dtype(spec.dtype).kind in "iu"]
        users = {user.name for name in integers for user in index.users(name)} - chosen
        if not users:
            return _replace(proto, nodes, taken)
        chosen |= users


@dataclass(frozen=True, slots=True)
class _Texts:
    """The tensors of text, and the nodes that read or make some."""

    tensors: Set[str]
    nodes: Set[str]

    @classmethod
    def find(cls, proto: onnx.ModelProto, index: OnnxGraphIndex) -> _Texts:
        """Follows texts from the inputs on. Raises ModelError for an operator that ONNX Runtime does not load."""
        inputs = [value.name for value in proto.graph.input if value.type.tensor_type.elem_type == TensorProto.STRING]
        tables = [tensor.name for tensor in proto.graph.initializer if tensor.data_type == TensorProto.STRING]
        tensors, region, waiting, asked = {*inputs, *tables}, set[str](), inputs, 0
        while waiting:
            users = {node.name: node for name in waiting for node in index.users(name) if node.name not in region}
            region |= users.keys()
            if len(region) > MOST_NODES:
                raise ModelError(f"{index.path}: more than {MOST_NODES} operators on text")
            waiting = [node.output[0] for node in users.values() if node.op_type in VIEWS]
            made = [name for node in users.values() if node.op_type not in VIEWS for name in node.output if name]
            if made:
                asked += 1
                if asked > MOST_STEPS:
                    raise ModelError(f"{index.path}: more than {MOST_STEPS} operators on text follow each other")
                waiting += [name for name, kind in _kinds(proto, index, region, made).items() if kind == TEXT]
            tensors.update(waiting)
        return cls(tensors, region)


def _kinds(proto: onnx.ModelProto, index: OnnxGraphIndex, names: Set[str], wanted: Sequence[str]) -> dict[str, str]:
    """ONNX Runtime's types of tensors that nodes of these names make."""
    nodes = _complete(index, names)
    session = _session(_model(proto, index, nodes, [onnx.ValueInfoProto(name=name) for name in wanted]), index.path)
    return {output.name: output.type for output in session.get_outputs()}


def _not_taken(index: OnnxGraphIndex, texts: _Texts, is_taken: Callable[[onnx.NodeProto], bool]) -> list[str]:
    """The nodes on texts that belong together where columns cannot take all of them."""
    group: dict[str, str] = {name: name for name in texts.nodes}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    first: dict[str, str] = {}  # node of each tensor of text
    for node in index.nodes:
        if node.name in texts.nodes:
            for name in (read_names(node) | set(node.output)) & texts.tensors - index.weights.keys():
                group[root(first.setdefault(name, node.name))] = root(node.name)
    bad = {root(node.name) for node in index.nodes if node.name in texts.nodes and not is_taken(node)}
    return [name for name in texts.nodes if root(name) in bad]


def _complete(index: OnnxGraphIndex, names: Set[str]) -> list[onnx.NodeProto]:
    """The nodes of these names and all that they depend on, in graph order."""
    read = [name for node in index.nodes if node.name in names for name in read_names(node)]
    names = names | {node.name for node in index.nodes_before(*read)}
    return [node for node in index.nodes if node.name in names]


def _check_inputs(index: OnnxGraphIndex, nodes: Sequence[onnx.NodeProto], texts: _Texts) -> None:
    """Raises ModelError where the nodes read an input of numbers."""
    for node in nodes:
        for name in read_names(node):
            if name in index.inputs and name not in index.weights and name not in texts.tensors:
                raise index.error(
                    node, f"what becomes of input {name!r} goes to operators on text; expected text alone"
                )


def _cut(proto: onnx.ModelProto, index: OnnxGraphIndex, nodes: Sequence[onnx.NodeProto]) -> TextGraph:
    """The nodes as a graph, tried on some texts."""
    names = {node.name for node in nodes}
    made = [name for node in nodes for name in node.output if name]
    left = {name for node in index.nodes if node.name not in names for name in read_names(node)}
    left |= {output.name for output in proto.graph.output}
    model = _model(proto, index, nodes, [onnx.ValueInfoProto(name=name) for name in made if name in left])
    session = _session(model, index.path)
    words = tuple(dict.fromkeys(_words(proto, nodes)))[:MOST_WORDS]
    inputs = []
    for value in session.get_inputs():
        dims = [dim if isinstance(dim, int) else -1 for dim in value.shape]
        if not dims or dims[0] > 0 or any(dim < 1 for dim in dims[1:]):
            raise ModelError(
                f"{index.path}: input {value.name!r} of text has shape {value.shape}; expected a symbolic batch, and "
                "sizes behind it"
            )
        inputs.append(TextInput(value.name, prod(dims[1:])))
    outputs = try_texts(session, inputs, words, index.path)
    operators = "+".join(dict.fromkeys(node.op_type for node in nodes))
    return TextGraph(model.SerializeToString(deterministic=True), tuple(inputs), outputs, operators, words)


def _model(
    proto: onnx.ModelProto,
    index: OnnxGraphIndex,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    read = {name for node in nodes for name in read_names(node)}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    if any(map(uses_external_data, constants)) or sum(tensor.ByteSize() for tensor in constants) > MOST_BYTES:
        raise ModelError(
            f"{index.path}: operators on text read a table that is too large; expected at most 1 GB, inside"
        )
    graph = helper.make_graph(
        nodes,
        "texts",
        [value for value in proto.graph.input if value.name in read and value.name not in index.weights],
        outputs,
        initializer=constants,
    )
    name_known_locales(graph)
    version, opsets = min(proto.ir_version, IR_VERSION), [copy(entry) for entry in proto.opset_import]
    for entry in opsets:  # encoders that `text_encoders` has spelt have keys, which came with that version
        entry.version = max(entry.version, KEYED_ENCODERS) if entry.domain == ENCODERS else entry.version
    return helper.make_model(graph, opset_imports=opsets, functions=proto.functions, ir_version=version)


def _session(model: onnx.ModelProto, path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises its own types
        raise ModelError(f"{path}: operators on text: ONNX Runtime cannot load them: {error!s:.300}") from None


def _words(proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """The texts in the nodes' attributes and tables."""
    read = {name for node in nodes for name in read_names(node)}
    tables = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    for node in all_nodes(nodes):
        for given in node.attribute:
            tables += [given.t] if given.HasField("t") else []
            for text in (*given.strings, given.s):
                yield text.decode("utf-8", "replace")
    for tensor in tables:
        for text in tensor.string_data:
            yield text.decode("utf-8", "replace")


def _replace(proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], taken: TextGraph) -> TextGraph:
    """Put inputs in the nodes' place. Returns the graph with the names of these: an output of the model is no input."""
    graph, names = proto.graph, {node.name for node in nodes}
    outputs, specs = {output.name for output in graph.output}, list[TensorSpec]()
    left = [node for node in graph.node if node.name not in names]
    for spec in taken.outputs:
        name = f"{spec.name}/texts" if spec.name in outputs else spec.name
        specs.append(TensorSpec(name, spec.dtype, spec.shape))
        if name != spec.name:
            left.insert(0, helper.make_node("Identity", [name], [spec.name], name))
    used = {name for node in left for name in read_names(node)} | outputs
    inputs = [value for value in graph.input if value.name in used or value.name not in {t.name for t in taken.inputs}]
    for spec in specs:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        inputs.append(helper.make_tensor_value_info(spec.name, kind, ["batch", *spec.shape[1:]]))
    del graph.node[:], graph.input[:]
    graph.node.extend(left)
    graph.input.extend(inputs)
    return replace(taken, outputs=tuple(specs))
