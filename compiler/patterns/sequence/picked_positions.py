"""One position that is picked from a sequence is picked before what each position computes by itself.

`logits[:, -1]` and the class token of a vision transformer read one position of (batch, positions, channels). Products
with constants, norms over channels and element-wise operators give the same for a position whether they see the others
or not, so that the pick moves in front of them, where nothing else reads what they make: a language-model head then
computes one row instead of all, and so does what lies behind the last attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import onnx

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.dimensions.fixed_extent import PLACE
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute, reduced_axes
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.types import TensorSpec

RANK, POSITIONS = 3, 1  # (batch, positions, channels)
ELEMENT_WISE = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Cast", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LeakyRelu", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Tanh"),
    }
)
NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
Pick: TypeAlias = int | str  # a position, or the tensor with that of each sample


@dataclass(frozen=True, slots=True)
class _Step:
    """Nodes that compute each position by itself: one, or a product between two changes of shape."""

    nodes: tuple[onnx.NodeProto, ...]
    reads: frozenset[str]  # what has positions among its inputs


@dataclass(slots=True)
class _Rewriting(ModelRewriting):
    """The new model so far. `rows`: (batch, 1, channels) of a tensor, by it and what is picked."""

    rows: dict[tuple[str, Pick], str] = field(default_factory=dict)

    def like(self, op: str, inputs: Sequence[str], like: str, result: str, *rest: Any, **attributes: Any) -> str:
        """A node whose result has the type of another tensor."""
        return self.add(op, inputs, result, *rest, dtype=self.view.values[like].dtype, **attributes)

    def row(self, name: str, pick: Pick) -> str:
        """The picked position of a tensor, which keeps its axis."""
        if (name, pick) not in self.rows:
            batch, _, channels = self.view.shape_of(name)
            result, shape = f"{name}/picked_{pick}", (batch, 1, channels)
            if isinstance(pick, int):
                self.like("Slice", [name], name, result, shape, [pick], [pick + 1], [POSITIONS], [1])
            else:
                flat = self.like("GatherND", [name, pick], name, f"{result}/row", (batch, channels), batch_dims=1)
                self.like("Unsqueeze", [flat], name, result, shape, [POSITIONS])
            self.rows[name, pick] = result
        return self.rows[name, pick]

    def step(self, step: _Step, pick: Pick) -> None:
        """Compute the picked position of a step alone."""
        last, output = step.nodes[-1], step.nodes[-1].output[0]
        batch, _, channels = self.view.shape_of(output)
        result = f"{output}/picked_{pick}"
        if len(step.nodes) == 1:
            new = onnx.NodeProto()
            new.CopyFrom(last)
            new.input[:] = [self.row(name, pick) if name in step.reads else name for name in last.input]
            new.output[0], new.name = result, f"{last.name}/picked"
            self.nodes.append(new)
        else:
            product = step.nodes[1]
            (source,) = step.reads
            width = self.view.shape_of(source)[-1]
            flat = self.like("Reshape", [self.row(source, pick)], source, f"{result}/in", (batch, width), [-1, width])
            new = onnx.NodeProto()
            new.CopyFrom(product)
            new.input[0], new.output[0], new.name = flat, f"{result}/out", f"{product.name}/picked"
            self.nodes.append(new)
            self.values[f"{result}/out"] = TensorSpec(f"{result}/out", "float32", (batch, channels))
            self.like("Reshape", [f"{result}/out"], output, result, (batch, 1, channels), [-1, 1, channels])
        self.values[result] = replace(self.view.values[output], name=result, shape=(batch, 1, channels))
        self.rows[output, pick] = result


def pick_positions_first(view: ModelView) -> OnnxModel:
    """The model with picks in front of what they may precede; the same one where they precede no product."""
    steps = _steps(view)
    ends = {node.output[0]: step for step in steps for node in step.nodes}
    picks = _picks(view, ends)
    moved = {id(node) for step in steps if step.nodes[-1].output[0] in picks for node in step.nodes}
    if not any(id(node) in moved and node.op_type in ("MatMul", "Gemm") for node in view.nodes):
        return view.model
    found = _Rewriting(view)
    before = _before_picks(view)
    found.nodes.extend(node for node in view.nodes if id(node) in before)
    for node in view.nodes:
        if id(node) in before:
            continue
        if id(node) in moved:
            step = ends[node.output[0]]
            if node is step.nodes[-1]:
                found.step(step, picks[node.output[0]])
            continue
        picked = _picked(node, view)
        if picked is None or node.input[0] not in picks:
            found.nodes.append(node)
            continue
        row, output = found.row(node.input[0], picked), view.values[node.output[0]]
        keeps = len(output.shape) == RANK
        arguments = () if keeps else ([POSITIONS],)
        found.like("Identity" if keeps else "Squeeze", [row], output.name, output.name, output.shape, *arguments)
    return found.model()


def _before_picks(view: ModelView) -> set[int]:
    """The nodes that compute the position of each sample, by the id: they may stand anywhere before the pick."""
    found, names = set[int](), [PLACE]
    while names:
        maker = view.makers.get(names.pop())
        if maker is not None and id(maker) not in found:
            found.add(id(maker))
            names.extend(view.read_by(maker))
    return found


def _picked(node: onnx.NodeProto, view: ModelView) -> Pick | None:
    """Which position a node picks of its first input, if that is all that it does."""
    if node.op_type not in ("Gather", "Slice", "GatherND") or is_opaque(node) or node.input[0] in view.constants:
        return None
    shape = view.shape_of(node.input[0])
    if len(shape) != RANK or shape[POSITIONS] < 2:
        return None
    given = [view.constants.get(name) for name in node.input[1:]]
    if node.op_type == "GatherND":
        alone = node.input[1] == PLACE and attribute(node, "batch_dims", 0) == 1
        return PLACE if alone and len(view.shape_of(node.output[0])) == 2 else None
    if any(value is None or value.size != 1 for value in given):
        return None
    numbers = [int(value.item()) for value in given if value is not None]
    if node.op_type == "Gather":
        along, ranks = attribute(node, "axis", 0) % RANK, len(view.shape_of(node.output[0])) in (RANK - 1, RANK)
    else:
        along = numbers[2] % RANK if len(numbers) > 2 else 0
        ranks = view.shape_of(node.output[0])[POSITIONS] == 1 and numbers[3:] in ([], [1])
    place = numbers[0] + (shape[POSITIONS] if numbers[0] < 0 else 0)
    return place if along == POSITIONS and ranks and 0 <= place < shape[POSITIONS] else None


def _picks(view: ModelView, ends: dict[str, _Step]) -> dict[str, Pick]:
    """The tensors of which one position alone is read, and which."""
    found: dict[str, Pick] = {}
    for node in reversed(view.nodes):
        name = node.output[0] if node.output else ""
        users = view.users_of(name)
        if not name or not users or name in view.output_names or len(view.shape_of(name)) != RANK:
            continue
        wanted = set[Pick | None]()
        for user in users:
            step = ends.get(user.output[0])
            through = found.get(step.nodes[-1].output[0]) if step and name in step.reads else None
            wanted.add(_picked(user, view) if step is None and user.input[0] == name else through)
        if len(wanted) == 1 and (pick := wanted.pop()) is not None:
            found[name] = pick
    return found


def _steps(view: ModelView) -> list[_Step]:
    found = []
    for node in view.nodes:
        if is_opaque(node) or [name for name in node.output if name] != list(node.output[:1]):
            continue
        shape = view.shape_of(node.output[0])
        if len(shape) != RANK or shape[POSITIONS] < 2:
            continue
        computed = [name for name in node.input if name and name not in view.constants]
        alike = all(view.shape_of(name)[: POSITIONS + 1] == shape[: POSITIONS + 1] for name in computed)
        if node.op_type == "Reshape":
            if step := _product_between_reshapes(node, view):
                found.append(step)
        elif alike and all(len(view.shape_of(name)) == RANK for name in computed) and _is_apart(node, view):
            found.append(_Step((node,), frozenset(computed)))
    return found


def _is_apart(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a node computes each position from that position alone; its computed inputs have all of them."""
    constants = [view.constants[name] for name in node.input if name in view.constants]
    computed = [name for name in node.input if name and name not in view.constants]
    if node.op_type == "MatMul":
        return computed == [node.input[0]] and constants[0].ndim == 2
    if node.op_type in NORMS:
        own = computed == [node.input[0]] and all(value.ndim < 2 for value in constants)
        return own and attribute(node, "axis", -1) in (-1, RANK - 1)
    if node.op_type == "ReduceMean":
        axes = reduced_axes(node, view.constants)
        return computed == [node.input[0]] and axes in ([-1], [RANK - 1]) and attribute(node, "keepdims", 1) == 1
    everywhere = all(value.ndim < 2 or value.shape[-2] == 1 for value in constants)
    return node.op_type in ELEMENT_WISE and bool(computed) and everywhere


def _product_between_reshapes(node: onnx.NodeProto, view: ModelView) -> _Step | None:
    """ONNX Runtime writes a product with a bias as one of matrices, (batch x positions, channels)."""
    product = view.makers.get(node.input[0])
    first = view.makers.get(product.input[0]) if product is not None else None
    if product is None or first is None or product.op_type != "Gemm" or first.op_type != "Reshape":
        return None
    if is_opaque(product) or is_opaque(first) or attribute(product, "transA", 0):
        return None
    alone = view.only_user(product.output[0]) is node and view.only_user(first.output[0]) is product
    source, shape = view.shape_of(first.input[0]), view.shape_of(node.output[0])
    known = all(name in view.constants for name in product.input[1:] if name) and first.input[0] not in view.constants
    if not alone or not known or len(source) != RANK or source[: POSITIONS + 1] != shape[: POSITIONS + 1]:
        return None
    bias = view.constants.get(product.input[2]) if len(product.input) > 2 else None
    flat = (source[0] * source[1], source[2]), (source[0] * source[1], shape[2])
    same = (view.shape_of(first.output[0]), view.shape_of(product.output[0])) == flat
    every_row = bias is None or bias.ndim < 2 or bias.shape[0] == 1
    return _Step((first, product, node), frozenset({first.input[0]})) if same and every_row else None
