"""Strings of an ONNX model that no column can read: the error names the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from features.column_nets import CITY, HISTORY, STRING, encoder, hashed, model, node

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

LOOKED_UP = node("Gather", ["cities", "h"], "h.rows")
WRONG: list[Any] = [
    (
        [node("Identity", ["city"], "same"), node("RegexFullMatch", ["same"], "city.id", pattern="a"), CITY[1]],
        "node 'city.id': operator RegexFullMatch reads the values of input 'city'",
    ),
    *(
        (
            [node("StringNormalizer", ["city"], "low", **given), encoder("low", "city.id", keys, [0], 0), CITY[1]],
            says,
        )
        for given, keys, says in (
            ({"stopwords": ["the"]}, ["a"], "node 'low': operator StringNormalizer: stopwords take rows out"),
            ({"case_change_action": "LOWER", "locale": "tr_TR"}, ["a"], "letters of locale 'tr_TR' are not known"),
            ({"case_change_action": "LOWER"}, ["ä"], "a key is not ASCII behind a StringNormalizer whose locale"),
        )
    ),
    (
        [
            node("StringNormalizer", ["city"], "low", case_change_action="LOWER"),
            node("StringNormalizer", ["low"], "up", case_change_action="UPPER"),
            encoder("up", "city.id", ["a"], [0], 0),
            CITY[1],
        ],
        "node 'low': operator StringNormalizer: the case is changed twice",
    ),
    (
        [
            node("StringConcat", ["history", "dash"], "both"),
            node("StringSplit", ["both"], ["tokens", "n"], delimiter=";"),
            *HISTORY[1:],
        ],
        "splits what StringConcat makes",
    ),
    ([*HISTORY[:3], node("ReduceMean", ["token.rows", "one"], "mean", keepdims=0)], "ReduceMean counts the padding"),
    ([HISTORY[0], encoder("tokens", "token.id", ["a"], [1], 2), *HISTORY[2:]], "leads to a row that is not zero"),
    ([node("StringSplit", ["history"], ["tokens", "n"], delimiter="<>"), *HISTORY[1:]], "one ASCII character"),
    ([node("StringSplit", ["history"], ["tokens", "n"]), *HISTORY[1:]], "one ASCII character"),
    ([encoder("city", "city.id", ["a", "a"], [1, 2], 0), CITY[1]], "a key appears twice"),
    ([encoder("city", "city.id", ["a", "b"], [1], 0), CITY[1]], "2 keys, 1 values"),
    ([hashed("city", "h", "zero-d"), LOOKED_UP], "expected texts and a constant number of buckets"),
    ([hashed("city", "h", "none"), LOOKED_UP], "0 buckets; expected 1 to 2147483647"),
    (
        [node("StringConcat", ["city", "dash"], "both"), hashed("both", "h", "five"), LOOKED_UP],
        "hashes what StringConcat or StringNormalizer makes",
    ),
    (
        [node("Cast", ["city"], "text", to=STRING), hashed("text", "h", "five"), LOOKED_UP],
        "node 'text': operator Cast reads the values of input 'city'",
    ),
    ([HISTORY[0], hashed("tokens", "token.id", "three"), *HISTORY[2:]], "leads to a row that is not zero"),
    ([*HISTORY, encoder("history", "h", ["a"], [1], 0), LOOKED_UP], "input 'history' is read whole and split"),
]


@pytest.mark.parametrize(("nodes", "says"), WRONG)
def test_what_cannot_be_taken_names_the_node(nodes: Any, says: str, tmp_path: Path) -> None:
    read = {name for n in nodes for name in n.input}
    ends = [name for n in nodes for name in n.output if name not in read]
    inputs = {name: (STRING, ["B"]) for name in ("city", "history") if name in read}
    with pytest.raises(ModelError, match=says):
        load_model(model(tmp_path / "m.onnx", nodes, inputs, ends), 4, fallback=False)


@pytest.mark.parametrize("nodes", [CITY, HISTORY], ids=["city", "history"])
@pytest.mark.parametrize(("shape", "says"), [([32], r"\[32\]"), ([32, 1], r"\[32, 1\]")])
def test_a_fixed_batch_beside_an_open_one_is_refused_with_the_shape(
    nodes: Any, shape: list[int], says: str, tmp_path: Path
) -> None:
    name = nodes[0].input[0]
    inputs = {name: (STRING, shape), "n": (1, ["B", 2])}
    outputs = [nodes[-1].output[0], "r"]
    path = model(tmp_path / "m.onnx", [*nodes, node("Relu", ["n"], "r")], inputs, outputs)
    with pytest.raises(ModelError, match=f"input '{name}' has shape {says}; expected .* with a symbolic batch"):
        load_model(path, 4)


def test_a_string_that_nobody_encodes_is_refused(tmp_path: Path) -> None:
    nodes = [node("Relu", ["plain"], "y"), node("Identity", ["city"], "z")]
    path = model(tmp_path / "m.onnx", nodes, {"plain": (1, ["B", 2]), "city": (STRING, ["B"])}, ["y"])
    with pytest.raises(ModelError, match="no column begins at its strings"):
        load_model(path, 4)
