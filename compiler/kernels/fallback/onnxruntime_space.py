"""The design space of layers that ONNX Runtime runs: one point, a function that calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.fallback import OnnxRuntimeParameters, OnnxTextParameters
from veltair.compiler.kernels.generic.relax_layers import element_count
from veltair.profiles.runtime.onnx_layers import FUNCTION, TEXT_FUNCTION


class OnnxRuntimeSpace:
    """It is `design_spaces.SPACES["onnxruntime"]`.

    >>> OnnxRuntimeSpace().points(LayerSpec("einsum", "onnxruntime", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        """A function that passes the addresses and extents of its tensors on; `onnx_layers.run` says in which order."""
        model, parameters = spec.weights["model"], spec.parameters_as(OnnxRuntimeParameters)
        tensors = (*spec.inputs, *spec.outputs)

        def body(*buffers: Any) -> None:
            inputs, outputs = buffers[: len(spec.inputs)], buffers[len(spec.inputs) + 1 :]
            if isinstance(parameters, OnnxTextParameters):
                places = [
                    _int64(number)
                    for text in parameters.texts
                    for number in (text.first_end, text.first_byte, text.width, text.room)
                ]
                arguments = [part for buffer in outputs for part in (buffer.data, *map(_int64, buffer.shape))]
                head = buffers[len(spec.inputs)].data, _int64(len(model)), _int64(outputs[0].shape[0])
                memory = (buffer.data for buffer in inputs)
                T.evaluate(
                    tirx.call_packed(TEXT_FUNCTION, *head, _int64(len(parameters.texts)), *places, *memory, *arguments)
                )
                return
            arguments = [part for buffer in (*inputs, *outputs) for part in (buffer.data, *map(_int64, buffer.shape))]
            flag = _int64(int(parameters.values_decide))
            head = buffers[len(spec.inputs)].data, _int64(len(model)), flag
            T.evaluate(tirx.call_packed(FUNCTION, *head, *arguments))

        traffic = sum(element_count(t.shape) * np.dtype(t.dtype).itemsize for t in tensors) + model.nbytes
        return Kernel(build_prim_func([*spec.inputs, model, *spec.outputs], body), (model,), traffic, 1)


def _int64(extent: Any) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else tirx.Cast("int64", extent)
