"""`Arrivals`: queries that the front has handed over and the scheduler has not been told of yet."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from veltair.server.ipc.messages import InferQuery, TenantSpec

MOST_WAIT, MOST_WAIT_NS = 0.1, 2_000_000  # of a tenant's target, and at most: beyond that the front refuses the next
SMOOTHING = 0.1


class Arrival(NamedTuple):
    """A query, and the lane that it came by: `Arrival(infer_query, lane=0)`."""

    message: InferQuery
    lane: int | None  # None: it came as a message


class Arrivals:
    """First come, first served by tenant, and the tenants in turn: a flood of one does not hold up the others.

    A decision takes the engine time of its own, which no policy knows of. `too_long_ns` tells when a tenant's queries
    arrive faster than the engine decides.

    >>> specs = [TenantSpec(name, "/", "ab12", 10**7, 0.95, 1, batching=True) for name in "ab"]
    >>> arrivals = Arrivals(dict(enumerate(specs)))
    >>> for query, tenant in ((1, 0), (2, 0), (3, 0), (4, 1)):
    ...     arrivals.add(InferQuery(query, tenant, 0, 1, arrival_ns=0, deadline_ns=None), lane=None)
    >>> [arrivals.take().message.query for _ in range(len(arrivals))]
    [1, 4, 2, 3]
    """

    def __init__(self, tenants: Mapping[int, TenantSpec]) -> None:
        """`tenants`: by number, as they are now."""
        self._tenants = tenants
        self.taken: Counter[int] = Counter()  # how many `take` has handed out so far, by tenant
        self._queues: OrderedDict[int, deque[Arrival]] = OrderedDict()  # by tenant, the next one first; none is empty
        self._count = 0
        self._decision_ns = 0.0  # of the engine's time for a query, while queries wait

    def __len__(self) -> int:
        return self._count

    def add(self, message: InferQuery, lane: int | None) -> None:
        """A query has come; its place is by the time of its arrival."""
        queue = self._queues.get(message.tenant)
        if queue is None:
            queue = self._queues[message.tenant] = deque()
        at = len(queue)
        while at and queue[at - 1].message.arrival_ns > message.arrival_ns:
            at -= 1
        queue.insert(at, Arrival(message, lane))
        self._count += 1

    def waiting(self, tenant: int) -> int:
        """How many of the tenant's queries wait here."""
        return len(self._queues.get(tenant, ()))

    def take(self) -> Arrival:
        """The next one. Raises KeyError when there is none."""
        arrival = self._pop()
        self.taken[arrival.message.tenant] += 1
        return arrival

    def _pop(self) -> Arrival:
        tenant, queue = self._queues.popitem(last=False)
        arrival = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        self._count -= 1
        return arrival

    def hand_over(self, takes: Callable[[Arrival], bool]) -> bool:
        """Offer them in their order, those of a tenant until one is not taken. Returns whether all were."""
        stuck: list[int] = []
        while len(self._queues) > len(stuck):
            tenant, queue = next(each for each in self._queues.items() if each[0] not in stuck)
            if takes(queue[0]):
                self._queues.move_to_end(tenant, last=False)
                self._pop()
            else:
                stuck.append(tenant)
        return not stuck

    def __iter__(self) -> Iterator[Arrival]:
        return chain.from_iterable(self._queues.values())

    def remove(self, query: int) -> Arrival | None:
        """One whose client has left; None where it does not wait here."""
        for tenant, queue in self._queues.items():
            for arrival in queue:
                if arrival.message.query == query:
                    queue.remove(arrival)
                    if not queue:
                        del self._queues[tenant]
                    self._count -= 1
                    return arrival
        return None

    def decided(self, queries: int, elapsed_ns: int) -> None:
        """Learn that so many queries were decided in that time, while others waited."""
        self._decision_ns += (elapsed_ns / queries - self._decision_ns) * SMOOTHING

    def too_long_ns(self, tenant: int, each_ns: float | None = None) -> int:
        """How much longer the tenant's next query would wait than it may; 0 where it may. `each_ns`: what each before
        it takes; None: a decision."""
        queue = self._queues.get(tenant)
        if queue is None:
            return 0
        wait_ns = len(queue) * len(self._queues) * (self._decision_ns if each_ns is None else each_ns)
        return max(0, int(wait_ns - min(MOST_WAIT * self._tenants[tenant].qos_ns, MOST_WAIT_NS)))
