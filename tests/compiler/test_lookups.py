"""Look-ups that do more than add up rows: from ONNX to one layer, equal to ONNX Runtime; and every version to numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import Arrays
from run_kernels import compile_ahead, run_and_compare
from test_sums import ROWS, drawn, operators

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.embedding.row_storage import STORAGES, encode_rows, storage_of
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import (
    EmbeddingBagParameters,
    LookupFamily,
    LookupParameters,
    Reduction,
)
from veltair.machine.isa import cpu_features

random = np.random.default_rng(9)
AXES: Arrays = {"one": np.array([1]), "last": np.array([-1])}
NODES: dict[str, list[Any]] = {
    "weighted sum": [
        ("Gather", "t a", "r", {}),
        ("Unsqueeze", "w last", "v", {}),
        ("Mul", "v r", "m", {}),
        ("ReduceSum", "m one", "y", {"keepdims": 0}),
    ],
    "weighted mean": [
        ("Gather", "t a", "r", {}),
        ("Unsqueeze", "w last", "v", {}),
        ("Mul", "r v", "m", {}),
        ("ReduceMean", "m", "y", {"axes": [1], "keepdims": 0}),
    ],
    "messages": [
        ("Gather", "t a", "near", {}),
        ("Gather", "t self", "h", {}),
        ("Unsqueeze", "h one", "own", {}),
        ("Mul", "near own", "p", {}),
        ("ReduceSum", "p last", "dot", {"keepdims": 1}),
        ("Sigmoid", "dot", "edge", {}),
        ("Mul", "edge near", "m", {}),
        ("ReduceSum", "m one", "y", {"keepdims": 0}),
    ],
}
GAP: list[Any] = [
    ("Gather", "t self", "h", {}),
    ("Gather", "u kind", "r", {}),
    ("Gather", "t other", "o", {}),
    ("Add", "r h", "s", {}),
    ("Sub", "s o", "gap", {}),
]
NODES["triples 1"] = [
    *GAP,
    ("Abs", "gap", "size", {}),
    ("ReduceSum", "size one", "d", {"keepdims": 0}),
    ("Neg", "d", "y", {}),
]
NODES["triples 2"] = [*GAP, ("ReduceL2", "gap", "d", {"axes": [1], "keepdims": 0}), ("Neg", "d", "y", {})]


def feeds() -> Arrays:
    return {
        "a": random.integers(0, 40, (ROWS, 11)),
        "w": drawn(ROWS, 11),
        "self": random.integers(0, 40, ROWS),
        "kind": random.integers(0, 5, ROWS),
        "other": random.integers(0, 40, ROWS),
    }


@pytest.mark.parametrize("name", NODES)
def test_each_is_one_layer(tmp_path: Path, name: str) -> None:
    read = {word for _, reads, *_ in NODES[name] for word in reads.split()}
    given = {key: value for key, value in feeds().items() if key in read}
    constants = {key: value for key, value in {**AXES, "t": drawn(40, 37), "u": drawn(5, 37)}.items() if key in read}
    assert operators(tmp_path, NODES[name], given, constants) == ["lookups"]


def test_rows_that_something_else_reads_are_left_to_others(tmp_path: Path) -> None:
    """The messages' likeness is read twice; the tails are of a third table."""
    twice = [*NODES["messages"][:-1], ("ReduceSum", "m one", "z", {"keepdims": 0}), ("Squeeze", "dot last", "q", {})]
    twice += [("ReduceSum", "q one", "k", {"keepdims": 1}), ("Add", "z k", "y", {})]
    given = {key: feeds()[key] for key in ("a", "self")}
    found = operators(tmp_path, twice, given, AXES | {"t": drawn(40, 16)})
    assert "lookups" not in found
    third = [("Gather", "v other", "o", {}) if node[2] == "o" else node for node in NODES["triples 2"]]
    given = {key: np.minimum(feeds()[key], 4) for key in ("self", "kind", "other")}
    found = operators(tmp_path, third, given, {"t": drawn(5, 16), "u": drawn(5, 16), "v": drawn(5, 16)})
    assert "lookups" not in found


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("family", ["weighted", "messages", "triples"])
def test_every_version_equals_numpy(family: str, mcpu: str) -> None:
    """Ids that are no rows read row 0."""
    far = np.array([-1, 40, 2**31, 2**40, -(2**63), 2**63 - 1, 3])
    inputs, values = [Activation("ids", "int64", (-1, 5))], [random.integers(0, 40, (ROWS, 5))]
    values[0][:, 2] = far
    parameters = LookupParameters(family=LookupFamily(family), dim=37, reduce=Reduction.MEAN, norm=1)
    weights = {"table0": drawn(40, 37)}
    if family == "weighted":
        inputs.append(Activation("w", "float32", (-1, 5)))
        values.append(drawn(ROWS, 5))
    elif family == "messages":
        inputs.append(Activation("selves", "int64", (-1,)))
        values.append(far)
    else:
        inputs = [Activation(name, "int64", (-1,)) for name in ("h", "r", "t")]
        values = [far, random.integers(0, 5, ROWS), far[::-1].copy()]
        weights["table1"] = drawn(5, 37)
    y = Activation("y", "float32", (-1,) if family == "triples" else (-1, 37))
    spec = LayerSpec("l", "lookups", tuple(inputs), (y,), weights, 1, 64, parameters)
    for point in compile_ahead(spec, SPACES["lookups"].points(spec, cpu_features())[:6], mcpu):
        error, _ = run_and_compare(spec, point, values, ROWS, mcpu)
        assert error < 1e-5, point


@pytest.mark.parametrize("storage", STORAGES)
def test_inspect_says_how_rows_are_stored(storage: str) -> None:
    """In the note of the layer, which is no term of its workload; rows in fp32 are not mentioned in either."""
    tables = [encode_rows(drawn(rows, 32), storage) for rows in (4000, 1000)]
    size = sum(table.nbytes for table in tables)
    parameters = EmbeddingBagParameters(reduce=Reduction.SUM, storage=storage_of(tables[0]), table_bytes=size)
    notes = {"fp32": "", "fp16": "tables of 0.3 MB in fp16", "int8": "tables of 0.2 MB in int8"}
    assert parameters.note == notes[storage]
    assert parameters.terms() == {"reduce": "sum"} | ({} if storage == "fp32" else {"storage": storage})
