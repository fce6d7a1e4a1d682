"""Compares an artifact with ONNX Runtime at several extents of the dimension that queries choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from veltair.compiler.reference_model import ReferenceModel
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.artifact.dynamic_dimension import DynamicDimension
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.output_layout import read_numbers
from veltair.profiles.runtime.executor import Executor, aligned_zeros, open_buckets

Draw = Callable[[Port, int], NDArray[Any]]  # random values of an input at its greatest extent, for a batch
Record = Callable[[str, NDArray[Any], NDArray[Any], str], None]  # an output, what was found and expected, and where


def checked_extents(dimension: DynamicDimension) -> tuple[int, ...]:
    """The bounds, each bucket's extent, the one behind it, and one between.

    >>> checked_extents(DynamicDimension("seq", 1, 64, (64, 32, 8), {"ids": (1,)}))
    (1, 8, 9, 20, 32, 33, 48, 64)
    """
    found, before = {dimension.low}, dimension.low
    for extent in sorted(dimension.extents):
        found |= {extent, min(extent + 1, dimension.high)}
        if before > dimension.low or extent == dimension.high:
            found.add((before + extent) // 2)
        before = extent
    return tuple(sorted(found))


def compare_extents(found: Artifact, reference: ReferenceModel, draw: Draw, record: Record) -> tuple[int, ...]:
    """Run queries of several extents as they are served, and record each output. Returns the extents."""
    dimension = found.manifest.dimension
    assert dimension is not None
    executors = list(open_buckets(found))
    extents = checked_extents(dimension)
    for extent in extents:
        for batch in sorted({1, min(3, found.manifest.max_batch)}):
            feeds = _draw_query(found, dimension, extent, batch, draw)
            wanted = reference.plain_outputs(feeds, batch)
            executor = executors[dimension.bucket_of(extent)]
            outputs = _run(executor, dimension, feeds, extent, batch)
            for port, expected in zip(found.manifest.outputs, wanted, strict=True):
                record(port.name, outputs[port.name], expected, f"{dimension.name} {extent}, batch {batch}")
    return extents


def _draw_query(
    found: Artifact, dimension: DynamicDimension, extent: int, batch: int, draw: Draw
) -> dict[str, NDArray[Any]]:
    feeds = {}
    for port in found.manifest.client_inputs:
        value = dimension.first(port.name, draw(port, batch), extent).copy()
        if port.name in dimension.masks:
            value[..., 0] = 1
        feeds[port.name] = value
    return feeds


def _run(
    executor: Executor, dimension: DynamicDimension, feeds: Mapping[str, NDArray[Any]], extent: int, batch: int
) -> dict[str, NDArray[Any]]:
    manifest = executor.manifest
    arrays = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.input_tensors]
    InputLayout.of(manifest).fill(arrays, dimension.bring_to_bucket(feeds, extent), batch)
    outputs = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.output_tensors]
    executor.bind(batch, arrays, outputs).block(0, [0] * len(manifest.layers))()
    return dimension.cut(read_numbers(manifest, outputs), extent)
