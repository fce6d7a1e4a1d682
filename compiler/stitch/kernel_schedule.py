"""What the search chooses for a stitched kernel: `KernelSchedule`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """A point of the design space of stitched layers.

    >>> KernelSchedule(rows=4, scheme="buffer", unroll=2).columns
    0
    """

    rows: int  # units in a task
    scheme: str  # one of iteration_space.SCHEMES: which values are kept between the phases
    unroll: int  # vectors in a step
    columns: int = 0  # of a unit; 0: all
