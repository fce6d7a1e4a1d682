"""Writes the layers of real networks as shapes for the machine models.

    python -m veltair.simulation.machine_model.derive_layers MODEL.onnx… --out DIR

Run it after a change of the compiler's lowering; a test derives one model again and compares.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import prod
from pathlib import Path

import msgspec

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import LookupParameters
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.profiles.artifact.artifact_folder import file_digest
from veltair.simulation.machine_model.layer_shapes import LayerShape, ModelShape


def derive_model_shape(path: Path, model: str) -> ModelShape:
    """Returns the layers of a network as the compiler lowers it in fp32, at batch 1 of a dynamic batch."""
    from veltair.compiler.onnx import onnx_model
    from veltair.compiler.pipeline import lower

    graph: LayerGraph = lower(onnx_model.load_model(path), "fp32")
    return ModelShape(model, file_digest(path), tuple(map(layer_shape, graph.layers)))


def layer_shape(spec: LayerSpec) -> LayerShape:
    """Returns the shape of one layer: a matrix product where it has one, else a stream."""
    weights = sum(weight.size for weight in spec.weights.values())
    first, *others = map(_elements, spec.inputs)
    extra, outputs = sum(others), sum(map(_elements, spec.outputs))
    stream = LayerShape(spec.name, spec.op, spec.flops, first, weights, outputs, extra)
    match spec.op:
        case "conv2d":
            _, channels, height, width = spec.outputs[0].shape
            _, depth, kh, kw = spec.weights["weight"].shape
            reach = round((kh - 1) / spec.parameters_as(Conv2dParameters).strides[0], 3)
            return replace(stream, m=height * width, n=channels, k=depth * kh * kw, row=width, reach=reach)
        case "matmul":
            depth, width = spec.weights["weight"].shape
            return replace(stream, m=abs(spec.outputs[0].shape[0]), n=width, k=depth)
        case "attention":
            attention = spec.parameters_as(AttentionParameters)
            heads, width, tokens, keys = attention.heads, attention.width, attention.tokens, attention.keys
            queries = replace(stream, inputs=tokens * heads * width, second=2 * keys * heads * width)
            return replace(queries, m=tokens, n=keys, k=2 * width, groups=heads)
        case "embedding" | "embedding_bag" | "lookups":  # of the tables only the rows that are looked up
            lookups = isinstance(spec.parameters, LookupParameters)
            dim = spec.parameters_as(LookupParameters).dim if lookups else spec.outputs[0].shape[-1]
            rows = (first + extra) * dim
            return replace(stream, inputs=first + extra, weights=rows, extra=0)
        case _:
            return stream


def _elements(tensor: Activation) -> int:
    return prod(abs(dim) for dim in tensor.shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m veltair.simulation.machine_model.derive_layers", description=__doc__
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    for path in arguments.models:
        data = msgspec.json.format(msgspec.json.encode(derive_model_shape(path, path.stem)), indent=1)
        (arguments.out / f"{path.stem}.json").write_bytes(data + b"\n")


if __name__ == "__main__":
    main()
