"""`MemoryBudget`: which models leave memory so that another one fits. It knows no clock and changes nothing itself.

The rule is *least normalized cost replacement* (LNC-R of Scheuermann, Shim and Vingralek, "WATCHMAN: A Data Warehouse
Intelligent Cache Manager", VLDB 1996, with K = 1). Of the models that may leave, the first is the one of the
least

    profit = rate of reference * time to come back / bytes,    rate of reference = 1 / (now - last use).

So a model leaves the earlier the longer it has been idle, the more memory it gives back, and the sooner it can be here
again. Between models of one kind that is the least recently used one. Those that turn out not to be needed, because a
larger one leaves as well, stay after all, the most valuable first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes of a model, of which those with the same digest share a part.

    >>> MemoryNeed("ab12", shared=100, own=20)
    MemoryNeed(digest='ab12', shared=100, own=20)
    """

    digest: str
    shared: int  # once for all models with this digest
    own: int


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model in memory: `ResidentModel(MemoryNeed("ab12", 100, 20), load_ns=800_000_000, used_ns=5)`."""

    need: MemoryNeed
    load_ns: int  # what it takes to bring it back
    used_ns: int  # when it was used last
    pinned: bool = False


def bytes_of(needs: Iterable[MemoryNeed]) -> int:
    """What models take together.

    >>> bytes_of([MemoryNeed("a", 100, 1), MemoryNeed("a", 100, 2), MemoryNeed("b", 50, 0)])
    153
    """
    own, shared = 0, {}
    for need in needs:
        own += need.own
        shared[need.digest] = need.shared
    return own + sum(shared.values())


class MemoryBudget(Generic[Key]):
    """What is in memory, by any key, within so many bytes.

    >>> budget = MemoryBudget[str](200)
    >>> budget.loaded("a", ResidentModel(MemoryNeed("a", 100, 0), load_ns=10, used_ns=0))
    >>> budget.loaded("b", ResidentModel(MemoryNeed("b", 100, 0), load_ns=10, used_ns=1))
    >>> budget.used("a", 2)
    >>> budget.leaving_for(MemoryNeed("c", 50, 0), busy=(), now_ns=3)
    ['b']
    >>> budget.leaving_for(MemoryNeed("c", 50, 0), busy=("a", "b"), now_ns=3) is None
    True
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._models: dict[Key, ResidentModel] = {}

    # Events

    def loaded(self, key: Key, model: ResidentModel) -> None:
        """A model is in memory."""
        self._models[key] = model

    def used(self, key: Key, time_ns: int) -> None:
        """A query of a model has come or ended. Does nothing for one that is not in memory."""
        if (model := self._models.get(key)) is not None and model.used_ns < time_ns:
            self._models[key] = replace(model, used_ns=time_ns)

    def grown(self, key: Key, own: int) -> None:
        """A model takes so many bytes of its own now."""
        model = self._models[key]
        self._models[key] = replace(model, need=replace(model.need, own=own))

    def left(self, key: Key) -> None:
        """A model is not in memory any more. Does nothing for one that was not."""
        self._models.pop(key, None)

    # Decisions

    @property
    def models(self) -> Mapping[Key, ResidentModel]:
        return self._models

    @property
    def bytes(self) -> int:
        """What all models take."""
        return bytes_of(model.need for model in self._models.values())

    def ever_fits(self, need: MemoryNeed) -> bool:
        """Whether there is room for it beside those that never leave."""
        pinned = [model.need for model in self._models.values() if model.pinned]
        return bytes_of([need, *pinned]) <= self.most_bytes

    def leaving_for(self, need: MemoryNeed, busy: Collection[Key], now_ns: int) -> list[Key] | None:
        """The models that have to leave for this one, the least valuable first; None where it does not fit even so.

        `busy` are those that must not leave now, besides the pinned ones.
        """
        staying, leaving = dict(self._models), list[Key]()
        while not self._fits(need, staying):
            sharing = Counter(model.need.digest for model in staying.values())
            free = [key for key, model in staying.items() if not model.pinned and key not in busy]
            if not free:
                return None
            leaving.append(min(free, key=lambda key: _profit(staying[key], sharing, now_ns)))
            del staying[leaving[-1]]
        for key in reversed(leaving):  # the most valuable first
            if self._fits(need, kept := {**staying, key: self._models[key]}):
                staying = kept
        return [key for key in leaving if key not in staying]

    def _fits(self, need: MemoryNeed, beside: Mapping[Key, ResidentModel]) -> bool:
        return bytes_of([need, *(model.need for model in beside.values())]) <= self.most_bytes


def _profit(model: ResidentModel, sharing: Mapping[str, int], now_ns: int) -> float:
    """What it is worth to keep the model, for each byte: LNC-R, which gives each of several sharers an equal part."""
    size = max(1.0, model.need.own + model.need.shared / sharing[model.need.digest])
    return max(1, model.load_ns) / (max(1, now_ns - model.used_ns) * size)


def first_residents(needs: Sequence[tuple[Key, MemoryNeed]], most_bytes: int) -> set[Key]:
    """Those that are in memory when the server starts: each in turn that fits beside the ones before it.

    >>> sizes = {"a": 60, "b": 50, "c": 40}
    >>> sorted(first_residents([(name, MemoryNeed(name, size, 0)) for name, size in sizes.items()], 100))
    ['a', 'c']
    """
    taken: dict[Key, MemoryNeed] = {}
    for key, need in needs:
        if bytes_of([*taken.values(), need]) <= most_bytes:
            taken[key] = need
    return set(taken)
