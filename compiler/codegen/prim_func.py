"""The function around a kernel: its parameters and their buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import Activation

Operand = Activation | NDArray[Any]


def build_prim_func(operands: Sequence[Operand], body: Callable[..., None], unaligned: Sequence[Operand] = ()) -> Any:
    """A TIR PrimFunc with one parameter for each operand, in order.

    operands: tensors (with their physical shapes) and packed weights. A dimension that depends on the batch becomes a
        variable, which is bound from the tensors at each call.
    body: emits the code; it is called with the operands' buffers inside the function's frame.
    unaligned: operands that may begin at any of their elements. The buffers of all others are aligned to ALIGNMENT.
    """
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            variables: dict[int, Expr] = {}
            shapes = []
            for operand in operands:
                shape = operand.physical if isinstance(operand, Activation) else operand.shape
                for dim in shape:
                    if dim < 0 and dim not in variables:
                        variables[dim] = T.int32()
                shapes.append([variables[dim] if dim < 0 else dim for dim in shape])
            handles = [T.arg(f"p{i}", T.handle()) for i in range(len(operands))]
            buffers = [
                # An offset that is only known at the call (and is 0) keeps LLVM from assuming an alignment.
                T.match_buffer(handle, shape, str(operand.dtype), **({"elem_offset": T.int32()} if loose else {}))
                for handle, shape, operand in zip(handles, shapes, operands, strict=True)
                for loose in [any(operand is other for other in unaligned)]
            ]
            body(*buffers)
        return builder.get()
