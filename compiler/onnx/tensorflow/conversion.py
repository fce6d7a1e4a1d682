"""Converts a SavedModel with tf2onnx: a program of its own, for a Python that has TensorFlow and not this project.

    python conversion.py --saved-model FOLDER --output MODEL.onnx …

Options are tf2onnx's. Some of its conversions are replaced: tables of whole numbers or to real ones, which it refuses,
become label encoders; one-hots of negative indices are zeros, as TensorFlow has them, where ONNX counts from the end; a
sparse tensor may have no value; the remainder of whole numbers has the divisor's sign; changes of the letter case, and
splits with a limit, stay as they are; counts of ragged values, which it does not know, become sums by index. So is what
it assumes of shapes: operands of a selection may differ in theirs, and a look-up in a table has that of its keys.
"""

from __future__ import annotations

from typing import Any

import graph_passes
import numpy as np
from onnx import TensorProto
from tf2onnx import convert, shape_inference
from tf2onnx.custom_opsets.onnx_ml import LookupTableFind
from tf2onnx.custom_opsets.string_ops import StringOps
from tf2onnx.handler import tf_op
from tf2onnx.onnx_opset.math import FloorMod
from tf2onnx.onnx_opset.tensor import OneHot, SparseReshape
from tf2onnx.utils import make_name

CONTRIB = "ai.onnx.contrib"
LISTS = {TensorProto.INT64: "int64", TensorProto.STRING: "string", TensorProto.FLOAT: "float"}
AS_WRITTEN = ((TensorProto.STRING, TensorProto.INT64), (TensorProto.INT64, TensorProto.STRING))  # by tf2onnx itself


@tf_op("LookupTableFindV2")
class AnyLookupTableFind:
    """A look-up in a table of whole numbers or texts."""

    @classmethod
    def version_8(cls, ctx: Any, node: Any, initialized_tables: Any, **more: Any) -> None:
        kinds = ctx.get_dtype(node.input[1]), ctx.get_dtype(node.output[0])
        table = node.inputs[0]
        while table.type == "Identity":
            table = table.inputs[0]
        known = all(kind in LISTS for kind in kinds) and table.get_attr_value("shared_name") in initialized_tables
        if kinds in AS_WRITTEN or not known or not node.inputs[2].is_const():
            LookupTableFind.version_8(ctx, node, initialized_tables, **more)
            return
        keys, values = (np.asarray(part) for part in initialized_tables[table.get_attr_value("shared_name")])
        name, given, outputs, shape = node.name, node.input[1], node.output, ctx.get_shape(node.input[1])
        default = node.inputs[2].get_tensor_value()
        attributes = {
            f"keys_{LISTS[kinds[0]]}s": keys.tolist(),
            f"values_{LISTS[kinds[1]]}s": values.tolist(),
            f"default_{LISTS[kinds[1]]}": default,
        }
        ctx.remove_node(name)
        ctx.make_node(
            "LabelEncoder",
            [given],
            attr=attributes,
            outputs=outputs,
            name=name,
            shapes=[shape],
            dtypes=[kinds[1]],
            domain="ai.onnx.ml",
        )
        if not ctx.find_output_consumers(table.output[0]):
            ctx.remove_node(table.name)


@tf_op("OneHot")
class OneHotOfIndices:
    """One-hots, of float32 until they are cast; an index below 0 becomes one that is too large, which has none."""

    @classmethod
    def version_13(cls, ctx: Any, node: Any, **more: Any) -> None:
        kind = ctx.get_dtype(node.input[0])
        bits = {TensorProto.INT64: 64, TensorProto.INT32: 32}.get(kind)
        if bits is not None:
            zero = ctx.make_const(f"{node.name}/zero", np.array(0, f"int{bits}")).output[0]
            far = ctx.make_const(f"{node.name}/far", np.array((1 << (bits - 1)) - 1, f"int{bits}")).output[0]
            below = ctx.make_node("Less", [node.input[0], zero]).output[0]
            kept = ctx.make_node("Where", [below, far, node.input[0]]).output[0]
            ctx.replace_input(node, node.input[0], kept, 0)
        made = ctx.get_dtype(node.input[2])
        if made != TensorProto.FLOAT:  # which tf2onnx makes by a look-up in a unit matrix: it fails beyond its rows
            for place in (2, 3):
                value = ctx.make_node("Cast", [node.input[place]], attr={"to": TensorProto.FLOAT}).output[0]
                ctx.replace_input(node, node.input[place], value, place)
            cast = ctx.insert_new_node_on_output("Cast", node.output[0], name=make_name(node.name), to=made)
            ctx.set_dtype(cast.output[0], made)
            ctx.copy_shape(node.output[0], cast.output[0])
            ctx.set_dtype(node.output[0], TensorProto.FLOAT)
        OneHot.any_version_after9(13, ctx, node, **more)


class WithoutMatMul:
    """A graph under construction where products of integers with a vector are sums, which may have no row.

    ONNX Runtime refuses the product where no value of a sparse tensor is left.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def make_node(self, op_type: str, inputs: list[str], **more: Any) -> Any:
        if op_type != "MatMul":
            return self._ctx.make_node(op_type, inputs, **more)
        axes = self._ctx.make_const(make_name("axes"), np.array([1], np.int64)).output[0]
        product = self._ctx.make_node("Mul", inputs).output[0]
        return self._ctx.make_node("ReduceSum", [product, axes], attr={"keepdims": 0}, **more)


@tf_op("SparseReshape")
class SparseReshapeOfAny:
    """Other indices of a sparse tensor, which may be empty."""

    @classmethod
    def version_13(cls, ctx: Any, node: Any, **more: Any) -> None:
        SparseReshape.any_version(13, WithoutMatMul(ctx), node, **more)


@tf_op(["StringLower", "StringUpper"])
class LetterCase:
    """Texts in another letter case stay TensorFlow's operator: ONNX's changes letters beyond ASCII, too."""

    @classmethod
    def version_10(cls, ctx: Any, node: Any, **more: Any) -> None:
        pass


@tf_op("FloorMod")
class FloorModOfIntegers:
    """The remainder; of whole numbers by ONNX's operator, where tf2onnx rounds the quotient to zero."""

    @classmethod
    def version_10(cls, ctx: Any, node: Any, **more: Any) -> None:
        if ctx.get_dtype(node.input[0]) in (TensorProto.INT64, TensorProto.INT32):
            node.type = "Mod"
        else:
            FloorMod.version_7(ctx, node, **more)


@tf_op("StringSplitV2", domain=CONTRIB)
class StringSplit:
    """Texts that are split; tf2onnx drops the limit of the pieces, so a split that has one stays TensorFlow's."""

    @classmethod
    def version_1(cls, ctx: Any, node: Any, **more: Any) -> None:
        if node.get_attr_value("maxsplit", -1) < 0:
            StringOps.version_1(ctx, node, **more)


@tf_op("UnicodeDecode")
class UnicodeSplit:
    """Texts that are split into characters: row splits, and the characters as texts, which `UnicodeEncode` makes."""

    @classmethod
    def version_1(cls, ctx: Any, node: Any, **more: Any) -> None:
        wanted = {"input_encoding": b"UTF-8", "errors": b"replace", "replacement_char": 65533}
        if any(node.get_attr_value(name) != value for name, value in wanted.items()):
            return
        if node.get_attr_value("replace_control_characters"):
            return
        kinds, shapes, outputs = [ctx.get_dtype(o) for o in node.output], [[None], [None]], node.output
        given, name = node.input[0], node.name
        ctx.remove_node(name)
        ctx.make_node(
            "UnicodeSplit",
            [given],
            outputs=outputs,
            name=name,
            shapes=shapes,
            dtypes=[kinds[0], TensorProto.STRING],
            domain=CONTRIB,
        )


@tf_op("UnicodeEncode")
class UnicodeEncode:
    """Code points that are texts of one character each: those of a `UnicodeSplit`; other ones stay TensorFlow's."""

    @classmethod
    def version_1(cls, ctx: Any, node: Any, **more: Any) -> None:
        points, splits = node.inputs[0], node.inputs[1]
        source = node.input[0]
        while points.type in ("Reshape", "ExpandDims", "Unsqueeze", "Identity"):
            source, points = points.input[0], points.inputs[0]
        utf8 = node.get_attr_value("output_encoding") == b"UTF-8"
        if points.type != "UnicodeSplit" or splits.type != "Range" or not utf8:  # one split a code point
            return
        start, _, step = (i.get_tensor_value() if i.is_const() else None for i in splits.inputs)
        if (start, step) != (0, 1):
            return
        ctx.replace_all_inputs(node.output[0], source)
        ctx.remove_node(node.name)


@tf_op("RaggedBincount")
class RaggedBincount:
    """How often each row of a ragged tensor has each number below a size: ones, added up by row and number.

    A value that is no such number is not counted. With weights, they are added up.
    """

    @classmethod
    def version_13(cls, ctx: Any, node: Any, **more: Any) -> None:
        splits, values, size, weights = node.input
        made, outputs, shape = ctx.get_dtype(node.output[0]), node.output, ctx.get_shape(node.output[0])
        binary = node.get_attr_value("binary_output", False)

        def const(number: Any, dtype: str = "int64") -> str:
            return str(ctx.make_const(make_name(f"{node.name}/const"), np.array(number, dtype)).output[0])

        def step(operator: str, *inputs: str, **attributes: Any) -> str:
            return str(ctx.make_node(operator, list(inputs), attr=attributes).output[0])

        def cast(given: str, to: int) -> str:
            return step("Cast", given, to=to)

        zero, one, last = const(0), const(1), const([-1])
        values, size = cast(values, TensorProto.INT64), cast(size, TensorProto.INT64)
        count = step("Squeeze", step("Shape", values), const([0]))
        places = step("Unsqueeze", step("Range", zero, count, one), const([0]))  # (1, values)
        ends = step("Slice", splits, const([1]), const([(1 << 63) - 1]), const([0]))  # of rows
        before = step("LessOrEqual", step("Unsqueeze", ends, const([1])), places)
        rows = step("ReduceSum", cast(before, TensorProto.INT64), const([0]), keepdims=0)
        valid = step("And", step("GreaterOrEqual", values, zero), step("Less", values, size))
        numbers = step("Where", valid, values, size)  # a column of its own for all others
        where = step("Concat", *(step("Unsqueeze", part, last) for part in (rows, numbers)), axis=1)
        wide = step("Concat", step("Shape", ends), step("Unsqueeze", step("Add", size, one), const([0])), axis=0)
        added = step("Expand", const(1, "float32"), step("Shape", values))
        if ctx.get_shape(weights) not in ([0], [0, 0]):
            added = cast(weights, TensorProto.FLOAT)
        counts = step("ScatterND", step("Expand", const(0, "float32"), wide), where, added, reduction="add")
        counts = step("Slice", counts, const([0]), step("Unsqueeze", size, const([0])), const([1]))
        if binary:
            counts = step("Min", counts, const(1, "float32"))
        ctx.remove_node(node.name)
        more = {"outputs": outputs, "name": node.name, "shapes": [shape], "dtypes": [made]}
        ctx.make_node("Cast", [counts], attr={"to": made}, **more)


def infer_shape(op: Any) -> bool:
    """Whether a shape of a TensorFlow operator was found that was not known. tf2onnx asks for it until none is."""
    shape_of = shape_inference.get_tf_tensor_shape
    if op.type == "LookupTableFindV2":
        if shape_of(op.inputs[1]) is None or shape_of(op.outputs[0]) is not None:
            return False
        op.outputs[0].set_shape(op.inputs[1].shape)
        return True
    if op.type == "SelectV2":  # its operands are broadcast
        before = shape_of(op.outputs[0])
        shape_inference.infer_shape_for_op(op)
        known = [shape_of(given) for given in op.inputs]
        if before is None and shape_of(op.outputs[0]) is None and None not in known:
            widest = max(known, key=len)
            op.outputs[0].set_shape([None] * len(widest))
        return before is None and shape_of(op.outputs[0]) is not None
    return bool(infer_other_shape(op))


infer_other_shape = shape_inference.infer_shape_for_op_legacy
shape_inference.infer_shape_for_op_legacy = infer_shape
graph_passes.replace_slow_passes()

if __name__ == "__main__":
    convert.main()
