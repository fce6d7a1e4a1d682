"""Which precision a CPU gets."""

import math
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from run_kernels import require_features

from veltair.compiler.tuning import precision
from veltair.compiler.tuning.bf16_fitness import suits_bf16
from veltair.compiler.tuning.precision import DEAREST_DOT, dots_pay, pick_precision, step_ns
from veltair.errors import ConfigError

DOTS = frozenset({"avx2", "avx512", "avx512_bf16"})


def unasked() -> bool:
    raise AssertionError("nothing is to be asked here")


def network(text: str) -> onnx.ModelProto:
    """A file whose values with stated types are constants."""
    header = '<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]> g (float[9] x) => (float y)'
    model = parser.parse_model(f"{header} {text}")
    for value in model.graph.value_info:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        model.graph.initializer.append(
            helper.make_tensor(value.name, tensor.elem_type, shape, bytes(4 * math.prod(shape)), raw=True)
        )
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize(
    ("wanted", "features", "suits", "pays", "chosen"),
    [
        ("auto", DOTS | {"amx_bf16"}, True, None, "bf16"),
        ("auto", DOTS | {"amx_bf16"}, False, None, "fp32"),
        ("auto", DOTS, True, True, "bf16"),
        ("auto", DOTS, True, False, "fp32"),
        ("auto", DOTS, False, None, "fp32"),
        ("int8", DOTS, False, None, "fp32"),
        ("auto", frozenset({"avx2", "avx512"}), None, None, "fp32"),
        ("auto", frozenset(), None, None, "fp32"),
        ("fp32", DOTS | {"amx_bf16"}, None, None, "fp32"),
        ("bf16", DOTS, None, None, "bf16"),
    ],
)
def test_what_is_asked_for_or_fast(
    wanted: precision.Precision, features: frozenset[str], suits: bool | None, pays: bool | None, chosen: str
) -> None:
    answers = [unasked if answer is None else partial(bool, answer) for answer in (pays, suits)]
    assert pick_precision(wanted, features, None, *answers) == chosen


@pytest.mark.parametrize(
    ("nodes", "suits"),
    [
        ("<float[9,4000] w> { y = MatMul(x, w) }", True),
        ("<float[9,300] w> { y = MatMul(x, w) }", False),
        ("<float[90000,9] w, int32[1] i> { e = Gather(w, i) y = Add(x, e) }", False),
        ("<float[8,9,3] w> { c = Unsqueeze(x, i) y = Conv(c, w) }", True),
        ("<float[9,4000] w> { p = MatMul(x, w) y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1> (p) }", False),
        ("<float[9,4000] w> { p = MatMul(x, w) y = ai.onnx.ml.SVMRegressor <rho = [0.0]> (p) }", False),
        ("<float[9,4000] w> { s = ReduceSumSquare(x) p = MatMul(x, w) y = Sub(s, p) }", False),
        ("<float[9,4000] w> { p = MatMul(x, w) s = ReduceSumSquare(p) y = Sub(s, p) }", True),
        (
            "<float[9,4000] w, int32 b> { y = If (b) <then_branch = t () => (a) { a = MatMul(x, w) }, else_branch = "
            "f () => (c) { c = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1> (x) }> }",
            False,
        ),
    ],
)
def test_what_rounding_upsets_and_what_is_too_small_to_gain_from_it_is_computed_in_floats(
    nodes: str, suits: bool
) -> None:
    assert suits_bf16(network(nodes)) is suits


def test_weights_may_be_nodes() -> None:
    weight = numpy_helper.from_array(np.ones((9, 4000), np.float32))
    node = helper.make_node("Constant", [], ["w"], value=weight)
    model = network("{ w = Identity(x) y = MatMul(x, w) }")
    assert not suits_bf16(model)
    model.graph.node[0].CopyFrom(node)
    assert suits_bf16(model)


def test_bf16_without_instructions_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bf16 needs AVX-512-bf16 or AMX .*, this CPU has avx2, avx512; fp32 runs"):
        pick_precision("bf16", frozenset({"avx2", "avx512"}), None, unasked, unasked)
    with pytest.raises(ConfigError, match=r"bf16 needs AVX-512-bf16 or AMX .*, isa avx2 has avx2; fp32 runs"):
        pick_precision("bf16", frozenset({"avx2"}), "avx2", unasked, unasked)


@pytest.mark.parametrize(("dot_ns", "pays"), [(DEAREST_DOT - 0.1, True), (DEAREST_DOT + 0.1, False)])
def test_dots_pay_in_less_than_two_products(monkeypatch: pytest.MonkeyPatch, dot_ns: float, pays: bool) -> None:
    monkeypatch.setattr(precision, "step_ns", {"float32": 1.0, "uint16": dot_ns}.__getitem__)
    assert dots_pay() is pays


def test_steps_are_timed_on_this_cpu() -> None:
    require_features(frozenset({"avx512_bf16"}), "dot products of bfloat16")
    for dtype in ("float32", "uint16"):
        assert 0.01 < step_ns(dtype) < 100  # ns; no core does ten vectors in one, none waits for memory here
