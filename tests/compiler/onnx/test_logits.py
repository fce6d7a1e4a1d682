"""Errors in front of a last softmax or sigmoid are seen, whatever these make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx_nets import Net, normal

from veltair.compiler.onnx.logits import OutputActivation, find_probabilities
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.verification_report import VerificationReport, cosine_similarity

random = np.random.default_rng(5)


def test_logits_are_told_from_what_onnx_runtime_makes_of_them(tmp_path: Path) -> None:
    net = Net(x=[3, 7, 5])
    outputs = net("Sigmoid", "x"), net("Softmax", "x"), net("Softmax", "x", axis=1), net("Relu", "x")
    path = net.save(tmp_path / "net.onnx", *outputs)
    x = random.standard_normal((3, 7, 5)).astype(np.float32) * 4
    found = dict(zip(outputs, ort.InferenceSession(str(path)).run(None, {"x": x}), strict=True))
    ends = find_probabilities(load_model(path))
    assert list(ends) == list(outputs[:3])
    for name, axis in zip(outputs[1:3], (-1, 1), strict=True):
        wanted = x - x.mean(axis=axis, keepdims=True)
        np.testing.assert_allclose(ends[name].to_logits(found[name]), wanted, atol=1e-4)
    np.testing.assert_allclose(ends[outputs[0]].to_logits(found[outputs[0]]), x, atol=1e-1)
    assert cosine_similarity(ends[outputs[0]].to_logits(found[outputs[0]]), x) > 1 - 1e-7


def test_what_fp32_cannot_tell_from_certain_is_finite() -> None:
    certain = np.array([[0, 1, 0]], np.float32)
    for squash in (OutputActivation("Softmax"), OutputActivation("Sigmoid")):
        assert np.isfinite(squash.to_logits(certain)).all()
        assert cosine_similarity(squash.to_logits(np.full(3, np.nan)), squash.to_logits(certain[0])) == 0


def test_a_report_says_how_near_logits_are() -> None:
    logits = normal(1, 50) * 20
    logits[0, 7] = 60  # whose probability is all but one
    wrong = -logits
    wrong[0, 7] = 60
    probabilities = [np.exp(z - z.max()) / np.exp(z - z.max()).sum() for z in (wrong, logits)]
    plain, told = VerificationReport(0.1, 1, 1, (1,), 1), VerificationReport(0.1, 1, 1, (1,), 1)
    plain.record_output(*probabilities, "y")
    told.record_output(*probabilities, "y", OutputActivation("Softmax"))
    assert plain.min_cosine > 0.999 > told.min_cosine
    assert plain.max_rel_err == told.max_rel_err < 1e-3
