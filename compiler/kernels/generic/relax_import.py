"""Import of ONNX nodes into Relax, TVM's graph language, and the fusion of what comes out."""

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

from veltair.compiler.kernels.generic.bounded_fusion import bound_fusion
from veltair.compiler.kernels.generic.onnx_converters import CONVERTERS
from veltair.errors import ModelError
from veltair.types import TensorSpec

BATCH = "batch"
MOST_NAMED = 4  # nodes in an error


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
        if len(nodes) > 1:
            _import_one_by_one(nodes, values, constants, opset)
        raise describe_failure(nodes, error) from None


def _import_one_by_one(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    opset: int,
) -> None:
    """Raise the ModelError of the first node that TVM cannot import by itself; of nodes that are alike one is tried."""
    seen: set[tuple[str, ...]] = set()
    for node in nodes:
        attributes = sorted(attribute.SerializeToString().hex() for attribute in node.attribute)
        inputs = [name for name in dict.fromkeys(node.input) if name and name not in constants]
        outputs = [name for name in node.output if name in values]
        kind = (node.op_type, *attributes, *(str(values.get(name)) for name in inputs))
        if kind not in seen and outputs and all(name in values for name in inputs):
            seen.add(kind)
            import_to_relax([node], values, constants, inputs, outputs, opset)


def describe_failure(nodes: Sequence[onnx.NodeProto], error: Exception) -> ModelError:
    """An error that names the nodes that TVM cannot compile, of many the first few, and says why."""
    all_names = list(dict.fromkeys(f"{node.op_type} ({node.name!r})" for node in nodes))
    more = len(all_names) - MOST_NAMED
    named = ", ".join(all_names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    return ModelError(f"no way to compile {named}: {reason}")


def fuse_operators(module: tvm.IRModule) -> tvm.IRModule:
    """The module with its operators fused; each function that comes out is a layer."""
    before = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.FoldConstant(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
    ]
    fusion = [relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    with tvm.target.Target("llvm"):
        bounded = bound_fusion(tvm.ir.transform.Sequential(before)(module))
        return tvm.ir.transform.Sequential(fusion)(bounded)


@contextmanager
def _own_converters() -> Iterator[None]:
    """Our converters in place of TVM's; and it says nothing of nodes that it refuses, whose errors are told."""
    original, exit_function = onnx_frontend._get_convert_map, relax.BlockBuilder._exit_function_scope

    def exit_and_end_block(builder: relax.BlockBuilder, error: type[BaseException] | None, *rest: Any) -> None:
        is_open = error is not None and not builder._func._is_emit_func_output_called
        exit_function(builder, error, *rest)
        if is_open:  # TVM warns of a block that nothing ends
            builder._end_block()

    onnx_frontend._get_convert_map = lambda: {**original(), **CONVERTERS}
    onnx_frontend.print = lambda *words: None  # into the standard output, which is the command's
    relax.BlockBuilder._exit_function_scope = exit_and_end_block
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original
        del onnx_frontend.print
        relax.BlockBuilder._exit_function_scope = exit_function
