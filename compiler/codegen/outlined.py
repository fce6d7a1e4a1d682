"""Parts of a kernel that are compiled as functions of their own.

LLVM's time grows with the square of what one nest of loops holds: whenever it changes an inner loop (unrolls, rotates,
vectorises it), it forgets what it knows of all loops around that one, down to the outermost, and so of their other
parts. Functions of their own are in no such nest, and a call costs nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

_MARK = "veltair.outlined"
_PART = "veltair.part"  # attribute of the functions
_SCOPE = "compute_scope"  # of TVM: LLVM inlines none of these where the function is known to have no aliases
_KEPT = ("target", "tirx.noalias")  # attributes of the kernel that its parts have, too
_DEVICE = {"device_id": 0, "device_type": 1}  # the CPU, from whose heap large allocations come


@contextmanager
def outlined() -> Iterator[None]:
    """Code that becomes a function of its own, which is called where the code stands.

    Only what is allocated inside can be kept in registers.
    """
    with T.attr(T.int32(0), _MARK, T.int32(1)):
        yield


def _outline(module: ir.IRModule, _: Any) -> ir.IRModule:
    """Make a private function of all that is `outlined`."""
    made = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    for name, function in module.functions.items():
        parts = _Parts(name.name_hint, function)
        body = parts.without(function.body)
        for part, code in parts.functions.items():
            made[part] = code
        if parts.functions:
            made.update_func(name, function.with_body(body))
    return made


def _keep_outlined(function: Any, _: ir.IRModule, __: Any) -> Any:
    """Have LLVM leave the functions apart."""
    if _PART not in function.attrs:
        return function
    statements = list(function.body.seq)
    declared = [s for s in statements if isinstance(s, tirx.DeclBuffer)]
    code = tirx.SeqStmt([s for s in statements if not isinstance(s, tirx.DeclBuffer)])
    scope = tirx.AttrStmt(ir.StringImm(""), _SCOPE, ir.StringImm(function.attrs[_PART]), code)
    for key, value in _DEVICE.items():
        scope = tirx.AttrStmt(ir.StringImm("default"), key, T.int32(value), scope)
    return function.with_body(tirx.SeqStmt([*declared, scope]))


# Passes: the first for flat buffers, before allocations are placed; the second for placed ones, since those outside of
# its scope are memory.
outline = tvm.transform.module_pass(_outline, opt_level=0, name="veltair.Outline")
keep_outlined = tirx.transform.prim_func_pass(_keep_outlined, opt_level=0, name="veltair.KeepOutlined")


class _Parts:
    """Takes what is `outlined` out of a function's body. ::

    parts = _Parts("columns_0", function)
    body = parts.without(function.body)
    parts.functions  # by their names in the module
    """

    def __init__(self, name: str, function: Any) -> None:
        self.functions: dict[ir.GlobalVar, Any] = {}
        self._name, self._function = name, function

    def without(self, node: Any) -> Any:
        """A statement with calls in place of the parts."""
        if isinstance(node, tirx.AttrStmt):
            if node.attr_key == _MARK:
                return self._call(node.body)
            return tirx.AttrStmt(node.node, node.attr_key, node.value, self.without(node.body))
        if isinstance(node, tirx.SeqStmt):
            return tirx.SeqStmt([self.without(part) for part in node.seq])
        if isinstance(node, tirx.For):
            body = self.without(node.body)
            return tirx.For(
                node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations, node.step
            )
        if isinstance(node, tirx.IfThenElse):
            otherwise = None if node.else_case is None else self.without(node.else_case)
            return tirx.IfThenElse(node.condition, self.without(node.then_case), otherwise)
        return node

    def _call(self, body: Any) -> Any:
        """Make a function of the statement; return a call of it."""
        name = f"{self._name}_part_{len(self.functions)}"
        free = tirx.analysis.undefined_vars(body)
        buffers = [variable for variable in free if tirx.is_buffer_var(variable)]
        extents = [v for buffer in buffers for dim in buffer.shape for v in tirx.analysis.undefined_vars(dim)]
        numbers = list({v: None for v in (*free, *extents) if not tirx.is_buffer_var(v)})
        pointers = [ir.Var(buffer.name, tirx.buffer_data_pointer_type(buffer)) for buffer in buffers]
        declared = [tirx.DeclBuffer(b, data=pointer) for b, pointer in zip(buffers, pointers, strict=True)]
        statements = [*declared, body, tirx.Return(T.int32(0))]
        part = s_tir.renew_defs(tirx.PrimFunc([*pointers, *numbers], tirx.SeqStmt(statements), ir.PrimType("int32")))
        for key in _KEPT:
            part = part.with_attr(key, self._function.attrs[key])
        variable = ir.GlobalVar(name)
        self.functions[variable] = part.with_attr(_PART, name)
        failed = ir.Call(variable, [*map(tirx.buffer_data, buffers), *numbers], ret_ty="int32") != 0
        return tirx.IfThenElse(failed, tirx.Evaluate(tirx.tvm_throw_last_error()), None)
