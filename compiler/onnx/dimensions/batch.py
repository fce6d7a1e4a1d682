"""The batch, a model's first dimension: whether a file leaves it open, and how large it may become."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import onnx

from veltair.errors import ModelError

MAX_BATCH = 32  # where neither the caller nor the model states one


def has_open_batch(proto: onnx.ModelProto, path: Path) -> bool:
    """Whether some input's first dimension is symbolic. Raises ModelError where another one is."""
    dynamic = False
    for value in proto.graph.input:
        where = f"{path}: input {value.name!r}"
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise ModelError(f"{where} is not a tensor with a shape")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            if axis:
                name = dim.dim_param
                raise ModelError(
                    f"{where}: dimension {axis} is symbolic ({name}); only the first may be, and one that queries "
                    f"choose: fix it (--dim {name}=EXTENT), or give its bounds (--dim {name}=LOW..HIGH)"
                )
            dynamic = True
    return dynamic


def greatest_batch(metadata: Mapping[str, str], asked: int | None, path: Path) -> int:
    """The limit of an open batch: the one that is asked, or the one that the file states. Raises ModelError."""
    if asked is not None and asked < 1:
        raise ModelError(f"{path}: expected a greatest batch of at least 1, got {asked}")
    if asked is not None:
        return asked
    stated = metadata.get("veltair.max_batch", str(MAX_BATCH))
    if not re.fullmatch(r"[1-9][0-9]{0,8}", stated):
        raise ModelError(f"{path}: metadata veltair.max_batch is {stated!r}; expected a whole number of at least 1")
    return int(stated)
