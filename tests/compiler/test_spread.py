"""Outputs that roundings decide: `verify` draws inputs on which they do not, and says so where there are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled_models import Told, records
from onnx import TensorProto, helper

from veltair.compiler import verify
from veltair.compiler.build import compile_model
from veltair.compiler.reference_model import ReferenceModel
from veltair.compiler.verification_report import VerificationReport
from veltair.profiles.artifact.artifact_folder import Artifact

WIDTH = 64


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Artifact]:
    """The place of the larger of two scores, beside their sum: scores that are nearly the same for small inputs."""
    folder = tmp_path_factory.mktemp("choice")
    weight = np.random.default_rng(1).standard_normal((WIDTH, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["place"], axis=1, keepdims=1),
        helper.make_node("Cast", ["place"], ["chosen"], to=TensorProto.FLOAT),
    ]
    ports = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2]),
            helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [1, 1]),
        ],
    )
    graph = helper.make_graph(nodes, "choice", *ports, [onnx.numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "choice.onnx")
    made = compile_model(
        folder / "choice.onnx", folder / "out", trials=0, precision="fp32", levels="modelled", store=records(folder)
    )
    return folder / "choice.onnx", made


def test_a_choice_between_scores_that_are_nearly_the_same_moves(choice: tuple[Path, Artifact]) -> None:
    path, made = choice
    weight = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    apart = weight[:, 1] - weight[:, 0]
    several = np.random.default_rng(2).standard_normal((12, WIDTH))
    even = several - np.outer(several @ apart, apart) / (apart @ apart)  # both scores are the same
    reference = ReferenceModel(path, made.manifest, None)

    def spread(values: Any) -> list[float]:
        feeds = {"x": values[None].astype(np.float32)}
        return reference.spread(reference.outputs(feeds, {}, 1), feeds, {}, 1)

    scores, chosen = zip(*map(spread, even), strict=True)
    assert max(scores) < 1e-2  # they are continuous
    assert max(chosen) > 0.5
    assert spread(even[0] + apart)[1] == spread(even[0] - apart)[1] == 0


class Wavering:
    """A reference whose outputs roundings decide on its first inputs."""

    def __init__(self, times: int) -> None:
        self.left, self.asked = times, 0

    def outputs(self, feeds: Any, raw: Any, batch: int) -> list[Any]:
        return []

    def spread(self, expected: Any, feeds: Any, raw: Any, batch: int) -> list[float]:
        self.left, self.asked = self.left - 1, self.asked + 1
        return [0.0, 0.9 if self.left >= 0 else 1e-6]


@pytest.mark.parametrize(("times", "asked"), [(0, 1), (3, 4), (100, verify.DRAWS)])
def test_inputs_are_drawn_until_outputs_can_be_compared(choice: tuple[Path, Artifact], times: int, asked: int) -> None:
    reference: Any = Wavering(times)
    sample = verify.draw_settled(reference, choice[1].manifest, None, 1, np.random.default_rng(0))
    assert reference.asked == asked
    assert sample.spreads[1] == (0.9 if times == 100 else 1e-6)


@pytest.mark.parametrize(
    ("chooses", "wrong", "asked"), [(False, 0, 1), (True, 0, 1), (False, 1, 1), (True, 3, 4), (True, 4, 4)]
)
def test_a_model_that_chooses_is_wrong_where_it_is_on_every_draw(
    choice: tuple[Path, Artifact], monkeypatch: pytest.MonkeyPatch, chooses: bool, wrong: int, asked: int
) -> None:
    draw, drawn = verify.draw_settled, list[verify.Sample]()

    def other_choice(*args: Any) -> verify.Sample:
        drawn.append(draw(*args))
        if len(drawn) > wrong:
            return drawn[-1]
        scores, chosen = drawn[-1].expected
        return replace(drawn[-1], expected=[scores, 1 - chosen])

    monkeypatch.setattr(ReferenceModel, "chooses", chooses)
    monkeypatch.setattr(verify, "draw_settled", other_choice)
    path, made = choice
    report = verify.verify(made, path)
    assert len(drawn) == asked
    assert report.ok == (wrong < asked)
    assert all("output chosen, versions" in mismatch for mismatch in report.mismatches)


def test_an_output_may_be_off_by_its_spread() -> None:
    expected, found = np.array([1.0, 0.5]), np.array([1.003, 0.5])
    for spread, right in ((0.0, False), (1e-5, False), (4e-3, True), (0.9, False)):
        report = VerificationReport(1e-3, 1, 1, (1,), 1)
        report.record_output(found, expected, "output y", spread=spread)
        assert (report.ok, report.spread) == (right, spread)
    assert "ONNX Runtime's own moves by 0.9" in report.mismatches[0]


def test_an_artifact_that_chooses_agrees(choice: tuple[Path, Artifact], told: Told) -> None:
    path, made = choice
    code, output, _ = told("verify", made.path, path, "--json")
    facts = json.loads(output)
    assert (code, facts["mismatches"]) == (0, [])
    assert 0 < facts["spread"] < 1e-2
