"""Sums in Einstein's notation are matrix products, and give what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

from veltair.compiler.patterns.einsum import _labels

SIZES = {"n": 3, "b": 3, "h": 4, "i": 5, "j": 6, "d": 8, "k": 7, "c": 16, "w": 9, "e": 10}


def sums(path: Path, equation: str, constant: int | None) -> list[str]:
    """Run such a sum of inputs and a constant; the operators of its layers."""
    texts = equation.replace(" ", "").split("->")[0].split(",")
    shapes = [[SIZES[letter] for letter in text.replace("...", "hj")] for text in texts]
    inputs = {f"x{place}": shape for place, shape in enumerate(shapes) if place != constant}
    net = Net(**{name: ["n", *shape[1:]] for name, shape in inputs.items()})
    operands: list[Any] = [normal(*shapes[place]) if place == constant else f"x{place}" for place in range(len(texts))]
    model = net.save(path / "net.onnx", net("Einsum", *operands, equation=equation))
    feeds = {name: normal(*shape) for name, shape in inputs.items()}
    (found, *_), operators = run(model, feeds, "fp32", SIZES["n"])
    wanted = ort.InferenceSession(str(model)).run(None, feeds)[0]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    return operators


@pytest.mark.parametrize(
    ("equation", "constant"),
    [
        ("nhid,nhjd->nhij", None),
        ("nhij,nhjd->nhid", None),
        ("nihd,njhd->nhij", None),
        ("nhij,njhd->nihd", None),
        ("nic, nid -> ncd", None),
        ("nchw,nc->nhw", None),
        ("nchw,cd->ndhw", 1),
        ("cd,nchw->ndhw", 0),
        ("nid,ehd->nieh", 1),
        ("nhd,hdk->nhk", 1),
        ("n...i,ik->n...k", 1),
        ("ik,n...i->n...k", 0),
        ("nd,kd->nk", 1),
        ("bij,jk", 1),
        ("nhdi,hdk->nki", 1),
    ],
)
def test_equal_to_onnx_runtime(tmp_path: Path, equation: str, constant: int | None) -> None:
    operators = sums(tmp_path, equation, constant)
    assert {"matmul", "batched_matmul"} & {*operators}
    assert "onnxruntime" not in operators


@pytest.mark.parametrize(
    ("equation", "constant"),
    [("ni,nj->nij", None), ("nid,nid->ni", None), ("nij->nji", None), ("nid,nie->nd", None)],
)
def test_what_is_no_matrix_product_stays(tmp_path: Path, equation: str, constant: int | None) -> None:
    assert not {"matmul", "batched_matmul"} & {*sums(tmp_path, equation, constant)}


@pytest.mark.parametrize(
    ("equation", "constants"),
    [("nc,cd,de->ne", (1, 2)), ("ni,kij,nj->nk", (1,)), ("nij,nik,ncj->nkc", ()), ("cd,de,nc->ne", (0, 1))],
)
def test_more_operands_are_taken_in_pairs(tmp_path: Path, equation: str, constants: tuple[int, ...]) -> None:
    shapes = [[SIZES[letter] for letter in text] for text in equation.split("->")[0].split(",")]
    inputs = {f"x{place}": shape for place, shape in enumerate(shapes) if place not in constants}
    net = Net(**{name: ["n", *shape[1:]] for name, shape in inputs.items()})
    operands = [normal(*shape) if place in constants else f"x{place}" for place, shape in enumerate(shapes)]
    model = net.save(tmp_path / "net.onnx", net("Einsum", *operands, equation=equation))
    feeds = {name: normal(*shape) for name, shape in inputs.items()}
    (found, *_), operators = run(model, feeds, "fp32", SIZES["n"])
    wanted = ort.InferenceSession(str(model)).run(None, feeds)[0]
    assert {"matmul", "batched_matmul"} & {*operators}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("equation", "labels"),
    [
        ("ij,jk->ik", ("ij", "jk", "ik")),
        ("ji, jk", ("ji", "jk", "ik")),
        ("...ij,...jk->...ik", ("αij", "αjk", "αik")),
        ("...ij,jk->...ik", None),
        ("ij->ij", None),
        ("i,jk->ik", None),
    ],
)
def test_labels(equation: str, labels: tuple[str, str, str] | None) -> None:
    more = (2,) * ("..." in equation)
    assert _labels(equation, [(*more, 3, 4), (*more, 4, 5)]) == labels


def test_attention_is_what_it_is_in_products(tmp_path: Path) -> None:
    """The same layers as where a file has the transposition and the products."""
    found = list[Any]()
    feeds = {name: normal(3, 4, 12 if name == "q" else 20, 16) * 4 for name in "qkv"}
    for spelled in (True, False):
        net = Net(q=["n", 4, 12, 16], k=["n", 4, 20, 16], v=["n", 4, 20, 16])
        turned = "k" if spelled else net("Transpose", "k", perm=[0, 1, 3, 2])
        scores = net("Einsum", "q", "k", equation="nhid,nhjd->nhij") if spelled else net("MatMul", "q", turned)
        weights = net("Softmax", net("Mul", scores, np.float32(0.25)), axis=-1)
        made = net("Einsum", weights, "v", equation="nhij,nhjd->nhid") if spelled else net("MatMul", weights, "v")
        found.append(run(net.save(tmp_path / "net.onnx", made), feeds, "fp32", 3))
    ((ours, *_), operators), ((theirs, *_), expected) = found
    assert operators == expected
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
