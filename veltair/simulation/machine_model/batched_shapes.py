"""Models at larger batches: the shapes and the work of several queries that run as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.simulation.machine_model.layer_shapes import LayerShape, ModelShape
from veltair.simulation.machine_model.roofline import ModelWork
from veltair.types import ModelProfile

_LOOKUPS = {"embedding", "embedding_bag", "lookups"}  # their weights are the rows that are looked up


def timed_batch_sizes(most: int) -> list[int]:
    """Returns the batch sizes that the compiler would time: powers of two, and the greatest.

    >>> timed_batch_sizes(5)
    [1, 2, 4, 5]
    """
    return [*(1 << i for i in range((most - 1).bit_length())), most]


def batch_model(shape: ModelShape, batch: int) -> ModelShape:
    """Returns a model at a larger batch, named by model and batch.

    Weights are read once for all samples; computation and activations are `batch` times as much.
    """
    layers = tuple(_batch_layer(layer, batch) for layer in shape.layers)
    return replace(shape, model=f"{shape.model}@{batch}", layers=layers)


def _batch_layer(layer: LayerShape, batch: int) -> LayerShape:
    own = bool(layer.second)  # attention: each sample has a second operand of its own
    return replace(
        layer,
        flops=layer.flops * batch,
        inputs=layer.inputs * batch,
        outputs=layer.outputs * batch,
        extra=layer.extra * batch,
        second=layer.second * batch,
        weights=layer.weights * (batch if layer.op in _LOOKUPS else 1),
        m=layer.m * (1 if own else batch),
        groups=layer.groups * (batch if own else 1),
    )


def interpolate_work(by_batch: Sequence[tuple[ModelProfile, ModelWork]]) -> Iterator[tuple[int, ModelWork]]:
    """Yields the work at each batch size that a scheduler plans with: given, or interpolated between two given ones."""
    known = {profile.batch: work for profile, work in by_batch}
    for profile in interpolate_batches([profile for profile, _ in by_batch]):
        batch = profile.batch
        if batch in known:
            yield batch, known[batch]
        else:
            low, high = max(b for b in known if b < batch), min(b for b in known if b > batch)
            yield batch, _interpolate(known[low], known[high], (batch - low) / (high - low))


def _interpolate(low: ModelWork, high: ModelWork, share: float) -> ModelWork:
    """Interpolates linearly; the times of versions that a layer does not have stay infinite."""
    tables = {
        each.name: (1 - share) * getattr(low, each.name) + share * getattr(high, each.name)
        for each in fields(ModelWork)
        if each.name != "model"
    }
    return replace(low, **tables)
