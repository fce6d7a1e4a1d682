"""What a layer does to its anchor's result before it is stored: a bias, a residual tensor, an activation function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.patterns.activations import activation_behind


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is swallowed into an anchor's layer: [+ residual, or + bias (N)] [activation].

    >>> Epilogue("y", activation="relu").residual is None
    True
    """

    output: str  # name of the tensor that comes out at the end
    activation: str = "none"
    residual: Activation | None = None
    bias: NDArray[Any] | None = None
    swallowed: tuple[onnx.NodeProto, ...] = ()  # the nodes behind the anchor that need no layer of their own

    def operands(self, x: Activation) -> list[Activation]:
        """The inputs of the layer: the anchor's, and the residual where there is one."""
        return [x] if self.residual is None else [x, self.residual]

    @classmethod
    def behind(
        cls, anchor: onnx.NodeProto, view: ModelView, builder: GraphBuilder, residual: bool = True, bias: bool = False
    ) -> Epilogue:
        """Follow the only users of an anchor's result as far as they can be swallowed: [+ tensor] [activation].

        A residual must have been made before the anchor, in blocks and of the same shape.
        """
        name = anchor.output[0]
        shape = view.shape_of(name)
        added: Activation | None = None
        constant: NDArray[Any] | None = None
        swallowed: list[onnx.NodeProto] = []
        user = view.free_user(name)
        if user is not None and user.op_type in ("Add", "Sum") and len(user.input) == 2 and (residual or bias):
            other = user.input[1] if user.input[0] == name else user.input[0]
            if residual and other != name and builder.is_made(other):
                tensor = builder.tensors[other]
                if tensor.block == view.block and tensor.shape == shape:
                    added = tensor
            elif bias and other in view.constants:
                found = view.constants[other]
                if found.shape[-1:] == (found.size,) == shape[-1:] and found.ndim <= len(shape):  # one for each column
                    constant = found.reshape(-1)
            if added is not None or constant is not None:
                swallowed.append(user)
                name = user.output[0]
        activated = activation_behind(name, view)
        if activated is not None:
            swallowed.extend(activated.nodes)
            name = activated.output
        return cls(name, activated.activation if activated else "none", added, constant, tuple(swallowed))
