"""Batches of feature columns for `tf.data`. Only this module imports TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from veltair.api.training.training_features import TrainingFeatures


def tensorflow_batches(
    columns: TrainingFeatures,
    paths: Sequence[Path],
    rows: int,
    keep: Sequence[str],
    shard: tuple[int, int],
    drop_last: bool,
) -> Any:
    """A `tf.data.Dataset` of batches; `TrainingFeatures.tensorflow` says what they are."""

    def batches() -> Iterator[dict[str, Any]]:
        for batch in columns.batches(paths, rows=rows, keep=keep, shard=shard, drop_last=drop_last):
            yield {name: _tensor(value) for name, value in batch.items()}

    first = next(columns.batches(paths, rows=1, keep=keep), None)
    if first is None:  # files without rows
        return tf.data.Dataset.from_tensor_slices({name: [] for name in (*columns.names, *keep)})
    return tf.data.Dataset.from_generator(batches, output_signature={k: _signature(v) for k, v in first.items()})


def _tensor(value: Any) -> Any:
    return tf.RaggedTensor.from_row_splits(*value, validate=False) if isinstance(value, tuple) else value


def _signature(value: Any) -> Any:
    if isinstance(value, tuple):
        return tf.RaggedTensorSpec((None, None), tf.int64, ragged_rank=1)
    return tf.TensorSpec((None, *value.shape[1:]), value.dtype)
