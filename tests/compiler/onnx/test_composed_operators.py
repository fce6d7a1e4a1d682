"""Operators that stand for several older ones: what they are made of gives what ONNX Runtime gives for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run

from veltair.compiler.onnx.folding.composed_operators import expand_composed
from veltair.compiler.onnx.node_evaluation import TensorType

random = np.random.default_rng(5)
B, HEADS, SHARED, TOKENS, WIDTH, PAST = 2, 4, 2, 3, 16, 5
LOWEST = np.finfo(np.float32).min


def normal(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def masks(*shape: int) -> NDArray[np.bool_]:
    """One row hides everything."""
    found = random.integers(0, 2, shape).astype(bool)
    found[..., 0, :] = False
    return found


def lowered(mask: NDArray[np.bool_], hidden: float) -> NDArray[np.float32]:
    return np.where(mask, random.standard_normal(mask.shape), hidden).astype(np.float32)


FOUR = {"q": normal(B, HEADS, TOKENS, WIDTH), "k": normal(B, SHARED, TOKENS, WIDTH), "v": normal(B, SHARED, TOKENS, 8)}
THREE = {
    "q": normal(B, TOKENS, HEADS * WIDTH),
    "k": normal(B, TOKENS, SHARED * WIDTH),
    "v": normal(B, TOKENS, SHARED * 8),
}
BEHIND = {"pk": normal(B, SHARED, PAST, WIDTH), "pv": normal(B, SHARED, PAST, 8)}
COUNTS = {"q_num_heads": HEADS, "kv_num_heads": SHARED}
CASES: dict[str, tuple[dict[str, NDArray[Any]], str, dict[str, Any]]] = {
    "plain": (FOUR, "y", {}),
    "a scale": (FOUR, "y", {"scale": 0.7}),
    "causal": (FOUR, "y", {"is_causal": 1}),
    "a mask": (FOUR | {"m": masks(B, 1, TOKENS, TOKENS)}, "y", {}),
    "a mask, causal": (FOUR | {"m": masks(TOKENS, TOKENS)}, "y", {"is_causal": 1}),
    "floats": (FOUR | {"m": lowered(masks(1, HEADS, TOKENS, TOKENS), -np.inf)}, "y", {}),
    "floats, the lowest hides": (FOUR | {"m": lowered(masks(B, 1, TOKENS, TOKENS), LOWEST)}, "y", {}),
    "floats, causal": (FOUR | {"m": lowered(masks(TOKENS, TOKENS), LOWEST)}, "y", {"is_causal": 1}),
    "a past, causal": (FOUR | {"m": masks(TOKENS, TOKENS + PAST)} | BEHIND, "y pk2 pv2", {"is_causal": 1}),
    "keys are outputs": (FOUR, "y pk2 pv2", {}),
    "rows": (THREE, "y", COUNTS),
    "rows, a past": (THREE | {"m": masks(B, 1, TOKENS, TOKENS + PAST)} | BEHIND, "y pk2 pv2", COUNTS),
}


def composed(op: str, feeds: dict[str, NDArray[Any]], outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = [name if name in feeds else "" for name in ("q", "k", "v", "m", "pk", "pv")] if op == "Attention" else feeds
    return helper.make_node(op, list(names), outputs.split(), name="n", **attributes)


def results(nodes: list[onnx.NodeProto], feeds: dict[str, NDArray[Any]], outputs: str, constants: Any) -> list[Any]:
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    found: list[Any] = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    return found


def check(node: onnx.NodeProto, feeds: dict[str, NDArray[Any]], outputs: str) -> None:
    """The nodes are the same at every batch: they are made of what does not depend on it."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    types = {
        name: [
            TensorType(kinds[name], (batch, *a.shape[1:]) if a.ndim > 2 and len(a) == B else a.shape)
            for batch in (7, B)
        ]
        for name, a in feeds.items()
    }
    expansion = expand_composed(node, types)
    assert expansion is not None
    wanted = results([node], feeds, outputs, {})
    for found, right in zip(results(expansion[0], feeds, outputs, expansion[1]), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_attention_is_made_of_older_operators(name: str) -> None:
    feeds, outputs, attributes = CASES[name]
    check(composed("Attention", feeds, outputs, **attributes), feeds, outputs)


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_norm_is_made_of_older_operators(axis: int) -> None:
    feeds = {"x": normal(B, 5, 8), "w": normal(8)}
    check(composed("RMSNormalization", feeds, "y", axis=axis, epsilon=1e-3), feeds, "y")


@pytest.mark.parametrize("image", [(6, 5, 7), (6, 9), (6, 4, 1), (6, 2, 3, 4)], ids=str)
def test_a_norm_of_each_channel_is_made_of_other_operators(image: tuple[int, ...]) -> None:
    feeds = {"x": normal(B, *image), "w": normal(image[0]), "b": normal(image[0])}
    check(composed("InstanceNormalization", feeds, "y", epsilon=1e-3), feeds, "y")


def test_norms_of_groups_between_convolutions_are_kernels_of_our_own(tmp_path: Path) -> None:
    """As PyTorch's exporter writes them; TVM's import of such a norm compiles four kernels to fold its constants."""
    weights = {"w": normal(8, 3, 3, 3), "gain": normal(8, 1, 1), "shift": normal(8, 1, 1), "last": normal(4, 8, 1, 1)}
    shapes = {"groups": np.array([0, 4, -1]), "image": np.array([0, 8, 6, 6])}
    norms = {"ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Reshape", ["a", "groups"], ["rows"]),
        helper.make_node("InstanceNormalization", ["rows", "ones", "zeros"], ["normal"], name="norm"),
        helper.make_node("Reshape", ["normal", "image"], ["b"]),
        helper.make_node("Mul", ["b", "gain"], ["c"]),
        helper.make_node("Add", ["c", "shift"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("InstanceNormalization", ["e", "gains", "shifts"], ["f"], name="own"),
        helper.make_node("Conv", ["f", "last"], ["y"]),
    ]
    constants = {**weights, **shapes, **norms, "gains": normal(8), "shifts": normal(8)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    for batch in (1, 3):
        feeds = {"x": normal(batch, 3, 6, 6)}
        (found,), layers = run(path, feeds, "fp32", batch)
        (right,) = ort.InferenceSession(str(path)).run(None, feeds)
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
        assert layers.count("group_norm") == 2 and "generic" not in layers


ANGLES = {"cos": normal(B, TOKENS, WIDTH // 2), "sin": normal(B, TOKENS, WIDTH // 2)}
FEWER = {name: angle[..., : WIDTH // 4] for name, angle in ANGLES.items()}
BY_ID = {name: normal(9, WIDTH // 2) for name in ANGLES} | {"ids": random.integers(0, 9, (B, TOKENS))}
HALF = {"rotary_embedding_dim": WIDTH // 2, "num_heads": HEADS}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("x", "angles", "attributes"),
    [
        (FOUR["q"], ANGLES, {}),
        (THREE["q"], ANGLES, {"num_heads": HEADS}),
        (FOUR["q"], BY_ID, {}),
        (FOUR["q"], FEWER, HALF),
        (THREE["q"], FEWER, HALF),
    ],
    ids=["heads", "rows", "ids", "half", "half of rows"],
)
def test_a_rotary_embedding_is_made_of_older_operators(
    x: NDArray[Any], angles: dict[str, NDArray[Any]], attributes: dict[str, int], interleaved: int
) -> None:
    feeds = {"x": x, **angles}
    check(composed("RotaryEmbedding", feeds, "y", interleaved=interleaved, **attributes), feeds, "y")


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"softmax_precision": TensorProto.FLOAT16}])
def test_what_has_no_older_operators_is_left_alone(attributes: dict[str, Any]) -> None:
    types = {name: [TensorType(TensorProto.FLOAT, array.shape)] for name, array in FOUR.items()}
    assert expand_composed(composed("Attention", FOUR, "y", **attributes), types) is None


def test_an_attention_of_operator_set_23_is_one_layer(tmp_path: Path) -> None:
    """As exporters write it: heads are split before, and merged behind."""
    width = HEADS * WIDTH
    weights = {f"w{name}": normal(width, width) / np.float32(8) for name in "qkv"}
    nodes = []
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}p"]),
            helper.make_node("Reshape", [f"{name}p", "split"], [f"{name}s"]),
            helper.make_node("Transpose", [f"{name}s"], [name], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        helper.make_node("Attention", ["q", "k", "v", "m"], ["a"], name="attention"),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "merge"], ["y"]),
    ]
    constants = {**weights, "split": np.array([0, TOKENS, HEADS, WIDTH]), "merge": np.array([0, TOKENS, width])}
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", TOKENS, width]),
            helper.make_tensor_value_info("m", TensorProto.BOOL, ["n", 1, TOKENS, TOKENS]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", TOKENS, width])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
    for batch in (1, 3):
        feeds: dict[str, NDArray[Any]] = {"x": normal(batch, TOKENS, width), "m": masks(batch, 1, TOKENS, TOKENS)}
        (found,), layers = run(path, feeds, "fp32", batch)
        (right,) = ort.InferenceSession(str(path)).run(None, feeds)
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
        assert "attention" in layers and "onnxruntime" not in layers
