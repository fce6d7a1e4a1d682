"""BERT against what was published of it, and run by ONNX Runtime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from veltair.zoo import external_tensors
from veltair.zoo.language import bert
from veltair.zoo.language.bert import BASE, LARGE, BertShape
from veltair.zoo.registry import ZOO

TINY = BertShape(layers=2, hidden=128, tokens=48, qos_ms=5)


def counts(shape: BertShape) -> tuple[int, int]:
    """Parameters, and multiply-adds of every MatMul, from the graph alone."""
    proto, tensors = bert.build(0, shape, "weights")
    assert {t.name for t in tensors} == {t.name for t in proto.graph.initializer if t.data_location}
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True).graph
    dims = {t.name: list(t.dims) for t in graph.initializer}
    dims |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.value_info, *graph.output)}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    floats = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    return sum(math.prod(t.dims) for t in floats), sum(
        math.prod(dims[node.output[0]]) * dims[node.input[0]][-1] for node in products
    )


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("bert_base", BASE, 108_893_186),  # Hugging Face's BertForQuestionAnswering; Lan et al. 2019, table 1: 108 M
        ("bert_large", LARGE, 334_094_338),  # the same; Lan et al. 2019, table 1: 334 M
    ],
)
def test_published_counts(name: str, shape: BertShape, parameters: int) -> None:
    found, multiply_adds = counts(shape)
    assert found == parameters == ZOO[name].parameters
    # Twelve squares of the width for a token and layer, two products of all pairs of tokens, and the head.
    a_token = shape.layers * (12 * shape.hidden**2 + 2 * shape.tokens * shape.hidden) + 2 * shape.hidden
    assert multiply_adds == shape.tokens * a_token
    assert ZOO[name].gflops == round(2 * multiply_adds / 1e9, 3)


def test_published_flops_of_128_tokens() -> None:
    """Sun et al. 2020 (MobileBERT), table 4: 22.5 G for BERT-Base, where other than matrix products count too."""
    _, multiply_adds = counts(BertShape(tokens=128))
    assert 22.2e9 < 2 * multiply_adds < 22.5e9


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "tiny.onnx"
    proto, tensors = bert.build(3, TINY, "tiny.onnx.data")
    path.write_bytes(proto.SerializeToString())
    with external_tensors.data_path(path).open("wb") as file:
        external_tensors.write_tensors(file, 3, tensors, lambda done, total: None)
    return path


def session(source: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def question(seed: int, words: int = 40) -> dict[str, Any]:
    """Of `words` tokens and padding, the second half of another segment."""
    rng = np.random.default_rng(seed)
    places = np.arange(TINY.tokens)[None]
    return {
        "input_ids": rng.integers(0, bert.VOCABULARY, (1, TINY.tokens)),
        "attention_mask": (places < words).astype(np.int64),
        "token_type_ids": (places >= words // 2).astype(np.int64),
    }


def test_it_runs_and_depends_on_its_inputs(tiny: Path) -> None:
    onnx.checker.check_model(str(tiny), full_check=True)
    properties = {p.key: p.value for p in onnx.load(tiny, load_external_data=False).metadata_props}
    assert properties == {"veltair.qos_ms": "5"}
    run, asked = session(str(tiny)), question(0)
    found = run.run(None, asked)
    assert [o.name for o in run.get_outputs()] == ["start_logits", "end_logits"]
    assert [f.shape for f in found] == [(1, TINY.tokens)] * 2
    for logits in found:
        assert 0.5 < logits.std() < 4 and len(np.unique(logits)) == logits.size
    other = run.run(None, question(1))
    for one, two in zip(found, other, strict=True):
        assert abs(np.corrcoef(one[0], two[0])[0, 1]) < 0.7
    changes = {
        "input_ids": (asked["input_ids"] + (np.arange(TINY.tokens) == 3)) % bert.VOCABULARY,
        "token_type_ids": 1 - asked["token_type_ids"],
        "attention_mask": np.ones_like(asked["attention_mask"]),
    }
    for name, changed in changes.items():
        assert np.abs(run.run(None, asked | {name: changed})[0] - found[0])[0, :40].max() > 1e-2, name


def test_padding_is_not_seen(tiny: Path) -> None:
    run, asked = session(str(tiny)), question(0)
    found = run.run(None, asked)
    asked["input_ids"] = np.where(asked["attention_mask"] == 1, asked["input_ids"], 5)
    for one, two in zip(found, run.run(None, asked), strict=True):
        np.testing.assert_allclose(one[0, :40], two[0, :40], rtol=1e-5, atol=1e-5)


def test_attention_is_neither_uniform_nor_one_hot_and_tokens_stay_apart(tiny: Path, tmp_path: Path) -> None:
    proto = onnx.load(tiny)
    inner = [n.output[0] for n in proto.graph.node if n.op_type in ("Softmax", "LayerNormalization")]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in inner)
    values = dict(zip(inner, session(proto.SerializeToString()).run(inner, question(0, TINY.tokens)), strict=True))
    for name, value in values.items():
        if name.endswith("weights"):
            assert 3 < np.mean(1 / np.sum(value**2, axis=-1)) < TINY.tokens / 2  # tokens attended to
        else:
            tokens = value[0] / np.linalg.norm(value[0], axis=1, keepdims=True)
            assert abs(value.std() - 1) < 0.1 and (tokens @ tokens.T).mean() < 0.3
