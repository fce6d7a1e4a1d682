"""Import of ONNX nodes into Relax, TVM's graph language, and the fusion of what comes out.

TVM's importer lets a Gather read whatever an id points at; the converter in here clips, so that no id leaves the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from veltair.errors import ModelError
from veltair.types import TensorSpec

BATCH = "batch"


def import_to_relax(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
) -> tvm.IRModule:
    """A Relax module whose main function computes the outputs from the inputs, not yet fused.

    The arguments are those of `import_layers`. Raises ModelError naming the nodes that TVM cannot import.
    """

    def info(name: str) -> onnx.ValueInfoProto:
        spec = values[name]
        # Only a plain batch may be named; k times the batch has no name in ONNX, so it stays unknown outside.
        shape = [(BATCH if d == -1 else f"{BATCH}_{-d}") if d < 0 else d for d in spec.shape]
        return onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), shape
        )

    for node in nodes:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise ModelError(f"no way to compile {node.op_type} ({node.name!r:.80}): it runs graphs inside of it")
    used = dict.fromkeys(name for node in nodes for name in node.input if name in constants)
    graph = onnx.helper.make_graph(
        list(nodes),
        "region",
        [info(name) for name in inputs],
        [info(name) for name in outputs],
        initializer=[onnx.numpy_helper.from_array(np.asarray(constants[name]), name) for name in used],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    try:
        with warnings.catch_warnings(), _own_converters():
            warnings.simplefilter("ignore")
            return from_onnx(model, opset=opset, keep_params_in_input=False)
    except Exception as error:  # the importer raises whatever its checks raise
        named = ", ".join(dict.fromkeys(f"{node.op_type} ({node.name!r})" for node in nodes))
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ModelError(f"no way to compile {named}: {reason}") from None


def fuse_operators(module: tvm.IRModule) -> tvm.IRModule:
    """The module with its operators fused; each function that comes out is a layer."""
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.FoldConstant(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    with tvm.target.Target("llvm"):
        return tvm.ir.transform.Sequential(passes)(module)


class _ClippingGather(onnx_frontend.Gather):  # type: ignore[misc]  # TVM has no types
    """ONNX Gather: negative indices count from the end, others are clipped into the axis."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        data, indices = inputs[0], inputs[1]
        if isinstance(data, relax.ShapeExpr) or isinstance(indices, relax.ShapeExpr):
            return super()._impl_v13(bb, inputs, attr, params)
        axis = attr.get("axis", 0)
        extent = data.ty.shape[axis]
        if isinstance(indices, tvm.ir.GenericConst) and isinstance(extent, tvm.tirx.IntImm):
            known = indices.value.numpy()
            known = np.where(known < 0, known + int(extent), known)
            return relax.op.take(data, relax.const(known, str(known.dtype)), axis, mode="clip")
        return relax.op.take(data, indices, axis, mode="clip")


class _TypedOneHot(onnx_frontend.OneHot):  # type: ignore[misc]  # TVM has no types
    """ONNX OneHot in the type of its values; TVM turns float32 into float64."""

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return relax.op.astype(super()._impl_v11(bb, inputs, attr, params), str(inputs[2].ty.dtype.dtype))


@contextmanager
def _own_converters() -> Iterator[None]:
    original = onnx_frontend._get_convert_map
    onnx_frontend._get_convert_map = lambda: {**original(), "Gather": _ClippingGather, "OneHot": _TypedOneHot}
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original
