"""Layers of generated code: the functions of a fused Relax module, in the order in which it calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
import tvm.sym
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax

from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.generic import GenericParameters
from veltair.compiler.kernels.generic.relax_import import describe_failure, fuse_operators, import_to_relax
from veltair.errors import ModelError
from veltair.types import TensorSpec

ALIAS = ("reshape", "squeeze", "expand_dims", "flatten")  # contiguous views of their input


def import_layers(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, NDArray[Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int = 17,
) -> ImportedLayers:
    """Fused layers for a run of nodes.

    values: the type and shape of every tensor of the model; a dimension -k stands for k times the batch.
    inputs, outputs: the tensors that the run reads and gives.

    Raises ModelError naming the node and operator that cannot be compiled.
    """
    module = import_to_relax(nodes, values, constants, inputs, outputs, opset)
    try:
        return RelaxReader(fuse_operators(module), nodes[0].name, inputs, outputs, max_batch).read()
    except ModelError:
        raise
    except Exception as error:  # TVM's passes raise whatever their checks raise
        raise describe_failure(nodes, error) from None


class RelaxReader:
    """Reads the bindings of a fused Relax module: each call is a layer. ::

    RelaxReader(module, prefix, inputs, outputs, max_batch).read()
    """

    def __init__(
        self, module: tvm.IRModule, prefix: str, inputs: Sequence[str], outputs: Sequence[str], max_batch: int
    ) -> None:
        self.module, self.prefix, self.outputs, self.max_batch = module, prefix, outputs, max_batch
        self.main = module["main"]
        self.known: dict[Any, Activation | NDArray[Any] | tuple[Any, ...]] = {}
        self.layers: list[LayerSpec] = []
        self.views: list[tuple[Activation, str]] = []
        self.variables = [d for p in self.main.params for d in p.ty.shape if isinstance(d, tvm.tirx.Var)]
        self.carriers: dict[Any, tuple[Activation, Sequence[Any]]] = {}  # by extent: an input that has it, its shape
        for parameter, name in zip(self.main.params, inputs, strict=True):
            tensor = self._activation(name, parameter.ty)
            self.known[parameter] = tensor
            shape = list(parameter.ty.shape)
            self.carriers |= {extent: (tensor, shape) for extent in shape if isinstance(extent, tvm.tirx.Var)}

    def read(self) -> ImportedLayers:
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
        return ImportedLayers(tuple(self.layers), tuple(self.views))

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
        fields = list(call.args[1].fields)
        extents = {
            i: field for i, field in enumerate(fields) if isinstance(field, tvm.tirx.Var) and field in self.carriers
        }
        arguments = [self.carriers[f][0] if i in extents else self._resolve(f) for i, f in enumerate(fields)]
        types = list(var.ty.fields) if isinstance(var.ty, tvm.ir.TupleType) else [var.ty]
        stem = name or f"{self.prefix}/{symbol}/{len(self.layers) + len(self.views)}"
        outputs = [self._activation(stem if len(types) == 1 else f"{stem}.{i}", ty) for i, ty in enumerate(types)]
        self.known[var] = outputs[0] if len(outputs) == 1 else tuple(outputs)
        if symbol.rstrip("0123456789") in ALIAS and isinstance(arguments[0], Activation):
            self.views.append((outputs[0], arguments[0].name))
            return
        computed = [i for i, a in enumerate(arguments) if isinstance(a, Activation)]
        places = sorted(computed, key=lambda i: i not in extents)  # what says an extent comes before what needs it
        constants = [i for i, a in enumerate(arguments) if not isinstance(a, Activation)]
        shapes = {i: [None if d.same_as(e) else d for d in self.carriers[e][1]] for i, e in extents.items()}
        function = _with_carriers(self.module[call.args[0]], {i: (arguments[i].dtype, s) for i, s in shapes.items()})
        function = _reordered(function, [*places, *constants], len(arguments))
        digest = f"{tvm_ffi.structural_hash(function) & (2**64 - 1):016x}"  # blind to names
        elements = sum(element_count(t.shape) for t in outputs)
        self.layers.append(
            LayerSpec(
                name=f"{self.prefix}/{symbol}",
                op="generic",
                inputs=tuple(arguments[i] for i in places),
                outputs=tuple(outputs),
                weights={f"constant{i}": np.asarray(arguments[i]) for i in constants},
                flops=elements,
                max_batch=self.max_batch,
                parameters=GenericParameters(symbol.rstrip("0123456789"), digest, function),
            )
        )

    def _activation(self, name: str, ty: Any) -> Activation:
        return Activation(name, str(ty.dtype.dtype), tuple(_dimension(d, self.variables, name) for d in ty.shape))


def element_count(shape: Sequence[int]) -> int:
    """The elements of a shape, at batch 1 of a dynamic batch."""
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
        for variable in variables:  # "batch" or, where the module begins with k times the batch, "batch_k"
            times = int(variable.name.rpartition("_")[2]) if "_" in variable.name else 1
            analyzer.bind(variable, tvm.tirx.const(batch * times, str(variable.ty.dtype)))
        at.append(analyzer.simplify(dim))
    if all(isinstance(a, tvm.tirx.IntImm) for a in at) and int(at[1]) == 2 * int(at[0]):
        return -int(at[0])
    raise ModelError(f"tensor {name!r}: dimension {dim} is not a multiple of the batch")


def _with_carriers(function: Any, carriers: Mapping[int, tuple[str, Sequence[Any]]]) -> Any:
    """The same function with tensors that have an extent where it takes the extent itself, since kernels take tensors.

    TVM passes the batch where no tensor shows it: one of (4 * batch, 16) does not, for it.

    carriers: by the place of a parameter, the type and shape of a tensor; None is where the extent stands.
    """
    parameters = list(function.params)
    for place, (dtype, dims) in carriers.items():
        extent = parameters[place]
        others = {d: tvm.tirx.Var(d.name, str(d.ty.dtype)) for d in dims if isinstance(d, tvm.tirx.Var)}
        shape = [extent if d is None else others.get(d, d) for d in dims]
        parameters[place] = tvm.tirx.decl_buffer(shape, dtype, name=f"with_{extent.name}")
    return tvm.tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs) if carriers else function


def _reordered(function: Any, order: Sequence[int], inputs: int) -> Any:
    """The same function with its input parameters in another order."""
    parameters = list(function.params)
    moved = [parameters[i] for i in order] + parameters[inputs:]
    return tvm.tirx.PrimFunc(moved, function.body, function.ret_type, function.attrs)
