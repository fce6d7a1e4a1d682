"""Everything that has no kernel of its own: ONNX nodes through TVM's importer, its fusion and a plain schedule.

A region of neighbouring nodes becomes a model of its own, goes through Relax, and every fused function that comes out
is a layer. The importer's Gather reads whatever an id points at; ours clips, so that no id leaves the table.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
import tvm.sym
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.errors import ModelError
from veltair.types import TensorSpec

UNCHECKED = {"GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter"}  # take any index
BATCH = "batch"
ALIAS = ("reshape", "squeeze", "expand_dims", "flatten")  # contiguous views of their input


@dataclass(frozen=True, slots=True)
class Region:
    """Layers of a region in order, and the views it needs: name -> name of the tensor that it shares memory with."""

    layers: tuple[LayerSpec, ...]
    views: tuple[tuple[Activation, str], ...]


def import_region(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int = 17,
) -> Region:
    """Fused layers for a run of nodes.

    Args:
        values: spec of every tensor of the model; -k stands for k times the batch.
        inputs, outputs: tensors that cross the region's border.

    Raises ModelError naming the node and operator that cannot be taken.
    """
    for node in nodes:
        if node.op_type in UNCHECKED and node.input[1] not in constants:
            raise ModelError(f"node {node.name!r}: {node.op_type} with computed indices is not supported (unchecked)")
    module = _fuse(_to_relax(nodes, values, constants, inputs, outputs, opset))
    return _Reader(module, nodes[0].name, inputs, outputs, max_batch).read()


def _to_relax(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
) -> tvm.IRModule:
    def info(name: str) -> onnx.ValueInfoProto:
        spec = values[name]
        # Only a plain batch may be named; k times the batch has no name in ONNX, so it stays unknown outside.
        shape = [(BATCH if d == -1 else f"{BATCH}_{-d}") if d < 0 else d for d in spec.shape]
        return onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), shape
        )

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
        with warnings.catch_warnings(), _our_converters():
            warnings.simplefilter("ignore")
            return from_onnx(model, opset=opset, keep_params_in_input=False)
    except Exception as error:  # the importer raises whatever its checks raise
        named = ", ".join(dict.fromkeys(f"{node.op_type} ({node.name!r})" for node in nodes))
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ModelError(f"no way to compile {named}: {reason}") from None


class _Gather(onnx_frontend.Gather):  # type: ignore[misc]  # TVM has no types
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


class _OneHot(onnx_frontend.OneHot):  # type: ignore[misc]  # TVM has no types
    """ONNX OneHot of the type that its values have; TVM makes float64 of float32."""

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return relax.op.astype(super()._impl_v11(bb, inputs, attr, params), str(inputs[2].ty.dtype.dtype))


@contextmanager
def _our_converters() -> Iterator[None]:
    original = onnx_frontend._get_convert_map
    onnx_frontend._get_convert_map = lambda: {**original(), "Gather": _Gather, "OneHot": _OneHot}
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original


def _fuse(module: tvm.IRModule) -> tvm.IRModule:
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


class _Reader:
    """Walks the bindings of a fused region: each call is a layer."""

    def __init__(
        self, module: tvm.IRModule, prefix: str, inputs: Sequence[str], outputs: Sequence[str], max_batch: int
    ) -> None:
        self.module, self.prefix, self.outputs, self.max_batch = module, prefix, outputs, max_batch
        self.main = module["main"]
        self.known: dict[Any, Activation | NDArray[Any] | tuple[Any, ...]] = {}
        self.layers: list[LayerSpec] = []
        self.views: list[tuple[Activation, str]] = []
        self.variables = [d for p in self.main.params for d in p.ty.shape if isinstance(d, tvm.tirx.Var)]
        for parameter, name in zip(self.main.params, inputs, strict=True):
            self.known[parameter] = self._activation(name, parameter.ty)

    def read(self) -> Region:
        names = self._output_names()
        for block in self.main.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value, names.get(binding.var))
        for value, name in self._results():
            found = self._resolve(value)
            if isinstance(found, Activation) and found.name != name:
                self.views.append((Activation(name, found.dtype, found.shape), found.name))
            elif not isinstance(found, Activation):
                raise ModelError(f"output {name!r} of the model does not depend on its inputs; that is not supported")
        return Region(tuple(self.layers), tuple(self.views))

    def _results(self) -> list[tuple[Any, str]]:
        result = self.main.body.body
        bound = {b.var: b.value for block in self.main.body.blocks for b in block.bindings}
        if isinstance(bound.get(result), relax.Tuple):
            result = bound[result]
        fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        return list(zip(fields, self.outputs, strict=True))

    def _output_names(self) -> dict[Any, str]:
        return {value: name for value, name in self._results() if isinstance(value, relax.Var)}

    def _bind(self, var: Any, value: Any, name: str | None) -> None:
        if isinstance(value, relax.Tuple) and not isinstance(value, relax.Call):
            self.known[var] = tuple(self._resolve(field) for field in value.fields)
        elif isinstance(value, relax.Call) and value.op.name == "relax.call_tir":
            self._layer(var, value, name)
        else:
            self.known[var] = self._resolve(value)

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, tvm.ir.GenericConst):
            return value.value.numpy()
        if isinstance(value, relax.TupleGetItem):
            return self._resolve(value.tuple_value)[value.index]
        if isinstance(value, relax.Tuple):
            return tuple(self._resolve(field) for field in value.fields)
        if isinstance(value, relax.ShapeExpr):
            return None
        try:
            return self.known[value]
        except (KeyError, TypeError):
            raise ModelError(f"{self.prefix}: {value} is not supported (a shape computed at run time?)") from None

    def _layer(self, var: Any, call: Any, name: str | None) -> None:
        symbol = call.args[0].name_hint
        if len(call.args) > 2:
            raise ModelError(f"{self.prefix}: {symbol} computes a shape at run time, which is not supported")
        arguments = [self._resolve(field) for field in call.args[1].fields]
        types = list(var.ty.fields) if isinstance(var.ty, tvm.ir.TupleType) else [var.ty]
        stem = name or f"{self.prefix}/{symbol}/{len(self.layers)}"
        outputs = [self._activation(stem if len(types) == 1 else f"{stem}.{i}", ty) for i, ty in enumerate(types)]
        self.known[var] = outputs[0] if len(outputs) == 1 else tuple(outputs)
        if symbol.rstrip("0123456789") in ALIAS and isinstance(arguments[0], Activation):
            self.views.append((outputs[0], arguments[0].name))
            return
        places = [i for i, a in enumerate(arguments) if isinstance(a, Activation)]
        constants = [i for i, a in enumerate(arguments) if not isinstance(a, Activation)]
        function = _reordered(self.module[call.args[0]], [*places, *constants], len(arguments))
        digest = f"{tvm_ffi.structural_hash(function) & (2**64 - 1):016x}"  # blind to names
        elements = sum(_count(t.shape) for t in outputs)
        self.layers.append(
            LayerSpec(
                name=f"{self.prefix}/{symbol}",
                op="generic",
                inputs=tuple(arguments[i] for i in places),
                outputs=tuple(outputs),
                attributes={"function": symbol.rstrip("0123456789"), "structure": digest, "_function": function},
                weights={f"constant{i}": np.asarray(arguments[i]) for i in constants},
                flops=elements,
                max_batch=self.max_batch,
            )
        )

    def _activation(self, name: str, ty: Any) -> Activation:
        return Activation(name, str(ty.dtype.dtype), tuple(_dimension(d, self.variables, name) for d in ty.shape))


def _count(shape: Sequence[int]) -> int:
    return int(np.prod([abs(d) for d in shape], dtype=np.int64))


def _dimension(dim: Any, variables: Sequence[Any], name: str) -> int:
    """An extent as in `Activation.shape`: fixed, or -k for k times the batch."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, tvm.tirx.IntImm):
        return int(dim)
    at = []
    for batch in (1, 2):
        analyzer = tvm.sym.Analyzer()
        for variable in variables:  # "batch" or, where a region begins with k times the batch, "batch_k"
            times = int(variable.name.rpartition("_")[2]) if "_" in variable.name else 1
            analyzer.bind(variable, tvm.tirx.const(batch * times, str(variable.ty.dtype)))
        at.append(analyzer.simplify(dim))
    if all(isinstance(a, tvm.tirx.IntImm) for a in at) and int(at[1]) == 2 * int(at[0]):
        return -int(at[0])
    raise ModelError(f"tensor {name!r}: dimension {dim} is not a multiple of the batch")


def _reordered(function: Any, order: Sequence[int], inputs: int) -> Any:
    """The same function with its input parameters in another order."""
    parameters = list(function.params)
    moved = [parameters[i] for i in order] + parameters[inputs:]
    return tvm.tirx.PrimFunc(moved, function.body, function.ret_type, function.attrs)


class Generic:
    """A plain schedule: injective producers inlined, the spatial loops of each nest fused and parallel."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        function = schedule(spec.attributes["_function"])
        traffic = sum(_count(t.shape) * np.dtype(t.dtype).itemsize for t in (*spec.inputs, *spec.outputs))
        return Kernel(function, tuple(spec.weights.values()), traffic, 1)


def schedule(function: Any) -> Any:
    """Parallel outer loops; what cannot be scheduled stays serial and right."""
    plan = Schedule(tvm.IRModule({"main": function.without_attr("global_symbol")}))
    for block in plan.get_child_blocks(plan.get_sblock("root")):
        try:
            plan.compute_inline(block)
        except ScheduleError:
            continue  # an output, or a reduction
    for block in plan.get_child_blocks(plan.get_sblock("root")):
        kinds = [str(v.iter_type) for v in plan.get(block).iter_vars]
        loops = plan.get_loops(block)
        spatial = 0
        while spatial < min(len(loops), len(kinds)) and kinds[spatial] == "0":
            spatial += 1
        keep = 1 if spatial == len(loops) and spatial > 1 else 0  # the innermost stays for LLVM to vectorise
        try:
            if spatial - keep > 0:
                plan.parallel(plan.fuse(*loops[: spatial - keep]))
        except ScheduleError:
            continue
    return plan.mod["main"]
