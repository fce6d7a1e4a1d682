"""Which operators a model may have, before anything is known of its shapes."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import onnx

from veltair.compiler.onnx.constants import all_nodes, named_tensors
from veltair.errors import ModelError

STANDARD = ("", "ai.onnx")
RANDOM_OPERATORS = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


def check_written_operators(proto: onnx.ModelProto, domains: Set[str], path: Path) -> None:
    """Refuse what cannot be served whatever its shapes: foreign operators, training mode, random operators."""
    constants = named_tensors(proto.graph, proto.graph.node)
    given = {value.name for value in proto.graph.input}.difference(constants)
    fixed = set(constants)  # tensors that follow from constants alone
    for node in proto.graph.node:
        if node.input and fixed.issuperset(filter(None, node.input)):
            fixed.update(node.output)
    local = {(function.domain, function.name) for function in proto.functions}
    for node in all_nodes([*proto.graph.node, *(n for function in proto.functions for n in function.node)]):
        where = f"{path}: node {node.name!r}"
        if node.domain not in STANDARD:
            if node.domain not in domains and (node.domain, node.op_type) not in local:
                raise ModelError(f"{where}: operator {node.domain}.{node.op_type} is not one of standard ONNX")
            continue
        if node.op_type in RANDOM_OPERATORS:
            raise ModelError(f"{where}: operator {node.op_type} draws at random; expected a deterministic model")
        training = any(a.name == "training_mode" and a.i for a in node.attribute)
        # PyTorch standardises weights by a batch norm of them, as in NFNets and BiT's ResNets: it gives a constant.
        training = training and (node.op_type != "BatchNormalization" or not fixed.issuperset(node.output))
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            flag = constants.get(node.input[2])
            training = any(flag.raw_data) or any(flag.int32_data) if flag is not None else node.input[2] in given
        if training:
            raise ModelError(f"{where}: operator {node.op_type} is in training mode; expected a model for inference")


def check_operator_domains(proto: onnx.ModelProto, domains: Set[str], path: Path) -> None:
    """Refuse operators of other domains, once functions have been put in place."""
    for node in proto.graph.node:
        if node.domain not in domains:
            where = f"{path}: node {node.name!r}"
            raise ModelError(f"{where}: operator {node.domain}.{node.op_type} is not supported")
