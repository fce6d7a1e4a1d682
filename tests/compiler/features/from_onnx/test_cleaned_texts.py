"""Hashes and look-ups of texts whose letter case is changed, or that are stripped, become columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from features.checked_columns import bucket, check, columns_of
from features.column_nets import CITIES, STRING, encoder, hashed, model, node

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

TEXTS = [b" Rome ", b"ROME", b"\t\x0b\n", b"", "ZÜRICH ".encode(), b" " + b"Ab" * 20, b"Z[@`{a" * 30, b"\xff A\0B "]
STRIP, LOWER, UPPER = (["StringStrip"], ["StringLower"], ["StringUpper"])


def cleaned(operators: list[str]) -> tuple[list[onnx.NodeProto], str]:
    """Nodes that change an input `city`, and the tensor that they make."""
    names = ["city", *(f"clean{place}" for place in range(len(operators)))]
    domains = {"StringStrip": "ai.onnx.contrib"}
    pairs = zip(operators, names[:-1], names[1:], strict=True)
    return [node(op, [read], made, domain=domains.get(op, "")) for op, read, made in pairs], names[-1]


def clean(text: bytes, operators: list[str]) -> bytes:
    for operator in operators:
        text = {"StringStrip": text.strip(), "StringLower": text.lower(), "StringUpper": text.upper()}[operator]
    return text


@pytest.mark.parametrize("operators", [LOWER, UPPER, STRIP, [*LOWER, *STRIP], [*STRIP, *UPPER, *LOWER]])
def test_hashes_of_cleaned_texts(operators: list[str], tmp_path: Path) -> None:
    """Letters beyond ASCII stay; texts of every length class of the fingerprint."""
    nodes, name = cleaned(operators)
    nodes += [hashed(name, "h", "five"), node("Gather", ["cities", "h"], "y")]
    want = CITIES[[bucket(clean(text, operators), 5) for text in TEXTS]]
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"])
    column = columns_of(check(path, tmp_path, {"city": np.array(TEXTS, object)[:, None]}, want))["city"]
    assert column.strip == ("StringStrip" in operators)


def test_a_text_is_read_in_two_forms_and_as_it_is(tmp_path: Path) -> None:
    lower, name = cleaned([*LOWER, *STRIP])
    nodes: list[Any] = [
        *lower,
        encoder(name, "id", ["rome", "zürich"], [3, 1], 0),
        node("Gather", ["cities", "id"], "a"),
    ]
    nodes += [node("StringToHashBucketStrong", ["clean0"], "h", num_buckets=1, key=[1, 2])]
    nodes += [node("Gather", ["cities", "h"], "b"), hashed("city", "k", "five"), node("Gather", ["cities", "k"], "c")]
    nodes += [node("Concat", ["a", "b", "c"], "y", axis=1)]
    ids = [{b"rome": 3, "zürich".encode(): 1}.get(text.lower().strip(), 0) for text in TEXTS]
    want = np.concatenate([CITIES[ids], CITIES[[0] * 8], CITIES[[bucket(text, 5) for text in TEXTS]]], 1)
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"])
    check(path, tmp_path, {"city": np.array(TEXTS, object)[:, None]}, want)


def test_letters_beyond_ascii_are_not_changed_silently(tmp_path: Path) -> None:
    nodes = [node("StringLower", ["city"], "low", encoding="utf-8"), hashed("low", "h", "five")]
    nodes += [node("Gather", ["cities", "h"], "y")]
    with pytest.raises(ModelError, match="operator StringLower reads the values of input 'city'"):
        load_model(model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"]), 4)
