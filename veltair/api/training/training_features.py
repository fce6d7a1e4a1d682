"""`features`: the feature columns of a description or an artifact, as a batch transform for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from veltair.api.training.raw_columns import raw_columns, rows_to_columns
from veltair.errors import ConfigError, DataError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact

if TYPE_CHECKING:
    from veltair.api.training.torch_batches import TorchBatches
    from veltair.compiler.features.training.feature_transform import ColumnValues

Paths = str | Path | Sequence[str | Path]
Batch = dict[str, "ColumnValues"]


def features(source: Artifact | str | Path) -> TrainingFeatures:
    """The feature columns of a description (a TOML file, docs/features.md) or of a compiled artifact, for training.

    ::

        columns = veltair.features("model.features.toml")
        for batch in columns.batches("day0.parquet", rows=4096, keep=("click",)):
            batch["user"].ids, batch["user"].offsets, batch["click"]

    Their code is compiled for this CPU, which takes seconds. Raises ModelError for a wrong description, ArtifactError
    for an artifact that is wrong or has no columns.
    """
    from veltair.compiler.features.description_file import load_description  # loads TVM's compiler
    from veltair.compiler.features.kept_columns import columns_of
    from veltair.compiler.features.training.feature_transform import FeatureTransform

    if isinstance(source, Artifact):
        description = columns_of(source)
    elif Path(source).is_dir():
        description = columns_of(load_artifact(Path(source)))
    else:
        description = load_description(Path(source))
    return TrainingFeatures(FeatureTransform(description))


class TrainingFeatures:
    """Call it with a batch; `features` makes it. What it gives: `FeatureTransform`.

    It may be used in forked processes and by several threads, and pickled: the other process compiles it again. ::

        columns = veltair.features("artifacts/ranker")
        columns({"user": [3, 7], "history": ["i1;i2", ""]})["history"].ids
        columns(record_batch)
    """

    def __init__(self, transform: Any) -> None:
        self.transform = transform  # a FeatureTransform
        self.names = tuple(column.name for column in transform.description.columns)

    def __call__(self, batch: Any, *, keep: Sequence[str] = (), where: str = "") -> Batch:
        """What each column gives for a batch, by its name.

        Args:
            batch: raw features: by name, numbers and texts (arrays, lists, `Strings`); or an Arrow record batch or
                table, or what exports one.
            keep: other columns of numbers, labels for one, that are passed on behind them.
            where: what the batch is, for messages.

        Raises DataError that names the column.
        """
        self._check_kept(keep)
        if isinstance(batch, Mapping):
            return self._from_mapping(batch, keep, where)
        from veltair.api.training.arrow_columns import arrow_columns, check_columns, kept_column, record_batch

        records, read = record_batch(batch), self.transform.features
        check_columns(records, read, keep, where)
        kept = {name: kept_column(records, name, where) for name in keep}
        return self._run(arrow_columns(records, read, where), where) | kept

    def batches(
        self,
        paths: Paths,
        *,
        rows: int = 4096,
        keep: Sequence[str] = (),
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """What each column gives, batch after batch of files: Parquet, Arrow (.arrow, .feather), CSV and TSV.

        Args:
            rows: of a batch; the last one has what is left, unless `drop_last`.
            keep: see above.
            shard: which part of how many: row groups of Parquet, record batches of Arrow and whole texts are dealt in
                turn.

        Raises DataError that names file, row group and column. Needs pyarrow (`pip install 'veltair[features]'`).
        """
        self._check_kept(keep)
        return self._read(_paths(paths), rows, keep, shard, drop_last)

    def torch(
        self,
        paths: Paths,
        *,
        rows: int = 4096,
        keep: Sequence[str] = (),
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ) -> TorchBatches:
        """`batches` as an IterableDataset of torch tensors, which the workers of a DataLoader share.

        ::

            loader = DataLoader(columns.torch("day0.parquet", keep=("click",)), batch_size=None, num_workers=4)

        shard: the part of this rank among all.
        """
        from veltair.api.training.torch_batches import TorchBatches

        self._check_kept(keep)
        return TorchBatches(self, _paths(paths), rows, tuple(keep), shard, drop_last)

    def collate(self, rows: Sequence[Mapping[str, Any]], keep: Sequence[str] = ()) -> dict[str, Any]:
        """Rows of any torch Dataset, each a mapping of raw features, as a batch of torch tensors.

        ::

            loader = DataLoader(dataset, batch_size=4096, collate_fn=partial(columns.collate, keep=("click",)))
        """
        from veltair.api.training.torch_batches import to_tensors

        names = [*(feature.name for feature in self.transform.features), *keep]
        return to_tensors(self(rows_to_columns(rows, names), keep=keep))

    def tensorflow(
        self,
        paths: Paths,
        *,
        rows: int = 4096,
        keep: Sequence[str] = (),
        shard: tuple[int, int] = (0, 1),
        drop_last: bool = False,
    ) -> Any:
        """`batches` as a `tf.data.Dataset`: bags are `tf.RaggedTensor`s, all else tensors.

        ::

            dataset = columns.tensorflow("day0.parquet", keep=("click",)).prefetch(2)
        """
        from veltair.api.training.tensorflow_batches import tensorflow_batches

        self._check_kept(keep)
        return tensorflow_batches(self, _paths(paths), rows, tuple(keep), shard, drop_last)

    def _read(
        self, paths: Sequence[Path], rows: int, keep: Sequence[str], shard: tuple[int, int], drop_last: bool
    ) -> Iterator[Batch]:
        try:
            from veltair.api.training.feature_files import FeatureFiles
        except ImportError as error:
            raise ConfigError(f"files are read with pyarrow: pip install 'veltair[features]' ({error})") from None
        for where, batch in FeatureFiles(paths, self.transform.features, keep).batches(rows, shard, drop_last):
            yield self(batch, keep=keep, where=where)

    def _from_mapping(self, batch: Mapping[str, Any], keep: Sequence[str], where: str) -> Batch:
        import numpy as np

        for name in keep:
            if name not in batch:
                raise DataError(f"{where}column {name!r} is missing")
        kept: dict[str, NDArray[Any]] = {name: np.array(batch[name]) for name in keep}
        return self._run(raw_columns(batch, self.transform.features, where), where) | kept

    def _run(self, raw: Mapping[str, Any], where: str) -> Batch:
        try:
            found: Batch = self.transform(raw)
        except DataError as error:
            raise DataError(f"{where}{error}") from None
        return found

    def _check_kept(self, keep: Sequence[str]) -> None:
        if isinstance(keep, str):
            raise ConfigError(f"keep: expected names of columns, got {keep!r}")
        if taken := next((name for name in keep if name in self.names), None):
            raise ConfigError(f"keep: {taken!r} is the name of a feature column already")


def _paths(paths: Paths) -> tuple[Path, ...]:
    return tuple(map(Path, [paths] if isinstance(paths, str | Path) else paths))
