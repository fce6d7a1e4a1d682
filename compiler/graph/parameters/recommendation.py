"""Parameters of layers of recommendation models: embedding bags and other lookups, sums of one-hot vectors and of
concatenated tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from veltair.compiler.graph.parameters.base import OUTSIDE_WORKLOAD, LayerParameters
from veltair.profiles.artifact.manifest import Storage


class Reduction(StrEnum):
    """What becomes of the rows of a bag."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class LookupFamily(StrEnum):
    """Families of lookups besides embedding bags of one length (Ember, section 2.2)."""

    WEIGHTED_SUM = "weighted"  # sums of rows times weights
    RAGGED_BAG = "ragged"  # sums, means or maxima of as many rows as each bag has, or of these times weights
    MESSAGE_PASSING = "messages"  # sums of neighbours' rows, weighed by their likeness to a row of its own
    KNOWLEDGE_GRAPH = "triples"  # scores of (head, relation, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParameters(LayerParameters):
    """Parameters of any layer that looks up rows of tables.

    >>> TableParameters(storage="int8", table_bytes=2_500_000).note
    'tables of 2.5 MB in int8'
    """

    storage: Storage = "fp32"  # how the rows lie in their tables
    table_bytes: int = field(default=0, metadata=OUTSIDE_WORKLOAD)  # of all tables

    @property
    def note(self) -> str:
        """The size of tables that are not in fp32."""
        return "" if self.storage == "fp32" else f"tables of {self.table_bytes / 1e6:.1f} MB in {self.storage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagParameters(TableParameters):
    """Parameters of "embedding_bag".

    >>> f"{EmbeddingBagParameters(reduce=Reduction.MEAN).reduce}"
    'mean'
    """

    reduce: Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupParameters(TableParameters):
    """Parameters of "lookups".

    >>> LookupParameters(family=LookupFamily.KNOWLEDGE_GRAPH, dim=32, norm=1).terms()["norm"]
    1
    """

    family: LookupFamily
    dim: int  # numbers of a row
    reduce: Reduction | None = None  # of weighted sums and ragged bags
    norm: int | None = None  # of knowledge graphs: L1 or L2
    padding: int | None = None  # of ragged bags: an id that counts as none


@dataclass(frozen=True, slots=True)
class SpmmParameters(LayerParameters):
    """Parameters of "spmm".

    >>> SpmmParameters(entries=1_335_586).terms()
    {'entries': 1335586}
    """

    entries: int  # of the sparse matrix


@dataclass(frozen=True, slots=True)
class BlockGatherParameters(LayerParameters):
    """Parameters of "block_gather".

    >>> BlockGatherParameters(picked=512, blocks=64).terms()
    {'picked': 512, 'blocks': 64}
    """

    picked: int  # ids of each sample
    blocks: int  # of each sample


@dataclass(frozen=True, slots=True)
class OneHotSumParameters(LayerParameters):
    """Parameters of "one_hot_sum".

    >>> OneHotSumParameters((5, 17), (1.0, 0.5)).depths
    (5, 17)
    """

    depths: tuple[int, ...]  # of each column
    scales: tuple[float, ...]  # of each column


@dataclass(frozen=True, slots=True)
class ConcatSumParameters(LayerParameters):
    """Parameters of "concat_sum".

    >>> ConcatSumParameters(0.5).terms()
    {'scale': 0.5}
    """

    scale: float
