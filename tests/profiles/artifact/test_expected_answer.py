"""The answer that a manifest holds: what is drawn, what is kept, and what deviates."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
from example_artifact import written
from example_manifest import make_manifest
from numpy.typing import NDArray

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import MANIFEST, load_artifact
from veltair.profiles.artifact.expected_answer import draw_inputs, find_deviation, make_answer
from veltair.profiles.artifact.manifest import ExpectedAnswer, ExpectedOutput, Manifest, PackedLocation, Port
from veltair.profiles.artifact.strings import Strings

PORTS = (
    Port("x", "float32", (-1, 500)),
    Port("ids", "int64", (-1, 200), low=-3, high=4),
    Port("whole", "int64", (-1, 4), low=-(1 << 63), high=(1 << 63) - 1),
    Port("mask", "int32", (-1, 50)),
    Port("flags", "bool", (-1, 50)),
    Port("from_seven", "int64", (-1, 3), low=7),
    Port("raw", "int64", (-1, 300), locations=(PackedLocation(0, 0),)),
    *(Port(name, "string", (-1, 1), max_bytes=most, separator=",") for name, most in (("text", 40), ("letter", 1))),
)


def drawn() -> dict[str, NDArray[Any] | Strings]:
    return draw_inputs(make_manifest(inputs=PORTS))


def test_inputs_are_what_a_model_takes() -> None:
    found = drawn()
    arrays = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
    assert {port.name: (str(arrays[port.name].dtype), arrays[port.name].shape) for port in PORTS[:7]} == {
        port.name: (port.dtype, (1, port.shape[1])) for port in PORTS[:7]
    }
    assert abs(arrays["x"].mean()) < 0.2 and 0.8 < arrays["x"].std() < 1.2
    assert set(arrays["ids"].ravel().tolist()) == set(range(-3, 5))
    assert set(arrays["mask"].ravel().tolist()) == {0, 1} and set(arrays["flags"].ravel().tolist()) == {False, True}
    assert (arrays["whole"] < 0).any() and (arrays["whole"] > 0).any()
    assert arrays["from_seven"].tolist() == [[7, 7, 7]]
    assert arrays["raw"].min() == 0 and (arrays["raw"] < 1000).any() and 1 << 32 < arrays["raw"].max() < 1 << 40
    text, letter = found["text"], found["letter"]
    assert isinstance(text, Strings) and isinstance(letter, Strings)
    assert 1 <= text.size <= 40 and letter.size == 1 and set(text.tolist()[0]) <= set(b"0123456789,")


def test_inputs_are_the_same_everywhere() -> None:
    """Artifacts hold answers to these inputs: to draw others would make all of them wrong."""
    digest = hashlib.sha256()
    for value in drawn().values():
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else b"".join(value.tolist()))
    assert digest.hexdigest() == "157d0ff71d0e0bb7c39351085e85bea15f2c7c76d74d147ea98fb168fc00550e"


def model(*dtypes: str, answer: ExpectedAnswer | None = None, **fields: Any) -> Manifest:
    ports = tuple(Port(f"y{i}", dtype, (-1, 4)) for i, dtype in enumerate(dtypes))
    return make_manifest(outputs=ports, answer=answer, **fields)


def numbers(*values: float, dtype: str = "float32") -> NDArray[Any]:
    return np.array([values], dtype)


def bf16(*values: float) -> NDArray[np.uint16]:
    return (numbers(*values).view(np.uint32) >> 16).astype(np.uint16)


def test_what_is_kept() -> None:
    """Values on which the versions agree; they differ by 0.1 % of 8, and four times that are allowed."""
    manifest = model("float32", "int64", tolerance=0.1)
    first = [numbers(8, 2, np.nan, 1), numbers(3, 1, 2, 0, dtype="int64")]
    second = [numbers(8, 2.008, np.nan, 4), numbers(3, 2, 1, 0, dtype="int64")]
    answer = make_answer(manifest, [first, second])
    assert answer.outputs == (ExpectedOutput((8, 2, None, None), 8), ExpectedOutput((3, None, None, 0), 3))
    assert answer.tolerance == pytest.approx(0.004, rel=1e-4)


def test_the_tolerance_is_never_above_the_artifacts_nor_too_small() -> None:
    same = [numbers(1, 2, 3, 4)]
    assert make_answer(model("float32", tolerance=0.1), [same]).tolerance == 1e-3
    assert make_answer(model("float32", tolerance=0.1, precision="bf16"), [same]).tolerance == 2e-2
    other = [numbers(1.3, 2, 3, 4)]
    assert make_answer(model("float32", tolerance=0.1), [same, other]).tolerance == 0.1


ANSWER = ExpectedAnswer(0.01, (ExpectedOutput((1.0, None, -2.0, 1e38), 2.0), ExpectedOutput((5, 6, 7, 8), 8)))


@pytest.mark.parametrize(
    ("floats", "integers", "says"),
    [
        (numbers(1, 0, -2, 1e38), (5, 6, 7, 8), ""),
        (numbers(1.019, 9e30, -1.981, 1.009e38), (5, 6, 7, 8), ""),
        (
            *(numbers(1, 0, -1.9, 1e38), (5, 6, 7, 8)),
            "output y0, code versions 3: found -1.9 at position 2, expected -2 (allowed: 0.01 of the largest value, 2)",
        ),
        (numbers(np.nan, 0, -2, 1e38), (5, 6, 7, 8), "found nan at position 0, expected 1 "),
        (numbers(1, 0, -2, 2e38), (5, 6, 7, 8), "found 2e+38 at position 3, expected 1e+38 "),
        (numbers(1, 3, -2, 1e38), (5, 6, 7, 8), "output y0, code versions 3: the largest value found is 3, expected 2"),
        (numbers(1, 0, -2, 1e38), (5, 6, 7, 9), "output y1, code versions 3: found 9 at position 3, expected 8 "),
    ],
)
def test_what_deviates(floats: NDArray[Any], integers: tuple[int, ...], says: str) -> None:
    manifest = model("float32", "int64", answer=ANSWER)
    found = find_deviation(manifest, [floats, numbers(*integers, dtype="int64")], version=3)
    assert says in found and bool(says) == bool(found)


def test_bfloat16_is_compared_by_its_values() -> None:
    manifest = model("uint16", tolerance=0.1, precision="bf16")
    held = msgspec.structs.replace(manifest, answer=make_answer(manifest, [[bf16(1, 2, 3, 4)]]))
    assert find_deviation(held, [bf16(1, 2, 3.03, 4)], 0) == ""
    assert "expected 3 " in find_deviation(held, [bf16(1, 2, 3.2, 4)], 0)


def test_without_an_answer_nothing_deviates() -> None:
    assert find_deviation(model("float32"), [numbers(1, 2, 3, 4)], 0) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ExpectedAnswer(0.1, ()), "the answer has 0 outputs, the model 1"),
        (ExpectedAnswer(0.1, (ExpectedOutput((1, 2), 2),)), "the answer has 2 values of output y, expected 4"),
    ],
)
def test_an_answer_that_does_not_fit_the_model(tmp_path: Any, answer: ExpectedAnswer, says: str) -> None:
    plain = written(tmp_path) | {"answer": msgspec.to_builtins(answer)}
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(plain))
    with pytest.raises(ArtifactError, match=says):
        load_artifact(tmp_path)
