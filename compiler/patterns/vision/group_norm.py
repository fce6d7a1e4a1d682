"""Group and instance normalisation of tensors in blocks, with the epilogue behind it."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.vision import GroupNormParameters
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.epilogue import Epilogue

Floats = NDArray[np.float32]


def group_norm(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Match, from the first node on: [Reshapes to (N, groups, …)] LayerNormalization of all behind the second axis
    [factor] [summand] [Reshape back [factor] [summand]].

    Factors and summands have one number for each group, or channel. Importing writes InstanceNormalization so
    (`composed_operators`), and exporters GroupNorm by way of it (`group_norms`).
    """
    name = node.input[0]
    if not builder.is_made(name) or len(view.shape_of(name)) != 4:
        return False
    x, nodes = builder.tensors[name], [node]
    if (x.block, x.dtype) != (view.block, view.dtype):
        return False
    norm, rows = node, name  # some come to the groups by way of (N, C, …)
    while norm.op_type == "Reshape":
        rows, user = norm.output[0], view.free_user(norm.output[0])
        if user is None:
            return False
        norm = user
        nodes.append(norm)
    shape = view.shape_of(rows)
    if len(shape) < 3 or shape[0] != x.shape[0] or shape[1] < 1 or x.shape[1] % shape[1]:
        return False
    groups = shape[1]
    if norm.input[0] != rows or not normalises_planes(norm, view):
        return False
    scale, shift = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    last, scale, shift = _scaled(norm, scale, shift, view, nodes)
    while view.shape_of(last.output[0]) != x.shape:  # back to channels, some by way of (N, C, …)
        back = view.free_user(last.output[0])
        if back is None or back.op_type != "Reshape" or view.shape_of(back.output[0])[:2] != x.shape[:2]:
            return False
        nodes.append(back)
        scale, shift = (np.repeat(each, x.shape[1] // len(each)) for each in (scale, shift))
        last, scale, shift = _scaled(back, scale, shift, view, nodes)
    epilogue = Epilogue.behind(last, view, builder)
    y = Activation(epilogue.output, view.dtype, x.shape, view.block)
    parameters = GroupNormParameters(groups, float(attribute(norm, "epsilon", 1e-5)), epilogue.activation)
    weights, flops = {"scale": scale, "shift": shift}, 7 * int(np.prod(np.abs(x.shape)))
    builder.emit(norm.name, "group_norm", epilogue.operands(x), [y], parameters, weights, flops)
    builder.take((*nodes, *epilogue.swallowed))
    return True


def normalises_planes(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a node normalises all that lies behind the second axis, and does nothing else."""
    if node.op_type != "LayerNormalization" or any(node.output[1:]):
        return False
    rank = len(view.shape_of(node.input[0]))
    if rank < 3 or attribute(node, "axis", -1) not in (2, 2 - rank):
        return False
    return all(_of_all(view, given, 1.0 if place == 0 else 0.0) for place, given in enumerate(node.input[1:]))


def _of_all(view: ModelView, name: str, value: float) -> bool:
    """Whether a constant, if there is one, is this number everywhere."""
    return not name or (name in view.constants and bool((view.constants[name] == value).all()))


def _scaled(
    last: onnx.NodeProto,
    scale: Floats,
    shift: Floats,
    view: ModelView,
    nodes: list[onnx.NodeProto],
) -> tuple[onnx.NodeProto, Floats, Floats]:
    """Take the factors and summands of the second axis behind a node; the last node, and all of them together."""
    while (user := view.free_user(last.output[0])) is not None and user.op_type in ("Mul", "Add"):
        other = user.input[1] if user.input[0] == last.output[0] else user.input[0]
        value, rank = view.constants.get(other), len(view.shape_of(last.output[0]))
        if value is None or value.ndim > rank or value.size not in (1, len(scale)):
            break
        if value.size > 1 and (1,) * (rank - value.ndim) + value.shape != (1, len(scale), *[1] * (rank - 2)):
            break
        numbers = value.reshape(-1).astype(np.float32)
        if user.op_type == "Mul":
            scale, shift = scale * numbers, shift * numbers
        else:
            shift = shift + numbers
        nodes.append(user)
        last = user
    return last, scale, shift
