"""An upper bound of the rate at which any scheduler could hold every tenant's target, one that knows the future too."""

from __future__ import annotations

from math import inf

import numpy as np

from veltair.errors import ConfigError
from veltair.simulation.machine_model.execution_rate import ExecutionRate
from veltair.simulation.machine_model.roofline import Table
from veltair.simulation.simulation import Simulation

_HALVINGS = 100  # of the interval in which the price of time lies


def oracle_qps(simulation: Simulation) -> float:
    """Returns a rate of all tenants together, in their scenario's proportions, that no scheduler can exceed for long
    while each tenant has its percentile in time.

    Proof. Let tenant i send a share f_i of the queries, of which at least p_i must be in time, and let w_i be the least
    core time in which a query of its model can be in time (`least_core_ns`). At a rate of r queries per ns a long run
    of T ns has r T f_i queries of tenant i. Those in time are at least p_i r T f_i, each holds cores for w_i or more,
    and each does so between its arrival and its deadline, that is within T and one more target D. The machine's C cores
    have C (T + D) ns to give in that time, so

        r T sum_i(p_i f_i w_i) <= C (T + D),   and as D / T goes to 0   r <= C / sum_i(p_i f_i w_i).

    The bound takes nothing from a scheduler but the machine: not what arrives when, and no co-runner slows any other,
    which is the best that can be, since more pressure never makes a layer faster. A late or refused query may cost
    nothing. So an oracle may be below the bound, by as much as bursts are longer than targets.

    Raises ConfigError for tenants whose queries may be batched, since a batch divides its core time among queries.
    """
    scenario, cores = simulation.scenario, len(simulation.machine.cores)
    busy = 0.0  # core ns per ns at the scenario's rates
    for tenant in scenario.tenants:
        if tenant.max_batch > 1:
            raise ConfigError(f"tenant {tenant.name}: no bound is known where queries are batched")
        core_ns = least_core_ns(simulation.execution_rates[tenant.model, 1], cores, tenant.target_ns)
        busy += tenant.percentile * tenant.qps / 1e9 * core_ns
    return scenario.qps * cores / busy


def least_core_ns(rate: ExecutionRate, cores: int, target_ns: int) -> float:
    """Returns a lower bound of the core time of a query that takes at most `target_ns`, alone on up to `cores` cores;
    infinite if no choice of cores and versions is that fast.

    Proof. A query runs each part x of a layer l (of parts that add up to one) in one way j, which is a code version, a
    number of cores c_j and the L3 domains that they lie on. That takes x t_lj ns and x c_j t_lj of core time. Being in
    time means that the sum of x t_lj is at most D. For every price u >= 0 of a ns the core time therefore is

        sum x c_j t_lj  >=  sum x c_j t_lj + u (sum x t_lj - D)  >=  sum_l min_j (c_j + u) t_lj - u D,

    as the bracket is not above 0 and the parts of a layer add up to one. This is the Lagrangian dual: concave in u, so
    its greatest value is where the time of the minimising ways passes D, which is found by bisection. What core sets
    blocks can have only takes ways away, and spawning, waking and dispatching only add.
    """
    times, held = _ways(rate, cores)
    if times.min(axis=0).sum() > target_ns:
        return inf

    def at(price: float) -> tuple[float, bool]:
        """Returns the bound at this price, and whether the ways that minimise it are in time."""
        best = (times * (held + price)).argmin(axis=0), np.arange(times.shape[1])
        taken = times[best]
        bound = float((taken * (held[best[0], 0] + price)).sum()) - price * target_ns
        return bound, float(taken.sum()) <= target_ns

    low, high = 0.0, 0.0
    found, in_time = at(high)
    while not in_time:
        low, high = high, max(2 * high, 1.0)
        bound, in_time = at(high)
        found = max(found, bound)
    for _ in range(_HALVINGS if high else 0):
        price = (low + high) / 2
        bound, in_time = at(price)
        found = max(found, bound)
        low, high = (low, price) if in_time else (price, high)
    return found


def _ways(rate: ExecutionRate, cores: int) -> tuple[Table, Table]:
    """Returns the times of a model's operators alone as (ways, operators), and the cores of each way as (ways, 1)."""
    machine = rate.machine
    times, held = [], []
    for count in range(1, cores + 1):
        for domains in range(machine.domains(count), min(count, machine.domains(cores)) + 1):
            times.append(rate.times_ns(count, domains, 0, 0).min(axis=1))
            held.append([float(count)])
    return np.array(times), np.array(held)
