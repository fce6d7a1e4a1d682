"""`python -m veltair.simulate.derive MODEL.onnx… --out DIR`: writes what the layers of real networks are.

Run it after a change of the compiler's lowering; a test derives one model anew and compares.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path

import msgspec

from veltair.compiler.graph import Graph
from veltair.compiler.ir import Activation, LayerSpec
from veltair.profiles.artifact import file_digest
from veltair.simulate.layers import LayerShape, ModelShape


def derive(path: Path, model: str) -> ModelShape:
    """The layers of a network as the compiler lowers it in fp32, at batch 1 of a dynamic batch."""
    from veltair.compiler import onnx_model  # loads TVM's compiler
    from veltair.compiler.lower import lower

    graph: Graph = lower(onnx_model.load(path), "fp32")
    return ModelShape(model, file_digest(path), tuple(map(shape, graph.layers)))


def shape(spec: LayerSpec) -> LayerShape:
    """One layer: a product where it has one, else a stream."""
    weights = sum(weight.size for weight in spec.weights.values())
    inputs = sum(map(_elements, spec.inputs))
    outputs = sum(map(_elements, spec.outputs))
    flops = spec.flops
    match spec.op:
        case "conv2d" | "conv2d_amx":
            _, channels, height, width = spec.outputs[0].shape
            _, depth, kh, kw = spec.weights["weight"].shape
            return LayerShape(
                spec.name, "conv2d", flops, inputs, weights, outputs,
                m=height * width, n=channels, k=depth * kh * kw, row=width,
                reach=round((kh - 1) / spec.attributes["strides"][0], 3),
            )  # fmt: skip
        case "matmul" | "matmul_bf16":
            depth, width = spec.weights["weight"].shape
            return LayerShape(
                spec.name, "matmul", flops, inputs, weights, outputs, m=abs(spec.outputs[0].shape[0]), n=width, k=depth
            )
        case "attention":
            heads, each = spec.attributes["heads"], spec.attributes["width"]
            tokens, keys = spec.attributes["tokens"], spec.attributes["keys"]
            return LayerShape(
                spec.name, "attention", flops, inputs, weights, outputs, m=tokens, n=keys, k=2 * each, groups=heads
            )
        case "embedding" | "embedding_bag":  # of the tables only the rows that are asked for
            ids = sum(_elements(x) for x in spec.inputs)
            width = spec.outputs[0].shape[-1]
            return LayerShape(spec.name, spec.op, flops, ids, ids * width, outputs)
        case _:
            return LayerShape(spec.name, spec.op, flops, inputs, weights, outputs)


def _elements(tensor: Activation) -> int:
    return prod(abs(dim) for dim in tensor.shape)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m veltair.simulate.derive", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    for path in arguments.models:
        data = msgspec.json.format(msgspec.json.encode(derive(path, path.stem)), indent=1)
        (arguments.out / f"{path.stem}.json").write_bytes(data + b"\n")


if __name__ == "__main__":
    main()
