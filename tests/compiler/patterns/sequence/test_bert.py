"""BERT as a whole: which layers it becomes, and that they give what ONNX Runtime gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from bert import Bert
from run_kernels import run_graph

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.machine.isa import cpu_features

PRECISIONS = [
    "fp32",
    pytest.param("bf16", marks=pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="no AMX bfloat16 tiles")),
]


def inputs(model: Bert, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shape = (batch, model.tokens)
    mask = np.ones(shape, np.int64)
    mask[:, model.tokens * 3 // 4 :] = 0
    return {
        "input_ids": rng.integers(0, 100, shape),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, shape),
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch", [1, "n"], ids=["fixed", "dynamic"])
def test_bert_becomes_few_layers(tmp_path: Path, precision: str, batch: int | str) -> None:
    model = load_model(Bert(2, 2, 64, 24, batch).save(tmp_path / "bert.onnx"), 3)
    graph = lower(model, precision)
    dense = "matmul" if precision == "fp32" else "matmul_bf16"
    found = Counter(layer.op for layer in graph.layers)
    assert {op: n for op, n in found.items() if op not in ("generic", "stitched")} == {
        "embedding": 1,
        "layer_norm": 4,
        "attention": 2,
        dense: 9,  # Q, K and V are one
    }
    assert [(port.name, port.low, port.high) for port in graph.inputs] == [
        ("input_ids", 0, 99),
        ("attention_mask", None, None),
        ("token_type_ids", 0, 1),
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("heads", "width", "tokens", "batch"), [(2, 64, 40, 3), (2, 160, 21, 1)])
def test_bert_equals_onnx_runtime(
    tmp_path: Path, precision: str, heads: int, width: int, tokens: int, batch: int
) -> None:
    bert = Bert(2, heads, width, tokens, "n" if batch > 1 else 1)
    path = bert.save(tmp_path / "bert.onnx")
    feeds = inputs(bert, batch)
    expected = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
    for found, wanted in zip(run_graph(lower(load_model(path, 4), precision), feeds, batch), expected, strict=True):
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        cosine = (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted)
        assert error < {"fp32": 2e-5, "bf16": 5e-2}[precision]
        assert cosine > 0.999


def test_attention_whose_parts_are_outputs_stays_apart(tmp_path: Path) -> None:
    """Probabilities that the model gives out cannot vanish into a layer."""
    import onnx

    path = Bert(1, 2, 64, 24).save(tmp_path / "bert.onnx")
    proto = onnx.load(path)
    softmax = next(node for node in proto.graph.node if node.op_type == "Softmax")
    shape = onnx.helper.make_tensor_value_info(softmax.output[0], onnx.TensorProto.FLOAT, [1, 2, 24, 24])
    proto.graph.output.append(shape)
    onnx.save(proto, path)
    graph = lower(load_model(path), "fp32")
    assert all(layer.op != "attention" for layer in graph.layers)
    feeds = inputs(Bert(1, 2, 64, 24), 1)
    expected = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
    for found, wanted in zip(run_graph(graph, feeds, 1), expected, strict=True):
        assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-5
