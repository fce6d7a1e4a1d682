"""What a server's model configuration adds to the metadata of inputs: valid ids, the form of raw features."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from veltair.errors import ConfigError
from veltair.loadgen.client import ChosenDimension, ModelMetadata, RaggedBags, RawFeature, TensorMetadata

T = TypeVar("T")


def build_metadata(name: str, inputs: Sequence[TensorMetadata], parameters: Mapping[str, str]) -> ModelMetadata:
    """A model's metadata, from its inputs and the parameters of its configuration.

    Servers other than ours have none of the parameters that are read here. Raises ConfigError for malformed ones.
    """
    ranges = parse_id_ranges(parameters.get("id_range", "{}"))
    features = _read("features", parameters.get("features", "{}"), dict[str, RawFeature])
    max_batch = _read("max_batch", parameters["max_batch"], int) if "max_batch" in parameters else None
    text = parameters.get("dimension")
    dimension = None if text is None else _read("dimension", text, ChosenDimension)
    if dimension is not None and not 1 <= dimension.low <= dimension.high:
        raise ConfigError(f"the server's dimension: expected bounds from 1 on, got {text:.200}")
    bags = _read("bags", parameters.get("bags", "[]"), tuple[RaggedBags, ...])
    return ModelMetadata(name, tuple(inputs), ranges, features, max_batch, dimension, bags)


def parse_id_ranges(text: str) -> dict[str, tuple[int, int]]:
    """The `id_range` parameter, JSON {input: [low, high]}; both inclusive, null is an open end. Raises ConfigError."""
    try:
        ranges = {str(name): _range(low, high) for name, (low, high) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        ranges = {"": (0, -1)}
    if any(low > high for low, high in ranges.values()):
        raise ConfigError(f"the server's id_range: expected {{input: [low, high]}}, got {text[:200]}")
    return ranges


def _range(low: int | None, high: int | None) -> tuple[int, int]:
    """An open end becomes 0, or the other end where that is beyond 0."""
    if low is None:
        low = 0 if high is None else min(0, int(high))
    return int(low), max(0, int(low)) if high is None else int(high)


def _read(key: str, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the server's {key}: {error}, got {text[:200]}") from None
