"""Remote fusion (FusionStitching 5.2, figure 5): small patterns that do not depend on each other share a kernel.

A virtual vertex is the producer of every small pattern, and PatternReduction finds the best groups that begin with it:
the patterns are halved until few are left, and of each half's groups, and of their unions, the best are kept. The best
group of all becomes a kernel, and the others are grouped again. To keep that linear in the patterns, it is done for
stretches of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from typing import TypeAlias, TypeVar

Group: TypeAlias = tuple[int, ...]  # places of patterns in a stretch, ascending
Members = TypeVar("Members", bound=Collection[int])

TOP = 3  # groups kept of each half
FEW = 2  # patterns whose combinations are all tried
LARGEST = 8  # patterns in a kernel
STRETCH = 32  # patterns of a plan that are grouped together


def group_patterns(needs: Sequence[int], is_small: Sequence[bool], gain: Callable[[Group], float]) -> list[Group]:
    """Groups of the patterns of a stretch, every one in exactly one group, in an order in which they can run.

    needs: for each pattern, the patterns of the stretch that it depends on, a bit each.
    is_small: whether a pattern may share a kernel. gain: time that a group saves as one kernel.

    >>> group_patterns([0, 1, 0], [True] * 3, lambda group: len(group) - 1)
    [(0,), (1, 2)]
    """
    groups: list[Group] = [(i,) for i in range(len(needs))]
    left = [i for i, small in enumerate(is_small) if small]
    while len(left) > 1:
        found = [group for group in _reduce(left, needs, gain) if len(group) > 1]
        merged = next((m for group in found if (m := _merged(groups, group, needs)) is not None), None)
        if merged is None:
            break
        groups = merged
        taken = {i for group in groups if len(group) > 1 for i in group}
        left = [i for i in left if i not in taken]
    return groups


def _reduce(left: Sequence[int], needs: Sequence[int], gain: Callable[[Group], float]) -> list[Group]:
    """PatternReduction below the virtual vertex: the best groups of some patterns, best first."""
    if len(left) <= FEW:
        return _best(chain.from_iterable(combinations(left, n) for n in range(1, len(left) + 1)), needs, gain)
    half = len(left) // 2
    one, other = (_reduce(part, needs, gain) for part in (left[:half], left[half:]))
    return _best([*one, *other, *((*a, *b) for a, b in product(one, other))], needs, gain)


def _best(groups: Iterable[Group], needs: Sequence[int], gain: Callable[[Group], float]) -> list[Group]:
    """The groups that gain most, of those that are one kernel: small enough and of independent patterns."""
    fitting = (g for g in dict.fromkeys(groups) if len(g) <= LARGEST and not as_bits(g) & union(needs, g))
    scored: Mapping[Group, float] = {group: gain(group) for group in fitting}
    return sorted((g for g in scored if scored[g] >= 0), key=lambda g: -scored[g])[:TOP]


def _merged(groups: Sequence[Group], new: Group, needs: Sequence[int]) -> list[Group] | None:
    """The groups with some patterns in a new one, in an order in which they can run; None where they cannot."""
    return runnable_order([*(g for g in groups if not set(g) & set(new)), new], needs)


def runnable_order(groups: Iterable[Members], needs: Sequence[int]) -> list[Members] | None:
    """Disjoint groups of places in an order in which they can run; None where they wait for each other.

    needs: for each place, those that it depends on, a bit each.

    >>> runnable_order([(0, 3), (1, 2)], [0, 0, 0, 0b100]), runnable_order([(0, 3), (1, 2)], [0, 0b1, 0, 0b100])
    ([(1, 2), (0, 3)], None)
    """
    waiting = sorted(groups, key=min)
    waits = [union(needs, group) & ~as_bits(group) for group in waiting]
    done, ordered = 0, list[Members]()
    while waiting:
        at = next((at for at, needed in enumerate(waits) if not needed & ~done), None)
        if at is None:
            return None
        waits.pop(at)
        ready = waiting.pop(at)
        ordered.append(ready)
        done |= as_bits(ready)
    return ordered


def as_bits(places: Iterable[int]) -> int:
    """
    >>> as_bits([0, 3])
    9
    """
    return sum(1 << place for place in places)


def union(of: Sequence[int], places: Iterable[int]) -> int:
    """The bits that any of the places has."""
    found = 0
    for place in places:
        found |= of[place]
    return found
