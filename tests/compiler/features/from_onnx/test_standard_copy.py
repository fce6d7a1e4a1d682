"""ONNX Runtime runs a copy without foreign operators, and it gives what these operators mean."""

from __future__ import annotations

from pathlib import Path

import farmhash
import numpy as np
import onnxruntime as ort
from features.column_nets import CITIES, CITY, INT, ITEMS, STRING, hashed, model, node
from onnx import TensorProto

from veltair.compiler.features.from_onnx.standard_copy import standard_copy
from veltair.profiles.artifact.strings import Strings

TEXTS = [b"Hello", b"a;b", b"", "Zürich;b;b".encode()]
NUMBERS = np.array([[0], [-7], [1 << 40], [12]])
AGES = np.array([[-1.0], [0.0], [0.5], [np.nan]], np.float32)


def bucket(text: bytes, buckets: int) -> int:
    return int(farmhash.fingerprint64(text) % buckets)


def test_the_copy_gives_what_the_foreign_operators_mean(tmp_path: Path) -> None:
    nodes = [
        hashed("words", "word", "three"),
        node("Gather", ["cities", "word"], "word.rows"),
        node("Cast", ["n"], "text", to=STRING),
        node("Reshape", ["text", "flat"], "text.flat"),
        hashed("text.flat", "number", "five"),
        node("Gather", ["cities", "number"], "number.rows"),
        node("StringSplit", ["history"], ["tokens", "counts"], delimiter=";"),
        hashed("tokens", "token", "five"),
        node("Gather", ["items", "token"], "token.rows"),
        node("ReduceSum", ["token.rows", "one"], "summed", keepdims=0),
        node("Bucketize", ["age"], "bucket", boundaries=[0.0, 0.5]),
        node("Gather", ["cities", "bucket"], "age.rows"),
        node("Flatten", ["age.rows"], "age.flat"),
        node("Concat", ["word.rows", "number.rows", "summed", "age.flat"], "y", axis=1),
    ]
    inputs = {
        "words": (STRING, ["B"]),
        "n": (INT, ["B", 1]),
        "history": (STRING, ["B"]),
        "age": (TensorProto.FLOAT, ["B", 1]),
    }
    found = standard_copy(model(tmp_path / "m.onnx", nodes, inputs, ["y"]))
    assert found is not None
    proto, ids = found
    raw = {"words": Strings.from_values(TEXTS), "history": Strings.from_values(TEXTS), "n": NUMBERS, "age": AGES}
    texts = np.array([text.decode() for text in TEXTS], object)
    feeds = {"words": texts, "history": texts, "n": NUMBERS, "age": AGES}
    feeds |= {each.name: each.values_in(raw) for each in ids}
    kept = {value.name for value in proto.graph.input}
    feeds = {name: value for name, value in feeds.items() if name in kept}
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    padded = [[*(text.split(b";") if text else []), b"", b"", b""][:3] for text in TEXTS]
    wanted = [
        CITIES[[bucket(text, 3) for text in TEXTS]],
        CITIES[[bucket(b"%d" % n, 5) for n in NUMBERS[:, 0]]],
        [sum(ITEMS[bucket(token, 5)] for token in row) for row in padded],
        CITIES[[0, 1, 2, 2]],
    ]
    np.testing.assert_allclose(y, np.concatenate(wanted, axis=1), rtol=1e-6)


def test_a_file_of_standard_operators_needs_no_copy(tmp_path: Path) -> None:
    nodes = [*CITY, node("Relu", ["city.rows"], "y")]
    assert standard_copy(model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"])) is None
