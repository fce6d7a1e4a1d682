"""`ModelRewriting`: a model whose nodes are written one after the other, some in place of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.onnx.quantised.nodes import QuantisedConstant
from veltair.types import TensorSpec


@dataclass(slots=True)
class ModelRewriting:
    """The new model so far.

    ::

        found = ModelRewriting(view)
        found.add("Reshape", ["x"], "y", (-1, 4), np.array([-1, 4]))
        found.model()
    """

    view: ModelView
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    quantised: dict[str, QuantisedConstant] = field(default_factory=dict)  # of these constants, those of 8 bits

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        result: str,
        shape: Sequence[int],
        *arguments: Any,
        dtype: str = "float32",
        **attributes: Any,
    ) -> str:
        """A node whose further inputs are these constants. Returns the name of its result."""
        names = [self.constant(f"{result}/{place}", np.asarray(value)) for place, value in enumerate(arguments)]
        self.nodes.append(helper.make_node(op, [*inputs, *names], [result], name=f"{result}/{op}", **attributes))
        self.values[result] = TensorSpec(result, dtype, tuple(shape))
        return result

    def reshape(self, name: str, result: str, shape: Sequence[int]) -> str:
        """A tensor with other extents; one that the batch decides is the axis of that place. Returns `result`."""
        return self.add("Reshape", [name], result, shape, np.array([max(extent, 0) for extent in shape], np.int64))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A constant of that name, or of one like it where the model has such a tensor. Returns the name."""
        name = self.free_name(name)
        self.constants[name] = value
        self.values[name] = TensorSpec(name, value.dtype.name, value.shape)
        return name

    def free_name(self, name: str) -> str:
        """That name, or one like it where a tensor has it: the file's, or one of a rewriting before this one."""
        while any(name in names for names in (self.view.values, self.view.constants, self.values, self.constants)):
            name = f"{name}+"
        return name

    def rename_last(self, name: str) -> None:
        """Give the result of the last node another name."""
        node = self.nodes[-1]
        self.values[name] = replace(self.values.pop(node.output[0]), name=name)
        node.output[0] = name

    def model(self) -> OnnxModel:
        """The model of these nodes."""
        return replace(
            self.view.model,
            nodes=tuple(self.nodes),
            values={**self.view.values, **self.values},
            initializers={**self.view.constants, **self.constants},
            quantised={**self.view.model.quantised, **self.quantised},
        )
