"""Texts that a graph cleans and splits: their tokens' rows summed, once each, or as sequences of fixed length."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from features.checked_columns import bucket, check, columns_of
from features.column_nets import CITIES, CONSTANTS, CONTRIB, STRING, encoder, hashed, model, node

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

CONSTANTS |= {
    "split/white": np.array([""], object),
    "split/comma": np.array([","], object),
    "split/points": np.array(["::"], object),
    "split/kept": np.array([False]),
    "split/marks": np.array(["[!?']"], object),
    "split/letters": np.array(["[^a-z ]"], object),
    "split/word": np.array(["<br>"], object),
    "split/nothing": np.array([""], object),
    "split/whole rows": np.array([0]),
    "split/next": np.array([1]),
    "split/places": np.array([4]),
    "split/last": np.array([1 << 40]),
    "split/least id": np.array(0),
    "split/first": np.array(0),
    "split/step": np.array(1),
}
TEXTS = [b"rome Oslo!", b"", b"! ?", b"rome rome\tbonn rome oslo x", "Zürich's rome".encode(), b"x" * 90, b" oslo"]
KEYS, IDS = ["rome", "oslo", "romes"], [3, 1, 2]  # 0 for any other


def split(given: str, separator: str = "split/white") -> onnx.NodeProto:
    return node("StringSplit", [given, separator, "split/kept"], ["at", "tokens", "extent"], domain=CONTRIB)


def summed(values: str, out: str) -> list[onnx.NodeProto]:
    """The sum of something for each token, by the rows that tokens belong to."""
    return [
        node("Gather", ["cities", values], "token.rows"),
        node("Slice", ["at", "split/whole rows", "split/next", "split/next"], "row.places"),
        node("Slice", ["extent", "split/whole rows", "split/next"], "batch"),
        node("Concat", ["batch", "split/places"], "size", axis=0),
        node("ConstantOfShape", ["size"], "zeros"),
        node("ScatterND", ["zeros", "row.places", "token.rows"], out, reduction="add"),
    ]


def known(text: bytes, clean: Callable[[bytes], bytes] = lambda text: text) -> list[int]:
    """What the encoder gives for each token of a text."""
    places = dict(zip(KEYS, IDS, strict=True))
    return [places.get(t.decode("utf-8", "replace"), 0) for t in re.split(rb"[ \t-\r]", clean(text)) if t]


def test_sums_of_tokens(tmp_path: Path) -> None:
    nodes = [split("text"), encoder("tokens", "ids", KEYS, IDS, 0), *summed("ids", "y")]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    want = np.stack([CITIES[known(text)].sum(0) for text in TEXTS])
    loaded = check(path, tmp_path, {"text": np.array(TEXTS, object)[:, None]}, want)
    column = columns_of(loaded)["text"]
    assert (column.combiner, column.separator, column.truncate) == ("sum", "", None) and not loaded.nodes[1:]


def test_sums_of_characters(tmp_path: Path) -> None:
    """Row splits say which row a character is of, as in a ragged tensor; malformed parts are U+FFFD."""
    texts = [b"ab", b"", b"a\xc3b", "éa\0é".encode(), b"\xed\xa0\x80", b"x" * 90, b"\xf0\x9f\x99\x82b"]
    keys = ["a", "é", "\ufffd"]
    nodes = [
        node("UnicodeSplit", ["text"], ["splits", "letters"], domain=CONTRIB),
        encoder("letters", "ids", keys, IDS, 0),
        node("Gather", ["cities", "ids"], "rows"),
        node("Slice", ["splits", "split/next", "split/last", "split/whole rows"], "ends"),
        node("Unsqueeze", ["ends", "split/next"], "ends.column"),
        node("Shape", ["ids"], "extent"),
        node("Squeeze", ["extent", "split/whole rows"], "count"),
        node("Range", ["split/first", "count", "split/step"], "places"),
        node("Unsqueeze", ["places", "split/whole rows"], "places.row"),
        node("LessOrEqual", ["ends.column", "places.row"], "before"),
        node("Cast", ["before"], "ones", to=onnx.TensorProto.INT64),
        node("ReduceSum", ["ones", "split/whole rows"], "of.row", keepdims=0),
        node("Unsqueeze", ["of.row", "split/next"], "row.places"),
        node("Shape", ["ends"], "batch"),
        node("Concat", ["batch", "split/places"], "size", axis=0),
        node("ConstantOfShape", ["size"], "zeros"),
        node("ScatterND", ["zeros", "row.places", "rows"], "y", reduction="add"),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    places = dict(zip(keys, IDS, strict=True))
    letters = [text.decode("utf-8", "replace") for text in texts]
    want = np.stack([CITIES[[places.get(letter, 0) for letter in row]].sum(0) for row in letters])
    loaded = check(path, tmp_path, {"text": np.array(texts, object)[:, None]}, want)
    assert columns_of(loaded)["text"].separator == "characters" and not loaded.nodes[1:]


def test_hashes_of_tokens_between_commas(tmp_path: Path) -> None:
    """An empty token is a token."""
    texts = [b"a,b", b"", b",,", b"a", b"b, a", b"x" * 80 + b",a", b"a,a,a"]
    nodes = [split("text", "split/comma"), hashed("tokens", "ids", "five"), *summed("ids", "y")]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    want = np.stack([CITIES[[bucket(token, 5) for token in text.split(b",")]].sum(0) for text in texts])
    check(path, tmp_path, {"text": np.array(texts, object)[:, None]}, want)


def test_tokens_in_two_forms(tmp_path: Path) -> None:
    """Tokens between commas are stripped for one look-up, and hashed as they are for another."""
    texts = [b"rome, oslo", b"", b" rome ,rome", b"ROME", b",\t", b"x" * 80, b"a,a,a"]
    nodes = [
        split("text", "split/comma"),
        node("StringStrip", ["tokens"], "bare", domain=CONTRIB),
        encoder("bare", "ids", KEYS, IDS, 0),
        hashed("tokens", "buckets", "five"),
    ]
    nodes += [*summed("ids", "bare.sums"), node("Gather", ["cities", "buckets"], "hashed.rows")]
    nodes += [node("ScatterND", ["zeros", "row.places", "hashed.rows"], "hashed.sums", reduction="add")]
    nodes += [node("Concat", ["bare.sums", "hashed.sums"], "y", axis=1)]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    places = {key.encode(): place for key, place in zip(KEYS, IDS, strict=True)}
    tokens = [text.split(b",") for text in texts]
    one = np.stack([CITIES[[places.get(token.strip(), 0) for token in row]].sum(0) for row in tokens])
    two = np.stack([CITIES[[bucket(token, 5) for token in row]].sum(0) for row in tokens])
    check(path, tmp_path, {"text": np.array(texts, object)[:, None]}, np.concatenate([one, two], 1))


def test_a_text_that_is_split_in_two_ways(tmp_path: Path) -> None:
    """The sum of both, with the same keys, is no sum over the tokens of either."""
    texts = [b"rome,oslo rome", b"", b"rome oslo", b" oslo,rome", b"x,x x", b",", b"oslo"]
    nodes = [split("text"), encoder("tokens", "ids", KEYS, IDS, 0), *summed("ids", "one")]
    other = [split("text", "split/comma"), encoder("tokens", "ids", KEYS, IDS, 0), *summed("ids", "one")]
    for n in other:
        constants = {*CONSTANTS, "text"}
        n.input[:] = [name if name in constants and name != "one" else f"other/{name}" for name in n.input]
        n.output[:] = [f"other/{name}" for name in n.output]
        n.name = f"other/{n.name}"
    for n in nodes[-1:]:
        n.output[0] = "white/one"
    nodes += [*other, node("Add", ["white/one", "other/one"], "y")]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    commas = [[dict(zip(KEYS, IDS, strict=True)).get(t.decode(), 0) for t in text.split(b",")] for text in texts]
    want = np.stack([CITIES[known(t)].sum(0) + CITIES[c].sum(0) for t, c in zip(texts, commas, strict=True)])
    loaded = check(path, tmp_path, {"text": np.array(texts, object)[:, None]}, want)
    assert loaded.columns is not None and len(loaded.columns.description.columns) == 2


def test_sequences_of_cleaned_tokens(tmp_path: Path) -> None:
    """A token of marks alone is none, since they are left out before the split."""
    nodes = [
        node("StringLower", ["text"], "low"),
        node("StringRegexReplace", ["low", "split/marks", "split/nothing"], "clean", domain=CONTRIB),
        split("clean"),
        encoder("tokens", "ids", KEYS, IDS, 0),
        node("Slice", ["extent", "split/whole rows", "split/next"], "batch"),
        node("Concat", ["batch", "split/places"], "size", axis=0),
        node("Slice", ["at", "split/next", "split/last", "split/next"], "place"),
        node("Less", ["place", "split/places"], "early"),
        node("Squeeze", ["early", "split/next"], "early.flat"),
        node("Compress", ["at", "early.flat"], "kept.at", axis=0),
        node("Compress", ["ids", "early.flat"], "kept.ids", axis=0),
        node("ConstantOfShape", ["size"], "zeros", value=onnx.numpy_helper.from_array(np.array([4]))),
        node("ScatterND", ["zeros", "kept.at", "kept.ids"], "padded"),
        node("Gather", ["cities", "padded"], "rows"),
        node("ReduceMax", ["rows"], "y", axes=[1], keepdims=0),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"], opset=17)
    clean = [known(text, lambda text: text.lower().translate(None, b"!?'"))[:4] for text in TEXTS]
    want = CITIES[np.array([row + [4] * (4 - len(row)) for row in clean])].max(1)
    loaded = check(path, tmp_path, {"text": np.array(TEXTS, object)[:, None]}, want)
    column = columns_of(loaded)["text"]
    assert (column.combiner, column.truncate, column.remove, column.case) == ("sequence", 4, "!'?", "lower")


def test_a_text_without_all_but_some_characters(tmp_path: Path) -> None:
    nodes = [
        node("StringRegexReplace", ["text", "split/letters", "split/nothing"], "clean", domain=CONTRIB),
        encoder("clean", "ids", [*KEYS, "zrichs rome"], [*IDS, 4], 0),
        node("Gather", ["cities", "ids"], "y"),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    texts = [b"ro!me", b"OSLO", b"oslo\xff", "Zzürich's rome".encode(), b"", b"o" * 90]
    check(path, tmp_path, {"text": np.array(texts, object)[:, None]}, CITIES[[3, 0, 1, 4, 0, 0]])


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([split("text", "split/points")], "StringSplit: splits at '::'; expected white space or one ASCII character"),
        (
            [
                node("StringRegexReplace", ["text", "split/word", "split/nothing"], "clean", domain=CONTRIB),
                split("clean"),
            ],
            "StringRegexReplace: replaces '<br>' by ''; expected one set",
        ),
        (
            [node("StringStrip", ["text"], "clean", domain=CONTRIB), split("clean", "split/comma")],
            "StringSplit: splits at ',', which the steps before it change or leave out",
        ),
    ],
)
def test_other_steps_are_named(nodes: list[onnx.NodeProto], says: str, tmp_path: Path) -> None:
    nodes = [*nodes, encoder("tokens", "ids", KEYS, IDS, 0), *summed("ids", "y")]
    with pytest.raises(ModelError, match=re.escape(says)):
        load_model(model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"]), 4)


def test_hashes_of_texts_without_characters_are_named(tmp_path: Path) -> None:
    nodes = [
        node("StringRegexReplace", ["text", "split/marks", "split/nothing"], "clean", domain=CONTRIB),
        split("clean"),
    ]
    nodes += [hashed("tokens", "ids", "five"), *summed("ids", "y")]
    with pytest.raises(ModelError, match="input 'text' is hashed without some of its characters"):
        load_model(model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"]), 4)


def test_what_depends_on_the_longest_row_is_named(tmp_path: Path) -> None:
    """A mean over as many places as the longest text of the batch has tokens."""
    nodes = [split("text"), encoder("tokens", "ids", KEYS, IDS, 0), *summed("ids", "sums")]
    nodes += [
        node("Slice", ["extent", "split/next", "split/last"], "longest"),
        node("Cast", ["longest"], "many", to=onnx.TensorProto.FLOAT),
        node("Div", ["sums", "many"], "y"),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    with pytest.raises(ModelError, match="input 'text': what becomes of its tokens is no sum or mean of rows"):
        load_model(path, 4)


def test_rows_of_padding_that_count_are_named(tmp_path: Path) -> None:
    """A sum in which each place that the longest text of the batch has more counts as a row, too."""
    nodes = [split("text"), encoder("tokens", "ids", KEYS, IDS, 0)]
    nodes += [
        node("ConstantOfShape", ["extent"], "padding", value=onnx.numpy_helper.from_array(np.array([4]))),
        node("ScatterND", ["padding", "at", "ids"], "padded"),
        node("Gather", ["cities", "padded"], "rows"),
        node("ReduceMean", ["rows", "split/next"], "y", keepdims=0),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, ["y"])
    with pytest.raises(ModelError, match="input 'text': what becomes of its tokens is no sum or mean of rows"):
        load_model(path, 4)
