"""A layer of stitched programs: `stitched_layer` makes it, `StitchedPart` takes it apart again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.stitch.iteration_space import iteration_space
from veltair.compiler.stitch.stitch_program import StitchProgram, count_elements
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.errors import InvariantError


@dataclass(frozen=True, slots=True)
class StitchedPart:
    """A program, and what holds its values: a tensor or a constant for each leaf, a tensor for each output.

    Programs name values after the ONNX tensors; a tensor may have got another name since.

    >>> StitchedPart(StitchProgram((), {}, ()), tensors={}, constants={}).tensors
    {}
    """

    program: StitchProgram
    tensors: Mapping[str, Activation]
    constants: Mapping[str, NDArray[Any]]


def stitched_layer(parts: Sequence[StitchedPart], max_batch: int) -> LayerSpec:
    """One layer that computes independent programs, in one kernel. Raises InvariantError for one that is no loop nest.

    A value that several programs read is one operand.
    """
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    constants = {name: array for part in parts for name, array in part.constants.items()}
    leaves = dict.fromkeys(name for part in parts for name in part.program.leaves)
    results = [name for part in parts for name in part.program.outputs]
    inputs = [name for name in leaves if name not in constants]
    weights = {name: np.asarray(constants[name], np.float32) for name in leaves if name in constants}
    domains = []
    for part in parts:
        space = iteration_space(part.program)
        if space is None:
            raise InvariantError(f"stitched layer {results[-1]!r}: {part.program.text} is no loop nest")
        domains.append(space)
    names = (*inputs, *weights, *results)
    places = [names.index(name) for part in parts for name in (*part.program.leaves, *part.program.outputs)]
    text = f"{[part.program.text for part in parts]} {places}"  # the same for layers that can share their code
    return LayerSpec(
        name=f"{results[-1]}/stitched",
        op="stitched",
        inputs=tuple(tensors[name] for name in inputs),
        outputs=tuple(tensors[name] for name in results),
        weights=weights,
        flops=sum(count_elements(op.shape) for part in parts for op in part.program.ops),
        max_batch=max_batch,
        parameters=StitchedParameters(
            kinds="|".join("+".join(op.kind for op in part.program.ops) for part in parts),
            structure=hashlib.sha256(text.encode()).hexdigest()[:16],
            domains=tuple(domains),
            names=names,
        ),
    )


def parts_of(spec: LayerSpec) -> list[StitchedPart]:
    """The programs of a stitched layer, in its order, with what holds their values."""
    parameters = spec.parameters_as(StitchedParameters)
    names, inputs, weights = parameters.names, len(spec.inputs), len(spec.weights)
    tensors = dict(zip(names[:inputs], spec.inputs, strict=True))
    tensors |= dict(zip(names[inputs + weights :], spec.outputs, strict=True))
    constants = dict(zip(names[inputs : inputs + weights], spec.weights.values(), strict=True))
    found = []
    for space in parameters.domains:
        own = (*space.program.leaves, *space.program.outputs)
        found.append(
            StitchedPart(
                space.program,
                {name: tensors[name] for name in own if name in tensors},
                {name: constants[name] for name in own if name in constants},
            )
        )
    return found
