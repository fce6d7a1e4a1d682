from __future__ import annotations

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor

from veltair.errors import ConfigError
from veltair.loadgen.client import ModelMetadata, RawFeature, TensorMetadata
from veltair.loadgen.payloads import DRAWN_BATCH_PAYLOADS, FIXED_BATCH_PAYLOADS, draw_payloads, encode_tensor
from veltair.loadgen.scenario import LogNormalSizes

DLRM = ModelMetadata(
    "dlrm", (TensorMetadata("dense", "FP32", (-1, 13)), TensorMetadata("ids", "INT64", (-1, 4))), {"ids": (10, 20)}
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_shapes_types_and_ranges_follow_the_metadata():
    payloads = draw_payloads(DLRM, (2, 5), rng())
    assert len(payloads) == DRAWN_BATCH_PAYLOADS
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
    assert len(first) == FIXED_BATCH_PAYLOADS
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a["dense"], b["dense"])
        assert (a["dense"] != c["dense"]).any()


@pytest.mark.parametrize("id_range", [(0, 0), (7, 7)])
def test_a_range_of_one_id_gives_that_id(id_range):
    meta = ModelMetadata("m", (TensorMetadata("ids", "INT32", (2, 3)),), {"ids": id_range})
    assert (draw_payloads(meta, None, rng())[0]["ids"] == id_range[0]).all()


def test_integers_without_a_range_are_zero():
    meta = ModelMetadata("m", (TensorMetadata("ids", "UINT8", (-1, 3)),))
    assert not draw_payloads(meta, 2, rng())[0]["ids"].any()


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [("FP16", "f2"), ("FP64", "f8"), ("BOOL", "?"), ("INT8", "i1"), ("UINT64", "u8"), ("BF16", "u2")],
)
def test_other_types(datatype, dtype):
    payload = draw_payloads(ModelMetadata("m", (TensorMetadata("x", datatype, (2, 50)),)), None, rng())[0]["x"]
    assert payload.dtype == np.dtype(dtype)


def test_bf16_is_the_upper_half_of_a_normal_float():
    bits = draw_payloads(ModelMetadata("m", (TensorMetadata("x", "BF16", (1000,)),)), None, rng())[0]["x"]
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all() and abs(values.std() - 1) < 0.1


@pytest.mark.parametrize(
    ("meta", "batch", "expected"),
    [
        (ModelMetadata("m", (TensorMetadata("x", "FP32", (1, 3)),)), 4, "fixed batch"),
        (ModelMetadata("m", (TensorMetadata("x", "FP32", (-1, -1)),)), None, "only the first dimension"),
        (ModelMetadata("m", (TensorMetadata("x", "FP8", (1,)),)), None, "cannot draw FP8"),
    ],
)
def test_what_cannot_be_drawn(meta, batch, expected):
    with pytest.raises(ConfigError, match=expected):
        draw_payloads(meta, batch, rng())


RAW = ModelMetadata(
    "ranker",
    (
        TensorMetadata("history", "BYTES", (-1, 1)),
        TensorMetadata("name", "BYTES", (-1, 1)),
        TensorMetadata("user", "INT64", (-1, 2)),
    ),
    features={"history": RawFeature(40, ";"), "name": RawFeature(8), "user": RawFeature()},
)


def test_raw_features_are_texts_that_fit_and_any_integers():
    payload = draw_payloads(RAW, 500, rng())[0]
    history, names, users = (payload[name] for name in ("history", "name", "user"))
    assert history.shape == names.shape == (500, 1) and users.shape == (500, 2)
    for texts, most in ((history, 40), (names, 8)):
        sizes = [len(text) for text in texts.ravel()]
        assert max(sizes) <= most and min(sizes) >= 1
        assert abs(np.mean(sizes) - most / 2) < most / 10
    assert all(text.isdigit() for text in names.ravel())
    tokens = b";".join(history.ravel().tolist()).split(b";")
    assert all(token.isdigit() or not token for token in tokens)
    assert len(set(tokens)) > 1000 and max(map(len, tokens)) <= 14  # two, where a row begins between separators
    assert users.min() > 0 and len(np.unique(users)) == 1000


def test_strings_go_out_as_tritonclient_reads_them():
    texts = draw_payloads(RAW, 7, rng())[0]["history"]
    assert deserialize_bytes_tensor(encode_tensor(texts)).tolist() == texts.ravel().tolist()


def sizes(batch, max_batch):
    meta = ModelMetadata("m", (TensorMetadata("x", "FP32", (-1, 1)),), max_batch=max_batch)
    return [p["x"].shape[0] for p in draw_payloads(meta, batch, rng())]


def test_log_normal_sizes():
    drawn = sizes(LogNormalSizes(), None)
    assert len(drawn) == DRAWN_BATCH_PAYLOADS
    assert abs(np.log(drawn).mean() - 5.1) < 0.1 and 0.1 < np.log(drawn).std() < 0.3
    assert max(sizes(LogNormalSizes(most=150), None)) == 150 > min(sizes(LogNormalSizes(most=150), None))
    assert max(sizes(LogNormalSizes(), 100)) == 100
    assert min(sizes(LogNormalSizes(log_mean=0, log_sigma=2), None)) == 1
