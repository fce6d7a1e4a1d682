"""Bounds what TVM's fusion makes of operators one behind the other.

Fusion writes an operator's expression wherever its result is read. Where each reads its operand twice, as x times the
sigmoid of x does, a chain of twenty becomes an expression of a million, and TVM's simplifier takes longer still: of
nested choices it looks at every condition in every other one, so that six levels of them took over 30 s.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

MOST_READS = 24  # of a fused expression: 14 operators of any kind, one behind the other, take 1 s to compile
INJECTIVE, OPAQUE = 2, 8  # TVM's kinds of operators: up to the first their results are written where they are read


def bound_fusion(module: tvm.IRModule) -> tvm.IRModule:
    """The module, not yet fused, with an operator kept to itself wherever its expression would read more than that.

    Its functions have been annotated by `AnnotateTIROpPattern`.
    """
    reads: dict[Any, int] = {}  # by variable: of the expression that fusion makes of it
    counted: dict[Any, list[int]] = {}  # by function: how often it reads each parameter
    kept = []
    for binding in (each for block in module["main"].body.blocks for each in block.bindings):
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            reads[binding.var] = reads.get(value.tuple_value, 1)
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_tir":
            continue
        name, operands = value.args[0], value.args[1].fields
        if name not in counted:
            counted[name] = [_count_reads(module[name], each) for each in module[name].params[: len(operands)]]
        total = sum(n * reads.get(operand, 1) for n, operand in zip(counted[name], operands, strict=True))
        pattern = int(module[name].attrs["op_pattern"])
        if total > MOST_READS and pattern < OPAQUE:
            kept.append(value)
        elif pattern <= INJECTIVE:
            reads[binding.var] = total
    return _Keeping(module, kept).kept_apart() if kept else module


def _count_reads(function: Any, parameter: Any) -> int:
    """How often the operator reads that parameter for an element of its result, at least once."""
    found = 0

    def count(load: Any) -> None:
        nonlocal found
        found += load.source.same_as(parameter)

    tvm_ffi.structural_walk(function.body, (tvm.ir.TensorLoad, count))
    return max(1, found)


@relax.expr_functor.mutator
class _Keeping(relax.expr_functor.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Gives calls functions of their own, which nothing is fused with."""

    def __init__(self, module: tvm.IRModule, calls: list[Any]) -> None:
        super().__init__(module)
        self.module, self.calls = module, {hash(call) for call in calls}  # by identity

    def kept_apart(self) -> tvm.IRModule:
        main = self.module.get_global_var("main")
        self.builder_.update_func(main, self.visit_expr(self.module[main]))
        return self.builder_.get()

    def visit_call_(self, call: Any) -> Any:
        if hash(call) not in self.calls:
            return call
        function, name = self.module[call.args[0]], f"{call.args[0].name_hint}_apart"
        own = self.builder_.add_func(function.with_attr("op_pattern", OPAQUE), name)
        return relax.Call(call.op, [own, *call.args[1:]], call.attrs, call.ty_args)
