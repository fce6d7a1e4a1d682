"""Batches of feature columns for `torch.utils.data`. Only this module imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from veltair.api.training.training_features import TrainingFeatures


class TorchBatches(IterableDataset):  # type: ignore[misc]  # torch has no types here
    """Batches of files as torch tensors, in numpy's memory; `TrainingFeatures.torch` makes it.

    The workers of a DataLoader deal the pieces of the files among themselves. To be given `batch_size=None`, since it
    yields whole batches.
    """

    def __init__(
        self,
        columns: TrainingFeatures,
        paths: Sequence[Path],
        rows: int,
        keep: Sequence[str],
        shard: tuple[int, int],
        drop_last: bool,
    ) -> None:
        super().__init__()
        self._columns, self._paths, self._rows, self._keep = columns, paths, rows, keep
        self._shard, self._drop_last = shard, drop_last

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, (part, parts) = get_worker_info(), self._shard
        if worker is not None:
            part, parts = part * worker.num_workers + worker.id, parts * worker.num_workers
        batches = self._columns.batches(
            self._paths, rows=self._rows, keep=self._keep, shard=(part, parts), drop_last=self._drop_last
        )
        return map(to_tensors, batches)


def to_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a batch as tensors, without a copy: the ids and offsets of a bag, and all else by itself."""
    return {
        name: type(value)(*map(torch.from_numpy, value)) if isinstance(value, tuple) else torch.from_numpy(value)
        for name, value in batch.items()
    }
