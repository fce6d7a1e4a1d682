"""A feature description and an ONNX model as one: the columns' layers give some of the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from numpy.typing import NDArray

from veltair.compiler.columns.description import Description
from veltair.compiler.columns.kernel import layer
from veltair.compiler.columns.layout import Layout
from veltair.compiler.columns.store import Store
from veltair.compiler.embedding.tables import Tables
from veltair.compiler.ir import LayerSpec
from veltair.compiler.onnx_model import OnnxModel
from veltair.errors import ModelError


@dataclass(frozen=True, slots=True)
class Front:
    """What comes before a model, and what is left of it."""

    model: OnnxModel  # without the inputs that columns give
    description: Description
    layout: Layout
    tables: Mapping[str, NDArray[Any]]  # of the description, as they are stored
    layers: tuple[LayerSpec, ...]


def join(model: OnnxModel, given: Description | None, kept: Tables | None = None) -> Front | None:
    """What a description and the file's own operators put in front of the model, if anything.

    `kept`: how rows of tables are stored. Raises ModelError where the description's inputs are not the model's.
    """
    own = model.columns
    description = _both(own.description, given) if own and given else own.description if own else given
    if description is None:
        return None
    known = {port.name: port for port in model.inputs}
    made = {joined.name for joined in description.inputs}
    by_name = {column.name: column for column in description.columns}
    for joined in description.inputs:
        where = f"{description.path}: input {joined.name!r}"
        if joined.name not in known:
            raise ModelError(f"{where}: the model {model.path} takes {', '.join(known)}")
        width = sum(description.width(by_name[name]) for name in joined.columns)
        port = known[joined.name]
        if port.dtype != "float32" or port.shape != (-1, width):
            raise ModelError(
                f"{where}: its columns give float32 [-1, {width}], the model {model.path} takes {port.dtype} "
                f"{list(port.shape)}"
            )
    layout = Layout.of(description)
    left = tuple(port for port in model.inputs if port.name not in made)
    if twice := {port.name for port in left} & {feature.name for feature in layout.features}:
        raise ModelError(
            f"{description.path}: feature {min(twice)!r}: the model {model.path} has an input of that name"
        )
    store = Store.of(description, own.tables if own else None, kept)
    layers = tuple(layer(description, joined, model.max_batch, store) for joined in description.inputs)
    return Front(replace(model, inputs=left), description, layout, store.tables, layers)


def _both(one: Description, other: Description) -> Description:
    """The columns of both. Raises ModelError where they call two things by one name."""
    parts = ("features", "columns", "inputs", "tables")
    for part in parts:
        names = {entry.name for entry in getattr(one, part)}
        if twice := sorted(entry.name for entry in getattr(other, part) if entry.name in names):
            raise ModelError(f"{other.path}: {part}: {twice[0]!r} is the name of something in {one.path} already")
    return msgspec.structs.replace(other, **{part: (*getattr(one, part), *getattr(other, part)) for part in parts})
