"""Joins a feature description and an ONNX model: layers of columns give some of the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from numpy.typing import NDArray

from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features.column_ranges import id_range
from veltair.compiler.features.feature_description import ColumnInput, FeatureDescription
from veltair.compiler.features.feature_layout import FeatureLayout
from veltair.compiler.features.from_onnx.joined_inputs import join_inputs
from veltair.compiler.features.index_ranges import IndexRange
from veltair.compiler.features.kernel.columns_kernel import columns_layer
from veltair.compiler.features.table_store import TableStore
from veltair.compiler.features.text_graphs.text_layer import text_layer
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.errors import ModelError


@dataclass(frozen=True, slots=True)
class FeatureModel:
    """An ONNX model, and the layers of columns that stand before it; `join_features` makes one.

    ::

        joined = join_features(model, load_description(Path("features.toml")))
        joined.layers  # one for each input of the description
    """

    model: OnnxModel  # without the inputs that columns give
    description: FeatureDescription
    layout: FeatureLayout
    tables: Mapping[str, NDArray[Any]]  # rows of the description's tables, as they are stored
    layers: tuple[LayerSpec, ...]  # also that of the texts that no column takes
    bounds: Mapping[str, tuple[int, int]]  # by tensor: the least and the greatest id that the layers give


def join_features(
    model: OnnxModel, given: FeatureDescription | None, storage: TableStorage | None = None
) -> FeatureModel | None:
    """The model with the columns of a description and of the file's own operators; None where there are none.

    `storage`: how rows of tables are stored, float32 by default. Raises ModelError where the description's inputs are
    not the model's.
    """
    model = join_inputs(model)
    own = model.columns
    description = _merge_descriptions(own.description, given) if own and given else own.description if own else given
    if description is None:
        return None
    known = {port.name: port for port in model.inputs}
    texts = own.texts if own else None
    made = {joined.name for joined in description.inputs} | {spec.name for spec in (texts.outputs if texts else ())}
    by_name = {column.name: column for column in description.columns}
    bounds: dict[str, tuple[int, int]] = {}
    for joined in description.inputs:
        where = f"{description.path}: input {joined.name!r}"
        if joined.name not in known:
            raise ModelError(f"{where}: the model {model.path} takes {', '.join(known)}")
        width, port = sum(description.width_of(by_name[name]) for name in joined.columns), known[joined.name]
        gives = ("int64", "int32") if description.gives_ids(joined) else ("float32",)
        if all(by_name[name].gives_counts for name in joined.columns):
            gives = (*gives, "float32")
        if port.dtype not in gives or port.shape[:1] != (-1,) or product_of(port.shape[1:]) != width:
            raise ModelError(
                f"{where}: its columns give {' or '.join(gives)} [-1, {width}], the model {model.path} takes "
                f"{port.dtype} {list(port.shape)}"
            )
        bounds |= _id_bounds(joined, description, model, where)
    layout = FeatureLayout.from_description(description)
    left = tuple(port for port in model.inputs if port.name not in made)
    if twice := {port.name for port in left} & {feature.name for feature in layout.features}:
        raise ModelError(
            f"{description.path}: feature {min(twice)!r}: the model {model.path} has an input of that name"
        )
    store = TableStore.load(description, own.tables if own else None, storage)
    layers = list[LayerSpec]()
    for joined in description.inputs:
        port = known[joined.name]
        spec = columns_layer(description, joined, model.max_batch, store, port.dtype)
        (out,) = spec.outputs
        if out.shape != port.shape:
            spec = replace(spec, outputs=(replace(out, name=f"{out.name}/columns"),))
            if out.name in bounds:
                bounds[f"{out.name}/columns"] = bounds[out.name]
        layers.append(spec)
    if texts:
        layers.append(text_layer(texts, description, model.max_batch))
    return FeatureModel(replace(model, inputs=left), description, layout, store.tables, tuple(layers), bounds)


def _id_bounds(
    joined: ColumnInput, description: FeatureDescription, model: OnnxModel, where: str
) -> dict[str, tuple[int, int]]:
    """The least and the greatest id of an input of ids. Raises ModelError where a table of the model is too short."""
    ids = [column for column in description.columns if column.name in joined.columns and column.gives_ids]
    if not ids:
        return {}
    ranges = [id_range(column) for column in ids]
    for node in model.nodes:
        if node.op_type == "Gather" and node.input[1] == joined.name:
            rows = model.values[node.input[0]].shape[attribute(node, "axis", 0)]
            for column, found in zip(ids, ranges, strict=True):
                if not found.is_within(IndexRange(0, rows)):
                    raise ModelError(
                        f"{where}: column {column.name!r} gives ids from {found.low} to {found.high - 1}, node "
                        f"{node.name!r} of the model looks them up in {rows} rows"
                    )
    return {joined.name: (min(r.low for r in ranges), max(r.high for r in ranges) - 1)}


def _merge_descriptions(one: FeatureDescription, other: FeatureDescription) -> FeatureDescription:
    """One description of the columns of both. Raises ModelError where both use a name."""
    parts = ("features", "columns", "inputs", "tables")
    for part in parts:
        names = {entry.name for entry in getattr(one, part)}
        if twice := sorted(entry.name for entry in getattr(other, part) if entry.name in names):
            raise ModelError(f"{other.path}: {part}: {twice[0]!r} is the name of something in {one.path} already")
    joined = {part: (*getattr(one, part), *getattr(other, part)) for part in parts}
    return msgspec.structs.replace(other, texts=one.texts, **joined)
