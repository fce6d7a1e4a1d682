"""How many machines there are: by what tenants miss and by core time, as Ray's autoscaler asks for it."""

from typing import Any

import pytest
from ray.serve.config import AutoscalingContext

from veltair.ray.daemon_counts import read_counts
from veltair.ray.machine_load import LoadMeter
from veltair.ray.scaling import scale_by_slo

PAGE = """\
# TYPE veltair_slo_requests counter
veltair_slo_requests_total{{tenant="a",model="m"}} {requests}
# TYPE veltair_slo_misses counter
veltair_slo_misses_total{{tenant="a",model="m",cause="late"}} {misses}
veltair_slo_misses_total{{tenant="a",model="m",cause="refused"}} 1
# TYPE veltair_slo_objective_ratio gauge
veltair_slo_objective_ratio{{tenant="a",model="m"}} 0.9
# TYPE process_cpu_seconds counter
process_cpu_seconds_total{{role="worker",pid="1"}} {core_s}
process_cpu_seconds_total{{role="engine",pid="2"}} 1000
# TYPE veltair_model_resident gauge
veltair_model_resident{{tenant="a",model="m",version="1"}} 1
veltair_model_resident{{tenant="b",model="n",version="1"}} 0
"""


def context(
    loads: dict[str, tuple[float, float]],
    current: int,
    target: int | None = None,
    state: dict[str, Any] | None = None,
    most: int = 6,
) -> AutoscalingContext:
    """`loads`: core share and burn by replica."""
    metrics: dict[str, Any] = {
        "core_share": {name: share for name, (share, _) in loads.items()},
        "burn": {name: burn for name, (_, burn) in loads.items()},
    }
    unused: dict[str, Any] = dict.fromkeys(
        ("deployment_id", "deployment_name", "app_name", "total_num_requests", "total_queued_requests", "raw_metrics"),
    )
    unused |= dict.fromkeys(("last_scale_up_time", "last_scale_down_time", "current_time", "config"))
    return AutoscalingContext(
        current_num_replicas=current,
        target_num_replicas=target or current,
        running_replicas=[],
        aggregated_metrics=metrics,
        capacity_adjusted_min_replicas=2,
        capacity_adjusted_max_replicas=most,
        policy_state=state or {},
        **unused,
    )


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ({"x": (0.5, 0.0), "y": (0.6, 0.5)}, 2),  # in time, with time left
        ({"x": (0.9, 0.0), "y": (0.9, 0.0)}, 3),  # in time, but too busy for bursts
        ({"x": (0.5, 4.0), "y": (0.5, 0.0)}, 3),  # late
        ({"x": (0.1, 4.0), "y": (0.1, 0.0)}, 2),  # late, and more cores would not help
        ({"x": (1.0, 9.0), "y": (1.0, 9.0)}, 4),
        ({"x": (0.1, 0.0), "y": (0.1, 0.0)}, 2),  # never below the least
        ({"x": (1.0, 0.0)}, 2),  # one has not reported yet
        ({}, 2),
    ],
)
def test_machines_follow_the_load(loads: dict[str, tuple[float, float]], wanted: int) -> None:
    assert scale_by_slo(context(loads, 2))[0] == wanted


def test_one_decision_is_carried_out_before_the_next() -> None:
    assert scale_by_slo(context({"x": (1.0, 9.0), "y": (1.0, 9.0)}, current=2, target=4))[0] == 4


def test_machines_leave_one_by_one_and_never_grow_beyond_the_most() -> None:
    idle, busy = dict.fromkeys("vwxyz", (0.1, 0.0)), dict.fromkeys("vwxyz", (1.0, 9.0))
    assert scale_by_slo(context(idle, 5))[0] == 4
    assert scale_by_slo(context(busy, 5))[0] == 6


def follow(cores: float, bears: float, machines: int, state: dict[str, Any], steps: int) -> list[int]:
    """How many machines there are, decision by decision, at a load of so many machines' cores. Queries are late once a
    machine's cores are busier than `bears`."""
    counts = []
    for _ in range(steps):
        share = min(cores / machines, 1.0)
        loads = {str(number): (share, 4.0 if share > bears else 0.0) for number in range(machines)}
        machines, state[""] = scale_by_slo(context(loads, machines, state=state.get(""), most=50))
        counts.append(machines)
    return counts


@pytest.mark.parametrize("bears", [0.35, 0.5, 0.9])  # with bursts, tenants are late while most cores are idle
@pytest.mark.parametrize("cores", [1.0, 3.0, 11.0])
def test_a_load_that_stays_has_machines_that_stay(cores: float, bears: float) -> None:
    state: dict[str, Any] = {}
    up = follow(cores, bears, 2, state, 60)
    assert len(set(up[30:])) == 1 and cores / up[-1] <= max(bears, 0.6)
    down = follow(cores / 4, bears, up[-1], state, 60)
    assert down[-1] < up[-1] or down[-1] == 2, "and they leave with it"
    assert len(set(down[50:])) == 1
    assert follow(cores, bears, down[-1], state, 60)[-1] == up[-1]


def test_a_load_is_made_of_two_pages_of_metrics() -> None:
    meter = LoadMeter(cores=4)
    first = read_counts(PAGE.format(requests=100, misses=0, core_s=10.0))
    assert (first.core_s, first.resident) == (10.0, ("a",))
    assert meter.since_last(first, 1.0) == {}
    second = read_counts(PAGE.format(requests=150, misses=10, core_s=14.0))
    load = meter.since_last(second, 3.0)
    assert load == {"core_share": 0.5, "burn": pytest.approx(2.0)}
    assert meter.since_last(second, 4.0) == load
    died = read_counts(PAGE.format(requests=150, misses=10, core_s=2.0))  # a worker, with its count
    assert meter.since_last(died, 5.0) == {"core_share": 0.0, "burn": 0.0}
