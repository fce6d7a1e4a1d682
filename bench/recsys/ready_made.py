"""A model with feature columns in a form that peers can run: lookups in the ONNX file, ids made beforehand.

ONNX has no hash and no token lists of varying length. A peer puts numbers into buckets itself; ids of hashed features
are ready-made, and each token list has as many ids as lists have tokens on average. Where the model holds the tables
itself, it gets the same ids as the raw features give. So a peer is spared splitting and hashing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.feature_description import ColumnInput, FeatureColumn, FeatureDescription
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.feature_tables import load_rows

Arrays = dict[str, NDArray[Any]]


def with_lookups(model: Path, description: FeatureDescription, out: Path) -> None:
    """Writes the model with lookups in front and its tables beside it; inputs that are ids stay as they are."""
    proto = onnx.load(str(model))
    made = [joined for joined in description.inputs if not description.gives_ids(joined)]
    nodes, inputs = [], []
    weights = [numpy_helper.from_array(np.array([1], np.int64), "lookups.axis")]
    weights += [
        numpy_helper.from_array(np.asarray(load_rows(table, description.path)), f"table.{table.name}")
        for table in description.tables
    ]
    for joined in made:
        for column in _columns(description, joined):
            inputs.append(helper.make_tensor_value_info(f"ready.{column.name}", *_port(description, column)))
            steps, edges = _lookup(description, column)
            nodes += steps
            weights += edges
        rows = [f"{name}.row" for name in joined.columns]
        nodes.append(helper.make_node("Concat", rows, [joined.name], axis=1))
    graph = proto.graph
    replaced = {joined.name for joined in made}
    kept = [value for value in graph.input if value.name not in replaced]
    parts = ([*nodes, *graph.node], graph.name, [*inputs, *kept], graph.output, [*weights, *graph.initializer])
    whole = helper.make_graph(*parts)
    joint = helper.make_model(whole, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    location = f"{out.name}.data"
    out.with_name(location).unlink(missing_ok=True)
    onnx.save(joint, str(out), save_as_external_data=True, location=location, size_threshold=1 << 20)


def ready_made(description: FeatureDescription, raw: Mapping[str, Any], batch: int) -> Arrays:
    """Returns inputs for a model of `with_lookups` from raw features: floats (batch,), arrays of bytes, integers."""
    random = np.random.default_rng(0)
    ids = tuple(joined for joined in description.inputs if description.gives_ids(joined))
    part = msgspec.structs.replace(description, inputs=ids, columns=_columns(description, *ids))
    found = reference_inputs(part, {name: v.ravel().tolist() if v.dtype.kind == "S" else v for name, v in raw.items()})
    made = [joined for joined in description.inputs if joined not in ids]
    for column in _columns(description, *made):
        feature, table = description.feature_of(column), description.table_of(column)
        if column.boundaries is not None or column.step == "copy":
            value = np.asarray(raw[feature.name], np.float32).reshape(batch, -1)
        elif table is None:
            value = random.standard_normal((batch, 1)).astype(np.float32)
        elif feature.kind == "tokens":
            separator = feature.separator.encode()
            tokens = float(np.mean([text.count(separator) + 1 for text in raw[feature.name].ravel()]))
            value = random.integers(0, table.rows, (batch, max(1, round(tokens))))
        else:
            value = random.integers(0, table.rows, batch)
        found[f"ready.{column.name}"] = value
    return found


def _columns(description: FeatureDescription, *inputs: ColumnInput) -> tuple[FeatureColumn, ...]:
    """The columns that make up these inputs."""
    names = {name for joined in inputs for name in joined.columns}
    return tuple(column for column in description.columns if column.name in names)


def _lookup(
    description: FeatureDescription, column: FeatureColumn
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Returns the nodes from a column's ready-made input to its row, and the constants that they need."""
    name, table = column.name, f"table.{column.table}"
    if column.table is None:
        return [helper.make_node("Identity", [f"ready.{name}"], [f"{name}.row"])], []
    if column.boundaries is not None:
        edges = np.array(column.boundaries, np.float32)[None]
        return [
            helper.make_node("GreaterOrEqual", [f"ready.{name}", f"{name}.edges"], [f"{name}.over"]),
            helper.make_node("Cast", [f"{name}.over"], [f"{name}.count"], to=TensorProto.INT32),
            helper.make_node("ReduceSum", [f"{name}.count", "lookups.axis"], [f"{name}.ids"], keepdims=0),
            helper.make_node("Gather", [table, f"{name}.ids"], [f"{name}.row"]),
        ], [numpy_helper.from_array(edges, f"{name}.edges")]
    if description.feature_of(column).kind != "tokens":
        return [helper.make_node("Gather", [table, f"ready.{name}"], [f"{name}.row"])], []
    if column.combiner == "sum":
        step = helper.make_node("ReduceSum", [f"{name}.rows", "lookups.axis"], [f"{name}.row"], keepdims=0)
    else:
        step = helper.make_node("ReduceMean", [f"{name}.rows"], [f"{name}.row"], axes=[1], keepdims=0)
    return [helper.make_node("Gather", [table, f"ready.{name}"], [f"{name}.rows"]), step], []


def _port(description: FeatureDescription, column: FeatureColumn) -> tuple[int, list[Any]]:
    """Element type and shape of a column's ready-made input."""
    feature = description.feature_of(column)
    if column.boundaries is not None or column.table is None:
        return TensorProto.FLOAT, ["n", description.width_of(column) if column.table is None else 1]
    return TensorProto.INT64, ["n", f"{column.name}.tokens"] if feature.kind == "tokens" else ["n"]
