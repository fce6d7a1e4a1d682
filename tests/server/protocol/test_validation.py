"""Named tensors against a model's ports."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.errors import RequestError
from veltair.profiles.artifact.manifest import Port
from veltair.server.protocol.infer_request import NamedTensor, RequestedOutput
from veltair.server.protocol.tensor_values import tensor_values
from veltair.server.protocol.validation import InputValidator, priority_level, timeout_ns, validate_outputs

DENSE = Port("dense", "float32", (-1, 3))
IDS = Port("ids", "int64", (-1, 2), low=0, high=9)
FIXED = Port("image", "float32", (1, 2))


def dense(*shape: int, **change: Any) -> NamedTensor:
    fields = {"name": "dense", "datatype": "FP32", "shape": shape, "data": bytes(4 * int(np.prod(shape)))}
    return NamedTensor(**{**fields, **change})


def ids(values: Any, **change: Any) -> NamedTensor:
    array = np.array(values, "<i8")
    fields = {"name": "ids", "datatype": "INT64", "shape": array.shape, "data": array.tobytes()}
    return NamedTensor(**{**fields, **change})


def check(*tensors: NamedTensor, ports: tuple[Port, ...] = (DENSE, IDS)) -> dict[str, Any]:
    return InputValidator("dlrm", ports, 4).validate(tensors)


def test_arrays_come_by_name_without_a_copy() -> None:
    tensor_values = np.arange(6, dtype="<f4").tobytes()
    inputs = check(ids([[0, 9], [3, 4]]), dense(2, 3, data=tensor_values))
    assert list(inputs) == ["dense", "ids"]
    np.testing.assert_array_equal(inputs["dense"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert not inputs["dense"].flags.owndata and not inputs["dense"].flags.writeable
    np.testing.assert_array_equal(inputs["ids"], [[0, 9], [3, 4]])


@pytest.mark.parametrize("other", [3, 2.5, None, ["a"]])
def test_what_is_no_text_is_refused(other: object) -> None:
    """An application's own array of objects may have anything."""
    with pytest.raises(RequestError, match=f"input 's': expected texts or bytes, got {type(other).__name__}"):
        tensor_values(NamedTensor("s", "BYTES", (2,), [b"a", other]))  # type: ignore[list-item]


REFUSED = {
    "missing": ((dense(1, 3),), "input 'ids' is missing; it takes dense, ids"),
    "unknown": ((dense(1, 3), ids([[1, 2]]), dense(1, 3, name="other")), "no input 'other'; it takes dense, ids"),
    "twice": ((dense(1, 3), dense(1, 3), ids([[1, 2]])), "'dense' is given twice"),
    "dtype": ((dense(1, 3, datatype="FP64"), ids([[1, 2]])), "'dense' is FP32, got 'FP64'"),
    "strings": ((dense(1, 3, datatype="BYTES"), ids([[1, 2]])), "'dense' is FP32, got 'BYTES'"),
    "no such datatype": ((dense(1, 3, datatype="F32"), ids([[1, 2]])), "'dense' is FP32, got 'F32'"),
    "rank": ((dense(3), ids([[1, 2]])), r"shape \[1…4, 3\], got \[3\]"),
    "scalar": ((dense(data=b""), ids([[1, 2]])), r"shape \[1…4, 3\], got \[\]"),
    "dimension": ((dense(1, 4), ids([[1, 2]])), r"shape \[1…4, 3\], got \[1, 4\]"),
    "batch 0": ((dense(0, 3), ids(np.empty((0, 2)))), r"shape \[1…4, 3\], got \[0, 3\]"),
    "batch 5": ((dense(5, 3), ids(np.zeros((5, 2)))), r"shape \[1…4, 3\], got \[5, 3\]"),
    "negative": ((dense(1, 3, shape=(-1, -3)), ids([[1, 2]])), r"got \[-1, -3\]"),
    "overflow": ((dense(1, 3, shape=(2**63, 2**63)), ids([[1, 2]])), "shape"),
    "very high rank": ((dense(1, 3, shape=(1,) * 5000), ids([[1, 2]])), r"1, 1, …\]"),
    "two batches": ((dense(1, 3), ids([[1, 2], [3, 4]])), "'ids' has batch 2, 'dense' has 1"),
    "bytes short": ((dense(1, 3, data=bytes(11)), ids([[1, 2]])), "takes 12 bytes, got 11"),
    "bytes long": ((dense(1, 3, data=bytes(13)), ids([[1, 2]])), "takes 12 bytes, got 13"),
    "id -1": ((dense(2, 3), ids([[1, 2], [3, -1]])), r"'ids' has -1 at \[1, 1\]; ids go from 0 to 9"),
    "id past the end": ((dense(2, 3), ids([[1, 10], [3, -1]])), r"has 10 at \[0, 1\]"),
    "id of int64's limits": ((dense(1, 3), ids([[2**63 - 1, -(2**63)]])), r"has 9223372036854775807 at \[0, 0\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    tensors, message = REFUSED[case]
    with pytest.raises(RequestError, match=message):
        check(*tensors)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 11), min_size=2, max_size=2))
def test_exactly_the_ids_in_range_pass(values: list[int]) -> None:
    fits = all(0 <= value <= 9 for value in values)
    if fits:
        assert check(dense(1, 3), ids([values]))["ids"].tolist() == [values]
    else:
        with pytest.raises(RequestError, match="ids go from 0 to 9"):
            check(dense(1, 3), ids([values]))


def test_a_fixed_shape_has_no_batch() -> None:
    assert check(dense(1, 2, name="image"), ports=(FIXED,))["image"].shape == (1, 2)
    with pytest.raises(RequestError, match=r"shape \[1, 2\], got \[2, 2\]"):
        check(dense(2, 2, name="image"), ports=(FIXED,))


def test_outputs() -> None:
    ports = (Port("a", "float32", (-1, 1)), Port("b", "float32", (-1, 1)))
    assert validate_outputs("m", ports, ()) == ("a", "b")
    assert validate_outputs("m", ports, (RequestedOutput("b", True), RequestedOutput("a", True))) == ("b", "a")
    with pytest.raises(RequestError, match="no output 'c'; it gives a, b"):
        validate_outputs("m", ports, (RequestedOutput("c", True),))
    with pytest.raises(RequestError, match="twice"):
        validate_outputs("m", ports, (RequestedOutput("a", True), RequestedOutput("a", False)))


def test_timeout_is_in_microseconds() -> None:
    assert timeout_ns({"timeout": 1500}) == 1_500_000
    assert timeout_ns({"timeout": "1500"}) == 1_500_000
    assert timeout_ns({"timeout": 0}) is None
    assert timeout_ns({}) is None
    levels = [priority_level({"priority": priority}) for priority in (0, 1, "2", 4, 5, 6, 2**64 - 1)]
    assert (priority_level({}), levels) == (3, [3, 1, 2, 4, 5, 5, 5])


@pytest.mark.parametrize("value", [-1, True, 1.5, "soon", "-3", 2**70])
def test_odd_timeouts_and_priorities(value: Any) -> None:
    with pytest.raises(RequestError, match="timeout"):
        timeout_ns({"timeout": value})
    with pytest.raises(RequestError, match="priority"):
        priority_level({"priority": value})


def test_inputs_behind_the_first_are_checked_as_it_is() -> None:
    """Raw numbers of the batch that the first one set are taken without a second look; all others get one."""
    inputs = check(dense(2, 3), ids([[0, 9], [3, 4]]))
    assert inputs["ids"].tolist() == [[0, 9], [3, 4]]
    faults: list[tuple[dict[str, Any], str]] = [
        ({"data": b"1" * 31}, "INT64 of shape .2, 2. takes 32 bytes, got 31"),
        ({"shape": (4, 1)}, "has shape .1…4, 2., got .4, 1."),
        ({"shape": (1, 2), "data": bytes(16)}, "'ids' has batch 1, 'dense' has 2"),
        ({"datatype": "INT32"}, "is INT64, got 'INT32'"),
        ({"data": np.array([[0, 10], [0, 0]], "<i8").tobytes()}, r"has 10 at \[0, 1\]; ids go from 0 to 9"),
        ({"data": [b"text"]}, "expected INT64 data, got BYTES"),
    ]
    for change, says in faults:
        with pytest.raises(RequestError, match=says):
            check(dense(2, 3), ids([[0, 0], [0, 0]], **change))
