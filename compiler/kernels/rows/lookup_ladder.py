"""Which points of Ember's ladder a look-up is tried at, and which of them is the default.

The ladder's coordinates are the level (emb-opt3 where a point names none), how many rows are fetched ahead, and whether
results are streamed past the caches. Rows that a cache holds already need not be fetched ahead: what is looked at in
vain costs a third and more of the time. Their distance is the shorter the nearer that cache is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.machine.topology import cache_bytes
from veltair.profiles.artifact.manifest import shape_at

HIGHEST = 3  # emb-opt3, of points without a level
LOWER = 2  # emb-opt2, which leads by rows of all segments; what is below has no queue of rows
STREAMED = "streamed"  # of the coordinate "stores"
FLOAT_BYTES = 4
COMPUTED = ("spmm", "block_gather")  # layers whose table is another layer's output
# Distances by where the tables lie, the default first.
IN_L2, IN_L3, IN_MEMORY = (0, 4, 8, 16, 32), (8, 4, 16, 0, 32), (16, 8, 32, 4, 0)


def order_distances(spec: LayerSpec, caches: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """All distances, in rows, the default first. caches: bytes by level; by default those of this machine. Tables are
    taken to lie in memory where no cache is known.

    >>> order_distances(LayerSpec("bag", "embedding_bag", (), (), {}, flops=0), {})
    (16, 8, 32, 4, 0)
    """
    caches = cache_bytes() if caches is None else caches
    computed = spec.inputs if spec.op in COMPUTED else ()
    held = sum(table.nbytes for table in spec.weights.values())
    held += FLOAT_BYTES * sum(prod(shape_at(each.shape, spec.max_batch)) for each in computed)
    return IN_L2 if held <= caches.get("L2", -1) else IN_L3 if held <= caches.get("L3", -1) else IN_MEMORY


def ladder_points(spec: LayerSpec, points: Sequence[Point], caches: Mapping[str, int] | None = None) -> list[Point]:
    """These points of emb-opt3, which look as they did before there were others; then the same at emb-opt2; then with
    streaming stores, where the results are whole cache lines and more than the L2 holds."""
    caches = cache_bytes() if caches is None else caches
    results = FLOAT_BYTES * sum(prod(shape_at(each.shape, spec.max_batch)) for each in spec.outputs)
    found = [*points, *({**point, "level": LOWER} for point in points)]
    if streams(spec) and results > caches.get("L2", results):
        found += [{**point, "stores": STREAMED} for point in points]
    return found


def streams(spec: LayerSpec) -> bool:
    """Whether rows of the results can be streamed: they are whole cache lines."""
    return all(len(each.shape) == 2 and each.shape[1] % LANES == 0 for each in spec.outputs)


def level_of(point: Point) -> int:
    return int(point.get("level", HIGHEST))


def is_streamed(point: Point) -> bool:
    return point.get("stores") == STREAMED
