"""What a policy is, and the steps that it may ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.types import LayerBlock, Record


class Start(Record, frozen=True):
    """Start this block now, on as many of its cores as are free (at least one is).

    `SchedulerState.join` before it makes a batch of queries that wait.
    """

    active: ActiveQuery
    block: LayerBlock
    level: int  # grid index: the block's versions are the best at it
    capped: bool = False  # its QoS share cannot be held on the cores that it may use


class Grow(Record, frozen=True):
    """Give a running block this many of the free cores on top."""

    active: ActiveQuery
    more: int


class Stop(Record, frozen=True):
    """End a running block at its next layer; the query stays, and goes on from there when it is started again."""

    active: ActiveQuery


class Reject(Record, frozen=True):
    """Give up a query that runs no block now, or a batch."""

    active: ActiveQuery
    reason: str


Step: TypeAlias = Start | Grow | Stop | Reject


class Policy(ABC):
    """Who gets cores next, and for which layers.

    After every event the state machine asks for steps, carrying each out, until there is none. All the rest, from
    core sets to cancelled queries, is the state machine's. A policy may keep state of its own, must read neither
    clock nor chance, starts and grows nothing where no core is free, and may leave a query waiting only while some
    block runs: nothing else is sure to bring another event.
    """

    @abstractmethod
    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        """None: nothing more to do until the next event."""

    # What happens between two questions, for those that want to know. The default is to ignore it (hence no B027).

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:  # noqa: B027
        """An admitted query waits from now on."""

    def block_ended(self, active: ActiveQuery, run: RunningBlock, stop: int, elapsed_ns: int) -> None:  # noqa: B027
        """A block ran up to layer `stop`, in `elapsed_ns` of execution alone."""

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:  # noqa: B027
        """However it ended: finished if `next_layer` is the number of layers and nothing was cancelled.

        Not told of those that are cancelled while the batch goes on for others.
        """
