"""Operators on text that no column takes: ONNX Runtime runs them in front of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from text_nets import FLOAT, LETTERS, ROWS, STRING, WEIGHTS, WORDS, count_words, counting, node, reviews, save

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.verify import verify
from veltair.errors import DataError, ModelError, RequestError
from veltair.profiles.artifact.manifest import ONNX_LAYER

BATCH = 4
KEYS = ["red", "green", "blue"]
TEXTS = {"text": (STRING, ["B", 1])}


def compiled(path: Path, out: Path) -> Any:
    return veltair.compile(path, out, trials=0, precision="fp32", max_batch=BATCH, levels="model")


def texts(*values: str | bytes) -> NDArray[Any]:
    return np.array(values, object).reshape(-1, 1)


def scores_of(values: Sequence[str]) -> NDArray[np.float32]:
    return np.array([count_words(text) for text in values], np.float32) @ WEIGHTS


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("reviews")
    with veltair.load(compiled(reviews(folder / "reviews.onnx"), folder / "reviews")) as model:
        yield model


words = st.sampled_from([*WORDS, "Good", "GRÖSSE", "GRÖßE", "unknown", "x", ",", "  ", "\n", "日本", "not-so", "é"])


@given(st.lists(st.lists(words, max_size=30).map(" ".join), min_size=1, max_size=BATCH))
@example([""])
@example(["very good film", "", "not very good, not bad", "Very\tGOOD"])
@settings(max_examples=60)
def test_scores_are_those_of_counted_words(scores: Any, values: list[str]) -> None:
    np.testing.assert_allclose(scores({"text": texts(*values)})["y"], scores_of(values), atol=1e-5)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=BATCH))
@example([b"good \xff\xfe bad"])
@example([b"\xf0\x9f good"])
def test_bytes_that_are_no_text_disturb_nobody(scores: Any, values: list[bytes]) -> None:
    found = scores({"text": texts(*values)})["y"]
    assert np.isfinite(found).all()
    for row, value in zip(found, values, strict=True):
        np.testing.assert_array_equal(scores({"text": texts(value)})["y"], [row])


def test_a_text_has_room(scores: Any) -> None:
    longest = "good " * 819
    np.testing.assert_allclose(scores({"text": texts(longest)})["y"], scores_of([longest]), rtol=1e-5)
    with pytest.raises(RequestError, match="4100 bytes of text in 1 rows; at most 4096"):
        scores({"text": texts("good " * 820)})
    np.testing.assert_allclose(  # on average
        scores({"text": texts("good " * 820, "bad")})["y"], scores_of(["good " * 820, "bad"]), rtol=1e-5
    )


def test_other_columns_keep_kernels_of_their_own(tmp_path: Path) -> None:
    encoder = node("LabelEncoder", ["colour"], ["id"], domain="ai.onnx.ml", keys_strings=KEYS, values_int64s=[0, 1, 2])
    encoder.attribute.add(name="default_int64", i=3, type=2)
    nodes = [
        *counting("text", "counts"),
        node("MatMul", ["counts", "weights"], ["scores"]),
        encoder,
        node("Gather", ["rows", "id"], ["row"]),
        node("Flatten", ["row"], ["flat_row"]),
        node("Concat", ["scores", "flat_row", "x"], ["y"], axis=1),
    ]
    inputs = {**TEXTS, "colour": (STRING, ["B", 1]), "x": (FLOAT, ["B", 2])}
    path = save(tmp_path / "m.onnx", nodes, inputs, (FLOAT, ["B", 7]))
    artifact = compiled(path, tmp_path / "m")
    assert [layer.op for layer in artifact.manifest.layers].count(ONNX_LAYER) == 1
    assert "columns" in {layer.op for layer in artifact.manifest.layers}
    assert not verify(artifact, path).mismatches
    x, values = np.arange(6, dtype=np.float32).reshape(3, 2), ["good", "", "not bad"]
    with veltair.load(artifact) as model:
        found = model({"text": texts(*values), "colour": texts("blue", "red", "none"), "x": x})["y"]
    np.testing.assert_allclose(found, np.concatenate([scores_of(values), ROWS[[2, 0, 3]], x], 1), atol=1e-5)


def test_two_texts_and_counts_that_are_the_output(tmp_path: Path) -> None:
    nodes = [*counting("title", "a"), *counting("text", "b"), node("Concat", ["a", "b"], ["y"], axis=1)]
    path = save(tmp_path / "m.onnx", nodes, {**TEXTS, "title": (STRING, ["B", 1])}, (FLOAT, ["B", 12]))
    with veltair.load(compiled(path, tmp_path / "m")) as model:
        found = model({"title": texts("bad film", "é"), "text": texts("good", "not very good")})["y"]
    expected = [[*count_words("bad film"), *count_words("good")], [0] * 6 + count_words("not very good")]
    np.testing.assert_array_equal(found, expected)
    path = save(tmp_path / "counts.onnx", counting("text", "y"), TEXTS, (FLOAT, ["B", 6]))
    with veltair.load(compiled(path, tmp_path / "counts")) as model:
        np.testing.assert_array_equal(model({"text": texts("Good")})["y"], [count_words("Good")])


def test_accuracy_on_samples_of_text(tmp_path: Path) -> None:
    path, values = reviews(tmp_path / "m.onnx", "C.UTF-8"), np.array(["Very good", "", "größe"])
    artifact = compiled(path, tmp_path / "m")
    np.savez(tmp_path / "samples.npz", text=values[:, None])
    for samples in (tmp_path / "samples.npz", {"text": values.astype("O")[:, None]}, {"text": texts(b"good", "bad")}):
        (accuracy,) = veltair.measure_accuracy(artifact, path, samples)
        assert accuracy.ok and accuracy.max_rel_err < 1e-5
    for wrong, says in (
        (values, r"expected text of shape \(samples, 1\), found text of shape \(3,\)"),
        (np.zeros((2, 1), np.float32), r"expected text of shape \(samples, 1\), found float32"),
        (np.array([[1], ["good"]], object), "expected texts, found 1"),
    ):
        with pytest.raises(DataError, match=says):
            veltair.measure_accuracy(artifact, path, {"text": wrong})


def test_texts_of_the_file_go_along(tmp_path: Path) -> None:
    """A text with a constant behind it, and its comparison with a table."""
    nodes = [
        node("StringConcat", ["text", "tail"], ["longer"]),
        *counting("longer", "counts"),
        node("Equal", ["text", "names"], ["same"]),
        node("Cast", ["same"], ["flags"], to=FLOAT),
        node("Concat", ["counts", "flags"], ["y"], axis=1),
    ]
    path = save(tmp_path / "m.onnx", nodes, TEXTS, (FLOAT, ["B", 9]))
    model = onnx.load(path)
    tables = {"tail": texts(" good"), "names": texts("good", "bad", "é").T}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tables.items())
    onnx.save(model, path)
    with veltair.load(compiled(path, tmp_path / "m")) as run:
        found = run({"text": texts("very", "é", "good")})["y"]
    expected = [[*count_words(f"{text} good"), text == "good", 0, text == "é"] for text in ("very", "é", "good")]
    np.testing.assert_array_equal(found, expected)


def test_integers_stay_where_their_range_is_checked(tmp_path: Path) -> None:
    """A key that is not ASCII in lower case: nothing of ours reads it, nor an index that nobody has checked."""
    nodes = [
        node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER"),
        node(
            "LabelEncoder",
            ["lower"],
            ["id"],
            domain="ai.onnx.ml",
            keys_strings=["größe", "red"],
            values_int64s=[2, 0],
            default_int64=-1,
        ),
        node("Gather", ["rows", "id"], ["row"]),
        node("Relu", ["row"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, (FLOAT, ["B", 2]))
    artifact = compiled(path, tmp_path / "m")
    assert artifact.manifest.layers[0].op == ONNX_LAYER
    assert {artifact.manifest.buffers[index].dtype for index in artifact.manifest.layers[0].outputs} == {"float32"}
    with veltair.load(artifact) as model:
        found = model({"text": texts("größer", "Größe", "RED", "green")})["y"]
    np.testing.assert_array_equal(found, np.maximum(ROWS[[-1, 2, 0, -1]], 0))


def refusals() -> dict[str, tuple[list[Any], dict[str, Any], str]]:
    tokens = node(
        "Tokenizer", ["text"], ["t"], domain="com.microsoft", mark=0, mincharnum=1, pad_value="", tokenexp=LETTERS
    )
    stopwords = [node("StringNormalizer", ["text"], ["t"], stopwords=["good"]), *counting("t", "y")]
    encoder = {"domain": "ai.onnx.ml", "keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}
    return {
        "operators that there are not": (
            [node("StringReverse", ["text"], ["t"]), *counting("t", "y")],
            TEXTS,
            "ONNX Runtime cannot load them",
        ),
        "as many numbers as the longest text has letters": (
            [tokens, node("LabelEncoder", ["t"], ["y"], **encoder)],
            TEXTS,
            "expected as many numbers for each row",
        ),
        "rows that go": (stopwords, {"text": (STRING, ["B"])}, "expected as many numbers for each row"),
        "texts that are padded with a word": (
            counting("text", "y", pad="good"),
            TEXTS,
            "is another one for a row of text in a batch than for the row by itself",
        ),
        "text and numbers": (
            [node("Gather", ["text", "x"], ["t"]), *counting("t", "y")],
            {**TEXTS, "x": (TensorProto.INT64, ["B"])},
            "input 'x' goes to operators on text; expected text alone",
        ),
    }


@pytest.mark.parametrize("what", refusals())
def test_what_cannot_run_in_front_is_refused(tmp_path: Path, what: str) -> None:
    nodes, inputs, expected = refusals()[what]
    path = save(tmp_path / "m.onnx", nodes, inputs, (FLOAT, []))
    with pytest.raises(ModelError, match=f"nor can ONNX Runtime run it in front: .*({expected})"):
        load_model(path)


@pytest.mark.parametrize(
    ("operators", "ends", "says"),
    [
        (["Identity"] * 20_000, "counts", "more than 4096 operators on text"),
        (["StringNormalizer"] * 1000, "counts", "more than 64 operators on text follow each other"),
        (["StringConcat"] * 40, "counts", "its operators on text take more than 1024 MB of memory"),
        (["StringConcat"] * 40, "keys", "reads what more than 256 texts are joined to"),
    ],
    ids=lambda given: f"{len(given)} {given[0]}" if isinstance(given, list) else "",
)
def test_chains_end_in_bounded_time_and_memory(tmp_path: Path, operators: list[str], ends: str, says: str) -> None:
    """Twenty thousand operators, and texts that double in length forty times."""
    nodes = [
        node(op, [f"t{i}" if i else "text"] * (1 + (op == "StringConcat")), [f"t{i + 1}"], name=f"n{i}")
        for i, op in enumerate(operators)
    ]
    last, encoder = nodes[-1].output[0], {"domain": "ai.onnx.ml", "keys_strings": ["a", "b"], "values_int64s": [0, 1]}
    lookup = [node("LabelEncoder", [last], ["id"], **encoder), node("Gather", ["rows", "id"], ["y"])]
    nodes += counting(last, "y") if ends == "counts" else lookup
    path = save(tmp_path / "m.onnx", nodes, {"text": (STRING, ["B"])}, (FLOAT, ["B", 6 if ends == "counts" else 2]))
    with pytest.raises(ModelError, match=says):
        load_model(path)


def test_without_fallback_the_column_is_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no column begins at its strings; text goes through"):
        load_model(reviews(tmp_path / "m.onnx"), fallback=False)
