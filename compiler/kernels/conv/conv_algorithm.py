"""The algorithms of a convolution on vectors, as points and tuning records name them."""

from __future__ import annotations

from enum import StrEnum


class ConvAlgorithm(StrEnum):
    """The value of `algorithm` in a point. A point without it is one on AMX tiles.

    >>> ConvAlgorithm("winograd").name
    'WINOGRAD'
    """

    DIRECT = "direct"
    GROUPED = "grouped"
    WINOGRAD = "winograd"
