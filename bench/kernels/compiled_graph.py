"""A graph of layers compiled and ready to call, without an artifact and its executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray

from veltair.compiler.arena import plan_arena
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation
from veltair.machine.isa import cpu_features, tvm_target
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros


class CompiledGraph:
    """A graph ready to run: its layers in order in an arena, each in one of its versions."""

    def __init__(self, graph: LayerGraph, feeds: Mapping[str, NDArray[Any]], chosen: int = 0) -> None:
        self.layers = len(graph.layers)
        batch, features = len(next(iter(feeds.values()))), cpu_features()
        functions, kernels = {}, []
        for layer in graph.layers:
            points = SPACES[layer.op].points(layer, features)
            kernels.append(SPACES[layer.op].build(layer, points[min(chosen, len(points) - 1)], features))
            functions[layer.symbol] = kernels[-1].function.with_attr("global_symbol", layer.symbol)
        library = tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(tvm_target()))
        arena = plan_arena(graph)
        memory = aligned_zeros((arena.bytes,), "uint8")

        inputs = [aligned_copy(feeds[port.name]) for port in graph.inputs]
        self.outputs = [aligned_zeros(port.at(batch), port.dtype) for port in graph.outputs]

        def view(tensor: Activation) -> Any:
            place, shape = arena.allocations[tensor.name], tensor.at(batch)
            if place.kind != "arena":
                return tvm_ffi.from_dlpack(
                    (inputs if place.kind == "input" else self.outputs)[place.offset].reshape(shape)
                )
            size = int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize
            return tvm_ffi.from_dlpack(memory[place.offset : place.offset + size].view(tensor.dtype).reshape(shape))

        self.calls = [
            (
                library[layer.symbol],
                [
                    *map(view, layer.inputs),
                    *(tvm_ffi.from_dlpack(aligned_copy(w)) for w in kernel.weights),
                    *map(view, layer.outputs),
                ],
            )
            for layer, kernel in zip(graph.layers, kernels, strict=True)
        ]

    def __call__(self) -> None:
        for function, operands in self.calls:
            function(*operands)
