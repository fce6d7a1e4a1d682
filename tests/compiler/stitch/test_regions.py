"""Subgraphs of the models through the stitcher, against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node
from run_kernels import OLDER_CPUS, require_features
from stitch.region_case import Case, assert_right, run

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.parameters.generic import GenericParameters
from veltair.compiler.references.layer_reference import reference_outputs
from veltair.machine.isa import cpu_features


def weights(*shape: int) -> NDArray[Any]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def scalar(value: float) -> NDArray[Any]:
    return np.array(value, np.float32)


SOFTMAX = [node("Softmax", ["x"], ["y"], axis=-1)]
ATTENTION_SOFTMAX = [
    node("Mul", ["x", "scale"], ["s"]),
    node("Add", ["s", "mask"], ["m"]),
    *[node("Softmax", ["m"], ["y"], axis=-1)],
]
DECOMPOSED = [
    node("Add", ["x", "r"], ["a"]),
    node("ReduceMean", ["a", "last"], ["m"]),
    node("Sub", ["a", "m"], ["d"]),
    node("Pow", ["d", "two"], ["q"]),
    node("ReduceMean", ["q", "last"], ["v"]),
    node("Add", ["v", "eps"], ["ve"]),
    node("Sqrt", ["ve"], ["s"]),
    node("Div", ["d", "s"], ["n"]),
    node("Mul", ["n", "g"], ["ng"]),
    node("Add", ["ng", "b"], ["y"]),
]
GELU = [
    node("Add", ["x", "bias"], ["a"]),
    node("Div", ["a", "root"], ["d"]),
    node("Erf", ["d"], ["e"]),
    node("Add", ["e", "one"], ["p"]),
    node("Mul", ["a", "p"], ["q"]),
    node("Mul", ["q", "half"], ["y"]),
]
CONSTANTS = {
    "last": np.array([-1]),
    "two": scalar(2),
    "eps": scalar(1e-5),
    "root": scalar(2**0.5),
    "one": scalar(1),
    "half": scalar(0.5),
    "scale": scalar(0.125),
}


def case(nodes: list[Any], inputs: dict[str, tuple[int, ...]], outputs: str = "y", **constants: NDArray[Any]) -> Case:
    read = {name for n in nodes for name in n.input}
    return Case(nodes, inputs, outputs.split(), {k: v for k, v in (CONSTANTS | constants).items() if k in read})


CASES = {
    "tiled": case(
        [node("Tile", ["x", "times"], ["t"]), node("Sub", ["t", "r"], ["y"]), node("Mul", ["t", "r"], ["z"])],
        {"x": (-1, 1, 8), "r": (-1, 7, 8)},
        "t y z",
        times=np.array([1, 7, 1]),
    ),
    "expanded": case([node("Expand", ["x", "to"], ["y"])], {"x": (3, 1)}, to=np.array([2, 3, 37])),
    "softmax": case(SOFTMAX, {"x": (3, 37)}),
    "softmax of few": case(SOFTMAX, {"x": (7, 5)}),
    "softmax across": case([node("Softmax", ["x"], ["y"], axis=1)], {"x": (2, 9, 83)}),
    "log softmax": case([node("LogSoftmax", ["x"], ["y"], axis=-1)], {"x": (4, 50)}),
    "masked attention": case(ATTENTION_SOFTMAX, {"x": (2, 3, 17, 33), "mask": (2, 1, 1, 33)}),
    "layer norm": case(
        [node("Add", ["x", "r"], ["a"]), node("LayerNormalization", ["a", "g", "b"], ["y"])],
        {"x": (2, 5, 200), "r": (2, 5, 200)},
        "y a",
        g=weights(200),
        b=weights(200),
    ),
    "decomposed layer norm": case(DECOMPOSED, {"x": (6, 70), "r": (6, 70)}, g=weights(70), b=weights(70)),
    "gelu": case(GELU, {"x": (5, 77)}, bias=weights(77)),
    "gelu as a node": case([node("Gelu", ["x"], ["y"])], {"x": (5, 77)}),
    "gelu by tanh": case([node("Gelu", ["x"], ["y"], approximate="tanh")], {"x": (5, 77)}),
    "gate of channels": case(
        [node("HardSigmoid", ["s"], ["h"], alpha=1 / 6), node("Mul", ["x", "h"], ["y"])],
        {"x": (2, 6, 7, 5), "s": (2, 6, 1, 1)},
    ),
    "bias, residual, activation": case(
        [node("Add", ["x", "b"], ["a"]), node("Add", ["a", "r"], ["s"]), node("LeakyRelu", ["s"], ["y"], alpha=0.1)],
        {"x": (2, 6, 7, 5), "r": (2, 6, 7, 5)},
        b=weights(6, 1, 1),
    ),
    "mean of a plane": case([node("GlobalAveragePool", ["x"], ["y"])], {"x": (2, 5, 7, 7)}),
    "norm without its axis": case([node("ReduceL2", ["x", "last"], ["y"], keepdims=0)], {"x": (3, 4, 21)}),
    "of the whole tensor": case(
        [node("ReduceMax", ["x"], ["m"]), node("Sub", ["x", "m"], ["d"]), node("Exp", ["d"], ["y"])], {"x": (5, 6, 7)}
    ),
    "across rows": case(
        [node("ReduceMean", ["x", "first"], ["m"]), node("Sub", ["x", "m"], ["d"]), node("Tanh", ["d"], ["y"])],
        {"x": (13, 300)},
        "y m",
        first=np.array([0]),
    ),
    "selection": case(
        [
            node("Greater", ["x", "r"], ["c"]),
            node("Not", ["c"], ["n"]),
            node("Where", ["n", "x", "r"], ["w"]),
            node("Clip", ["w", "low", "half"], ["k"]),
            node("HardSwish", ["k"], ["y"]),
        ],
        {"x": (4, 19), "r": (19,)},
        low=scalar(-0.75),
    ),
    "other functions": case(
        [
            node("Abs", ["x"], ["a"]),
            node("Sqrt", ["a"], ["s"]),
            node("Neg", ["s"], ["n"]),
            node("Sigmoid", ["n"], ["g"]),
            node("Log", ["g"], ["l"]),
            node("Reciprocal", ["l"], ["y"]),
            node("ReduceMin", ["y", "last"], ["z"]),
        ],
        {"x": (3, 40)},
        "y z",
    ),
    "angles": case(
        [node("Mul", ["x", "many"], ["a"]), node("Sin", ["a"], ["s"]), node("Cos", ["a"], ["c"])],
        {"x": (3, 40)},
        "s c",
        many=scalar(1000),
    ),
    "sums of magnitudes": case(
        [
            node("ReduceL1", ["x", "last"], ["a"]),
            node("Abs", ["x"], ["b"]),
            node("ReduceLogSum", ["b", "last"], ["y"], keepdims=0),
        ],
        {"x": (7, 21)},
        "a y",
    ),
    "logarithm of a sum of powers": case(
        [
            node("Relu", ["x"], ["r"]),
            node("Log", ["r"], ["l"]),  # some rows are -infinity alone
            node("ReduceLogSumExp", ["l", "last"], ["y"], keepdims=0),
        ],
        {"x": (40, 3)},
    ),
    "packed": case(
        [node("Relu", ["x"], ["a"]), node("Tanh", ["y"], ["b"]), node("Softmax", ["z"], ["c"])],
        {"x": (9, 31), "y": (4, 4), "z": (3, 5, 6)},
        "a b c",
    ),
}


ACTIVATIONS = {
    "PRelu": node("PRelu", ["x", "slope"], ["y"]),
    "Elu": node("Elu", ["x"], ["y"], alpha=0.7),
    "Selu": node("Selu", ["x"], ["y"]),
    "Celu": node("Celu", ["x"], ["y"], alpha=0.4),
    "Softplus": node("Softplus", ["x"], ["y"]),
    "Mish": node("Mish", ["x"], ["y"]),
    "Softsign": node("Softsign", ["x"], ["y"]),
    "ThresholdedRelu": node("ThresholdedRelu", ["x"], ["y"], alpha=0.3),
    "Sin": node("Sin", ["x"], ["y"]),
    "Cos": node("Cos", ["x"], ["y"]),
    **{f"Pow {e}": node("Pow", ["x", f"power {e}"], ["y"]) for e in (-2.0, -0.5, 0.5, 1.0, 1.7, 2.0, 3.0, 5.0)},
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_everything(name: str) -> None:
    """Also of what is not finite, or large."""
    constants = {"slope": weights(6, 1)} | {f"power {e}": scalar(e) for e in (-2.0, -0.5, 0.5, 1.0, 1.7, 2.0, 3.0, 5.0)}
    each = case([ACTIVATIONS[name]], {"x": (6, 37)}, **constants)
    region = each.region()
    assert [layer.op for layer in region.layers] == ["stitched"]
    given = each.draw()
    given["x"] *= 4
    given["x"][:, :9] = [0.0, np.inf, np.nan, 100.0, -100.0, 1e-3, -1e-3, 1e5, -1e5]
    if not name.startswith("Pow"):
        given["x"][:, 9] = -np.inf
    (found,), (expected,) = run(each, region, given), each.expected(given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("name", CASES)
def test_like_onnx_runtime(name: str, place: int) -> None:
    region = assert_right(CASES[name], place=place)
    assert [layer.op for layer in region.layers] == ["stitched"]


@pytest.mark.parametrize("name", ["masked attention", "decomposed layer norm", "across rows", "selection"])
def test_on_a_lesser_cpu(name: str) -> None:
    require_features(OLDER_CPUS["haswell"], "code for haswell")
    assert_right(CASES[name], mcpu="haswell")


@pytest.mark.parametrize("batch", [1, 3])
def test_any_batch_up_to_the_greatest(batch: int) -> None:
    softmax = case(ATTENTION_SOFTMAX, {"x": (-1, 3, 17, 33), "mask": (-1, 1, 1, 33)})
    assert_right(softmax, batch, max_batch=4)
    assert_right(case([node("Sigmoid", ["x"], ["y"])], {"x": (-2, 1)}), batch, max_batch=4)


def test_every_point_is_right() -> None:
    """Row buffers or none, steps, splits and rows a task."""
    for name in ("decomposed layer norm", "across rows"):
        layer = CASES[name].region().layers[0]
        for place in range(len(SPACES["stitched"].points(layer, cpu_features()))):
            assert_right(CASES[name], place=place)


def test_types_are_cast() -> None:
    nodes = [node("Cast", ["ids"], ["f"], to=1), node("Cast", ["keep"], ["k"], to=1), node("Mul", ["f", "k"], ["y"])]
    mixed = Case(nodes, {"ids": (5, 40), "keep": (5, 40)}, ["y"], dtypes={"ids": "int64", "keep": "bool"})
    assert len(assert_right(mixed).layers) == 1


def test_what_is_not_in_the_language_runs_between() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[1, 0]),
        node("Relu", ["t"], ["r"]),
        node("MatMul", ["r", "x"], ["p"]),
        node("Tanh", ["p"], ["y"]),
        node("ReduceMax", ["y", "last"], ["z"], keepdims=0),
    ]
    region = assert_right(case(nodes, {"x": (9, 31)}, "y z"))
    assert [layer.op for layer in region.layers].count("stitched") == 3
    assert {layer.parameters_as(GenericParameters).function for layer in region.layers if layer.op == "generic"} == {
        "transpose",
        "matmul",
    }


def test_a_path_through_others_is_no_cycle() -> None:
    """x -> a -> (matmul) -> m -> y and a -> y: a and y must not share a kernel, which would wait for itself."""
    nodes = [node("Exp", ["x"], ["a"]), node("MatMul", ["a", "a"], ["m"]), node("Add", ["a", "m"], ["y"])]
    region = assert_right(case(nodes, {"x": (8, 8)}))
    assert [layer.op for layer in region.layers] == ["stitched", "generic", "stitched"]


def test_booleans_that_others_read_are_left_to_them() -> None:
    nodes = [node("Greater", ["x", "r"], ["c"]), node("Cast", ["c"], ["i"], to=7), node("Exp", ["x"], ["y"])]
    region = assert_right(case(nodes, {"x": (4, 8), "r": (8,)}, "y i"))
    assert [layer.op for layer in region.layers].count("stitched") == 1


def test_computed_shapes_are_left_whole() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Reshape", ["r", "s"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    assert_right(case(nodes, {"x": (4, 8), "r": (32,)}))


def test_bfloat16_tensors() -> None:
    """Where a neighbour keeps bfloat16, it is read and written as it is."""
    from dataclasses import replace

    from run_kernels import require_features, run_kernel

    from veltair.compiler.codegen.bf16 import array_to_bf16

    require_features(frozenset({"avx512_bf16"}), "code that keeps bfloat16")
    layer = CASES["decomposed layer norm"].region().layers[0]
    narrow = replace(
        layer,
        inputs=tuple(replace(t, dtype="uint16") for t in layer.inputs),
        outputs=tuple(replace(t, dtype="uint16") for t in layer.outputs),
    )
    rng = np.random.default_rng(0)
    bits = [array_to_bf16(rng.standard_normal(t.shape).astype(np.float32)) for t in layer.inputs]
    wide = [(b.astype(np.uint32) << 16).view(np.float32) for b in bits]
    point = SPACES["stitched"].points(layer, cpu_features())[0]
    (found,) = run_kernel(narrow, point, bits)
    expected = reference_outputs(layer, wide)
    assert expected is not None
    np.testing.assert_allclose((found.astype(np.uint32) << 16).view(np.float32), expected[0], rtol=5e-3, atol=1e-5)
