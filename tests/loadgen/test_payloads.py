from __future__ import annotations

import numpy as np
import pytest

from veltair.errors import ConfigError
from veltair.loadgen.contract import ModelMeta, TensorMeta
from veltair.loadgen.payloads import FEW, MANY, draw_payloads, parse_id_ranges

DLRM = ModelMeta(
    "dlrm", (TensorMeta("dense", "FP32", (-1, 13)), TensorMeta("ids", "INT64", (-1, 4))), {"ids": (10, 20)}
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_shapes_types_and_ranges_follow_the_metadata():
    payloads = draw_payloads(DLRM, (2, 5), rng())
    assert len(payloads) == MANY
    sizes = {p["dense"].shape[0] for p in payloads}
    assert sizes == {2, 3, 4, 5}
    for p in payloads:
        n = p["dense"].shape[0]
        assert p["dense"].shape == (n, 13) and p["dense"].dtype == np.float32
        assert p["ids"].shape == (n, 4) and p["ids"].dtype == np.int64
    ids = np.concatenate([p["ids"].ravel() for p in payloads])
    assert set(ids.tolist()) == set(range(10, 21))
    values = np.concatenate([p["dense"].ravel() for p in payloads])
    assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.1


def test_the_seed_decides():
    first, again, other = (draw_payloads(DLRM, 3, rng(seed)) for seed in (1, 1, 2))
    assert len(first) == FEW
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a["dense"], b["dense"])
        assert (a["dense"] != c["dense"]).any()


@pytest.mark.parametrize("id_range", [(0, 0), (7, 7)])
def test_a_range_of_one_id_gives_that_id(id_range):
    meta = ModelMeta("m", (TensorMeta("ids", "INT32", (2, 3)),), {"ids": id_range})
    assert (draw_payloads(meta, None, rng())[0]["ids"] == id_range[0]).all()


def test_integers_without_a_range_are_zero():
    meta = ModelMeta("m", (TensorMeta("ids", "UINT8", (-1, 3)),))
    assert not draw_payloads(meta, 2, rng())[0]["ids"].any()


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [("FP16", "f2"), ("FP64", "f8"), ("BOOL", "?"), ("INT8", "i1"), ("UINT64", "u8"), ("BF16", "u2")],
)
def test_other_types(datatype, dtype):
    payload = draw_payloads(ModelMeta("m", (TensorMeta("x", datatype, (2, 50)),)), None, rng())[0]["x"]
    assert payload.dtype == np.dtype(dtype)


def test_bf16_is_the_upper_half_of_a_normal_float():
    bits = draw_payloads(ModelMeta("m", (TensorMeta("x", "BF16", (1000,)),)), None, rng())[0]["x"]
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all() and abs(values.std() - 1) < 0.1


@pytest.mark.parametrize(
    ("meta", "batch", "expected"),
    [
        (ModelMeta("m", (TensorMeta("x", "FP32", (1, 3)),)), 4, "fixed batch"),
        (ModelMeta("m", (TensorMeta("x", "FP32", (-1, -1)),)), None, "only the first dimension"),
        (ModelMeta("m", (TensorMeta("x", "BYTES", (1,)),)), None, "cannot draw BYTES"),
    ],
)
def test_what_cannot_be_drawn(meta, batch, expected):
    with pytest.raises(ConfigError, match=expected):
        draw_payloads(meta, batch, rng())


def test_id_ranges():
    assert parse_id_ranges('{"a": [0, 9], "b": [5, 5]}') == {"a": (0, 9), "b": (5, 5)}


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ("[2, null]", (2, 2)),
        ("[-3, null]", (-3, 0)),
        ("[null, 4]", (0, 4)),
        ("[null, -4]", (-4, -4)),
        ("[null, null]", (0, 0)),
    ],
)
def test_an_open_id_range_is_closed_within_it(given, drawn):
    assert parse_id_ranges(f'{{"a": {given}}}') == {"a": drawn}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"a": [1]}', '{"a": [3, 1]}', '{"a": ["x", 2]}', "null"])
def test_broken_id_ranges(text):
    with pytest.raises(ConfigError, match="id_range"):
        parse_id_ranges(text)
