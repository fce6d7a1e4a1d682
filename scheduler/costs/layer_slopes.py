"""The time of each layer over its work, for finding pivots: the layers that are steeper than a bound."""

from __future__ import annotations

from collections.abc import Sequence


class LayerSlopes:
    """Each layer's time over its work, and the next layer that is steeper.

    >>> LayerSlopes(time_ns=[10, 30, 10], work=[1, 1, 1]).next_above(0, time_ns=20, work=1)
    1
    """

    __slots__ = ("_layers", "_steeper", "_time_ns", "_work")

    def __init__(self, time_ns: Sequence[int], work: Sequence[int]) -> None:
        """Both by layer."""
        self._time_ns, self._work = time_ns, work
        self._layers = layers = len(work)
        self._steeper = [layers] * layers
        for layer in range(layers - 2, -1, -1):
            after = layer + 1
            while after < layers and time_ns[after] * work[layer] <= time_ns[layer] * work[after]:
                after = self._steeper[after]
            self._steeper[layer] = after

    def next_above(self, layer: int, time_ns: int, work: int) -> int:
        """The first layer from this one on that is steeper than `time_ns` over `work`; the number of layers if there is
        none. Exact: no division."""
        times, works, steeper, layers = self._time_ns, self._work, self._steeper, self._layers
        while layer < layers and times[layer] * work <= time_ns * works[layer]:
            layer = steeper[layer]
        return layer
