from __future__ import annotations

import pytest

from veltair.errors import ConfigError
from veltair.loadgen.client import ModelMetadata, RawFeature, TensorMetadata
from veltair.loadgen.model_config import build_metadata, parse_id_ranges

INPUTS = (TensorMetadata("s", "BYTES", (-1, 1)),)


def test_parameters_become_metadata():
    parameters = {
        "id_range": '{"user": [0, 9]}',
        "features": '{"s":{"max_bytes":64,"separator":";"},"user":{}}',
        "max_batch": "128",
        "qos_ms": "20.0",
    }
    features = {"s": RawFeature(64, ";"), "user": RawFeature()}
    assert build_metadata("m", INPUTS, parameters) == ModelMetadata("m", INPUTS, {"user": (0, 9)}, features, 128)
    assert build_metadata("m", INPUTS, {}) == ModelMetadata("m", INPUTS)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("features", "[]"),
        ("features", '{"s":{"max_bytes":0}}'),
        ("features", '{"s":{"separator":"ab"}}'),
        ("features", "{"),
        ("max_batch", "many"),
        ("max_batch", ""),
    ],
)
def test_broken_parameters(key, text):
    with pytest.raises(ConfigError, match=f"the server's {key}"):
        build_metadata("m", INPUTS, {key: text})


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
