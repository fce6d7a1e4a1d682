"""One event of the scheduler under a policy at 64 cores, mean over a short run.

    python -m bench.micro.decisions -o FILE.json

The run is that of `bench.paper.scheduling_cost`, which has percentiles and the cost of single decisions.
"""

from __future__ import annotations

from functools import partial

from bench.micro.runner import make_runner
from bench.paper.scheduling_cost import TimedScheduler, run

CORES, WORKERS, QUERIES, LOAD = 64, 16, 100, 0.6
POLICIES = ("fcfs", "veltair-full", "veltair")


def handle_events(policy: str) -> TimedScheduler:
    return run(policy, CORES, WORKERS, QUERIES, LOAD)


def time_events(loops: int, policy: str) -> float:
    """Seconds that `loops` runs spend in the scheduler, without the virtual machine around it."""
    return sum(sum(handle_events(policy).took_ns) for _ in range(loops)) / 1e9


def main() -> None:
    runner = make_runner("bench.micro.decisions")
    for policy in POLICIES:
        events = len(handle_events(policy).took_ns)
        runner.bench_time_func(f"event, {policy}", partial(time_events, policy=policy), inner_loops=events)


if __name__ == "__main__":
    main()
