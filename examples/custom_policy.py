"""A scheduling policy of your own in 40 lines, against the daemon's, in the simulator.

    python examples/custom_policy.py
    python examples/custom_policy.py --seeds 1     # one run of each policy instead of three

It is shortest job first with a fixed share of the machine: a query runs as one block on a quarter of the cores, and of
those that wait the one with the least work goes first. The simulator drives the same scheduler as the daemon, so a
policy that wins here can be served: put it into `scheduler/policies/` and name it in `by_name.py` there.
"""

from __future__ import annotations

import argparse

import veltair
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start


class ShortestFirst(Policy):
    """The waiting query with the least work alone starts on a quarter of the cores, when they are free."""

    def next_step(self, state: SchedulerState, now_ns: int) -> Start | None:
        if not state.free:
            return None
        cores = max(1, state.cores // 4)
        ready = next(iter(state.between_blocks()), None)  # its block was stopped: it has begun, so it goes on
        waiting = state.waiting.values() if state.head() else ()  # nobody may start while all workers are taken
        active = ready or min(
            waiting, key=lambda each: each.costs.time_ns(SOLO, cores, 0, each.costs.layers), default=None
        )
        if active is None or state.free < cores:
            return None
        return Start(active, active.next_block(SOLO, active.costs.layers, cores), SOLO)


POLICIES["shortest-first"] = ShortestFirst


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate a policy of your own beside the default one.")
    parser.add_argument("--seeds", type=int, default=3, help="runs, pooled (default: 3)")
    seeds = parser.parse_args().seeds
    print(veltair.simulate("medium", ["shortest-first", "fcfs", "veltair"], cores=64, seeds=seeds))


if __name__ == "__main__":
    main()
