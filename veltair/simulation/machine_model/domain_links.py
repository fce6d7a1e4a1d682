"""The links of L3 domains to the rest of the machine, which blocks that lie in one domain share."""

from __future__ import annotations

from collections.abc import Mapping, Set


class DomainLinks:
    """What the running blocks would draw over the link of each domain.

    >>> links = DomainLinks(domains=2, gb_s=10.0)
    >>> links.draw(1, 8_000_000_000, {0: 0.5, 1: 0.5})
    >>> links.draw(2, 6_000_000_000, {0: 1.0})
    >>> links.pressure(1, {0: 0.5, 1: 0.5}), sorted(links.take_changed())
    (0.3, [0, 1])
    """

    def __init__(self, domains: int, gb_s: float) -> None:
        self._bytes_per_s = gb_s * 1e9  # of one link
        self._drawn = [0] * domains  # bytes per s; integers, so that sums stay exact
        self._of: dict[int, dict[int, int]] = {}  # by query, by domain
        self._changed: set[int] = set()

    def draw(self, query: int, demand: int, shares: Mapping[int, float]) -> None:
        """The query's block would draw `demand` bytes per s, by domain as its cores lie on them."""
        self.leave(query)
        self._of[query] = parts = {domain: int(demand * share) for domain, share in shares.items()}
        for domain, part in parts.items():
            self._drawn[domain] += part
        self._changed.update(parts)

    def leave(self, query: int) -> None:
        """The query's block has ended."""
        parts = self._of.pop(query, {})
        for domain, part in parts.items():
            self._drawn[domain] -= part
        self._changed.update(parts)

    def pressure(self, query: int, shares: Mapping[int, float]) -> float:
        """Returns what co-runners would draw over a block's links, relative to one link: the mean over its cores."""
        parts = self._of[query]
        others = sum(share * (self._drawn[domain] - parts[domain]) for domain, share in shares.items())
        return others / self._bytes_per_s

    def take_changed(self) -> Set[int]:
        """Returns the domains whose links are drawn on otherwise than at the last call."""
        changed, self._changed = self._changed, set()
        return changed
