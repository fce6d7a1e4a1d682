"""What a bag makes of its rows, in standard operators that `patterns.recommendation.ragged_bags` makes one layer of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.bags.bag_spelling import REDUCTIONS, ExportedBags
from veltair.profiles.artifact.ragged_inputs import RaggedInput

PREFIX = "veltair/bag/"  # of names that are added
OPERATORS = {reduce: operator for operator, reduce in REDUCTIONS.items()}
REDUCTIONS_WITH_INPUTS = 18  # the opset from which axes of all reductions are an input; of ReduceSum they always are


def shared_constants(bags: Sequence[ExportedBags], ragged: Sequence[RaggedInput]) -> Iterator[onnx.TensorProto]:
    """The constants that all bags of a model refer to."""
    numbers = {"one": np.array(1), "none": np.array(0), "axis": np.array([1]), "last": np.array([2])}
    numbers |= {"zero": np.array(0, np.float32), "least": np.array(-np.inf, np.float32)}
    numbers |= {f"places/{each.room}": np.arange(each.room).reshape(1, -1, 1) for each in ragged}
    numbers |= {f"padding/{bag.padding}": np.array(bag.padding) for bag in bags if bag.padding is not None}
    return (numpy_helper.from_array(value, f"{PREFIX}{name}") for name, value in numbers.items())


def reduce_rows(bag: ExportedBags, ragged: RaggedInput | None, opset: int) -> Iterator[onnx.NodeProto]:
    """Nodes for the sum, mean or maximum of each bag's rows: of those before its length, if `ragged`, and without those
    of its padding."""
    own = f"{PREFIX}{bag.output}/"

    def node(op: str, inputs: Sequence[str], output: str, **attributes: int) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"{own}{output.rpartition('/')[2]}", **attributes)

    def reduction(op: str, rows: str, output: str, keepdims: int) -> onnx.NodeProto:
        if op == "ReduceSum" or opset >= REDUCTIONS_WITH_INPUTS:
            return node(op, [rows, f"{PREFIX}axis"], output, keepdims=keepdims)
        return helper.make_node(op, [rows], [output], name=f"{own}{op}", axes=[1], keepdims=keepdims)

    rows, ids, lengths, weights = f"{own}rows", bag.ids, "", bag.weights
    if ragged is not None:
        view = ragged.view(bag.feature)
        ids, lengths, weights = view.ids, view.lengths, view.weights.get(bag.weights, "")
    yield node("Gather", [bag.table, ids], rows)
    if weights:
        if ragged is None:
            weights = f"{own}weights"
            yield node("Unsqueeze", [bag.weights, f"{PREFIX}last"], weights)
        yield node("Mul", [rows, weights], f"{own}weighted")
        rows = f"{own}weighted"
    conditions = list[str]()
    if ragged is not None:
        conditions.append(f"{own}held")
        yield node("Less", [f"{PREFIX}places/{ragged.room}", lengths], conditions[-1])
    if bag.padding is not None:
        conditions.append(f"{own}meant")
        yield node("Cast", [ids], f"{own}ids", to=TensorProto.INT64)
        yield node("Equal", [f"{own}ids", f"{PREFIX}padding/{bag.padding}"], f"{own}padding")
        yield node("Not", [f"{own}padding"], f"{own}others")
        yield node("Unsqueeze", [f"{own}others", f"{PREFIX}last"], conditions[-1])
    if not conditions:
        yield reduction(OPERATORS[bag.reduce], rows, bag.output, keepdims=0)
        return
    inside = conditions[0]
    if len(conditions) > 1:
        inside = f"{own}inside"
        yield node("And", conditions, inside)
    yield node("Where", [inside, rows, f"{PREFIX}{'least' if bag.reduce == 'max' else 'zero'}"], f"{own}kept")
    if bag.reduce == "sum":
        yield reduction("ReduceSum", f"{own}kept", bag.output, keepdims=0)
        return
    number = lengths
    if bag.padding is not None:
        number = f"{own}number"
        yield node("Cast", [inside], f"{own}ones", to=TensorProto.INT64)
        yield reduction("ReduceSum", f"{own}ones", number, keepdims=1)
    if bag.reduce == "max":
        yield reduction("ReduceMax", f"{own}kept", f"{own}most", keepdims=1)
        yield node("Less", [f"{PREFIX}none", number], f"{own}some")
        yield node("Where", [f"{own}some", f"{own}most", f"{PREFIX}zero"], f"{own}result")
    else:
        yield reduction("ReduceSum", f"{own}kept", f"{own}sum", keepdims=1)
        yield node("Max", [number, f"{PREFIX}one"], f"{own}least")
        yield node("Cast", [f"{own}least"], f"{own}count", to=TensorProto.FLOAT)
        yield node("Div", [f"{own}sum", f"{own}count"], f"{own}result")
    yield node("Squeeze", [f"{own}result", f"{PREFIX}axis"], bag.output)
