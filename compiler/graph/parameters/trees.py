"""What a layer of decision trees computes besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.compiler.graph.parameters.base import LayerParameters


@dataclass(frozen=True, slots=True)
class TreesParameters(LayerParameters):
    """Parameters of "trees", whose weights are

    nodes (N, 4) int32: feature, bits of the threshold, node to go to where the row's feature is at most the threshold,
        and where it is not. With `mirrored`, a row has the negatives of its features behind them: NaN goes left where
        small features do by a comparison of the negatives the other way round. A leaf leads to itself both ways, and
        has in place of the threshold the bits of its weight, or with `leaf_rows` its row of `leaves`.
    roots, depths (trees,) int32: where each tree begins, and the steps to its deepest leaf
    targets (trees,) int32, or leaves (L, targets) float32: what the leaves of each tree add to, or all that a leaf adds
    base (targets,) float32: added at the end

    >>> TreesParameters(trees=100, targets=1, depth=6).strict
    False
    """

    trees: int
    targets: int  # numbers of a row of the result
    depth: int  # steps from a root to a leaf, at most
    strict: bool = False  # less than the threshold, in place of at most
    mirrored: bool = False  # some nodes send NaN where small features go
    leaf_rows: bool = False
    average: bool = False  # the sum is divided by the number of trees
