"""Batches of a model: what several queries that run as one ask of a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from veltair.scheduler.costs.batch_interpolation import interpolate_batches
from veltair.simulate.machine_model.layer_shapes import LayerShape, ModelShape
from veltair.simulate.machine_model.roofline import ModelWork
from veltair.types import ModelProfile

_LOOKUPS = {"embedding", "embedding_bag", "lookups"}  # whose weights are the rows that are asked for


def sizes(most: int) -> list[int]:
    """Batch sizes that a compiler would time: powers of two, and the greatest."""
    return [*(1 << i for i in range((most - 1).bit_length())), most]


def batched(shape: ModelShape, batch: int) -> ModelShape:
    """Named by model and batch. Weights are read once for all; what is computed and kept of activations is `batch`
    times as much."""
    return replace(shape, model=f"{shape.model}@{batch}", layers=tuple(_batched(each, batch) for each in shape.layers))


def _batched(layer: LayerShape, batch: int) -> LayerShape:
    own = bool(layer.second)  # a product with an operand of its own for each sample: attention
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


def works(by_batch: Sequence[tuple[ModelProfile, ModelWork]]) -> Iterator[tuple[int, ModelWork]]:
    """For each batch size that a scheduler plans with: those given, ascending, and those on the line between two."""
    known = {profile.batch: work for profile, work in by_batch}
    for profile in interpolate_batches([profile for profile, _ in by_batch]):
        batch = profile.batch
        if batch in known:
            yield batch, known[batch]
        else:
            low, high = max(b for b in known if b < batch), min(b for b in known if b > batch)
            yield batch, _between(known[low], known[high], (batch - low) / (high - low))


def _between(low: ModelWork, high: ModelWork, share: float) -> ModelWork:
    """Everything is linear in the batch; versions that a layer does not have stay infinite."""
    tables = {
        each.name: (1 - share) * getattr(low, each.name) + share * getattr(high, each.name)
        for each in fields(ModelWork)
        if each.name != "model"
    }
    return replace(low, **tables)
