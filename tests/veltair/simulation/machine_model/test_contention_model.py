"""Speeds under neighbours, against arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_machine, small_model

from veltair.simulation.machine_model.contention_model import ContentionModel
from veltair.simulation.machine_model.execution_rate import PRESSURES, ExecutionRate, pressure_level
from veltair.types import LayerBlock

MB = 2**20


def neighbours(layers, **machine):
    """A contention model of four domains of four cores, and a function that starts a block of such layers on it."""
    model = small_machine(16, **machine)
    known = small_model(model, layers)
    rates = {("m", 1): ExecutionRate(known.work, model)}
    interference = ContentionModel(model, model.machine(), rates, np.random.default_rng(1))

    def enter(query, cores, *, version=0, grown=False):
        block = LayerBlock(query, 0, len(layers), (version,) * len(layers), len(cores), 0)
        return interference.enter(block, tuple(cores), known.profile, grown=grown)

    return interference, enter


def ends(interference):
    return {query: timeline[-1] for query, timeline in interference.changed()}


def test_a_block_alone_takes_the_slowest_of_its_resources():
    interference, enter = neighbours("cks")
    enter(1, range(4))
    # 1 us to launch each; computing; 12 MB kept of 16, so computing; 40 MB over a link of 40 GB/s
    assert dict(interference.changed())[1] == pytest.approx([0, 1001e3, 1001e3 + 501e3, 1502e3 + 1001e3])
    assert ends(interference) == {}


def test_streams_share_the_memory_and_draw_all_of_it():
    interference, enter = neighbours("s")
    for query in range(4):
        enter(query, range(4 * query, 4 * query + 4))
    # 40 GB/s each through their links, 80 together: 20 each
    took = ends(interference)
    assert took == pytest.approx(dict.fromkeys(range(4), 2001e3), rel=0.02)
    interference.leave(3)
    assert ends(interference) == pytest.approx(dict.fromkeys(range(3), 1501e3), rel=0.02)
    interference.leave(2)
    assert ends(interference) == pytest.approx(dict.fromkeys(range(2), 1001e3), rel=0.02)


def test_computing_does_not_suffer_from_streams():
    interference, enter = neighbours("c")
    enter(0, range(4))
    alone = ends(interference)[0]
    interference, enter = neighbours("cs")
    for query in range(4):
        enter(query, range(4 * query, 4 * query + 4))
    assert dict(interference.changed())[0][1] == pytest.approx(alone)


def test_neighbours_in_a_domain_share_its_cache_and_others_do_not():
    interference, enter = neighbours("k", core_gb_s=8.0, dram_gb_s=1e6)
    enter(0, (0, 1))
    enter(1, (4, 5))
    assert ends(interference) == pytest.approx({0: 1001e3, 1: 1001e3})  # computing
    enter(2, (2, 3))
    # 12 MB are wanted twice of 16: each keeps 8, and a third of the 59 MB moves that it could save, at 16 GB/s
    slow_ns = (1e6 + 59e6 / 3) / 16 + 1e3
    assert ends(interference) == pytest.approx({0: slow_ns, 2: slow_ns})
    interference.leave(2)
    assert ends(interference) == pytest.approx({0: 1001e3})
    enter(3, (2, 3), version=1)
    # the other version wants but 3 MB: there is room for both
    assert ends(interference) == pytest.approx({0: 1001e3, 3: 1101e3})


def test_growth_costs_what_the_machine_says():
    interference, enter = neighbours("c")
    assert enter(0, range(2)) == 0
    ends(interference)
    costs = []
    for _ in range(4000):
        costs.append(enter(0, range(4), grown=True))
    assert np.median(costs) == pytest.approx(100e3, rel=0.1)
    assert np.mean(costs) == pytest.approx(220e3, rel=0.15)
    assert ends(interference) == pytest.approx({0: 1001e3})
    assert list(interference.running) == [0]


def test_a_core_draws_less_while_memory_answers_late():
    interference, enter = neighbours("s", loaded_latency=(1.0, 1.0, 3.0))
    enter(0, (0,))
    assert ends(interference) == pytest.approx({0: 2001e3})  # 40 MB through a core of 20 GB/s
    enter(1, range(4, 8))
    # half of the bandwidth is used beside it, a fourth beside the other: memory answers as fast as before
    assert ends(interference) == pytest.approx({0: 2001e3, 1: 1001e3}, rel=0.02)
    enter(2, (8,))
    # three quarters are used beside both, and memory takes twice as long: 10 GB/s
    assert ends(interference)[2] == pytest.approx(4001e3)


def test_cores_apart_have_a_cache_and_a_link_each():
    interference, enter = neighbours("k", core_gb_s=16.0)
    enter(0, (0, 4))
    enter(1, (1, 8))
    # 12 MB are wanted twice of three domains: 6 + 6 in the first one, 6 in the others
    assert ends(interference) == pytest.approx({0: 1001e3, 1: 1001e3})  # computing
    interference, enter = neighbours("s")
    enter(0, (0, 1, 4, 5))
    assert ends(interference) == pytest.approx({0: 501e3})  # 40 MB over two links of 40 GB/s


@given(
    layers=st.text("cks", min_size=1, max_size=5),
    cores=st.integers(1, 16),
    apart=st.integers(0, 3),
    version=st.integers(0, 1),
    cache=st.integers(0, len(PRESSURES) - 2),
    memory=st.integers(0, len(PRESSURES) - 1),
)
def test_more_pressure_never_helps(layers, cores, apart, version, cache, memory):
    model = small_machine(16, loaded_latency=(1.0, 1.2, 2.0))
    domains = max(model.domains(cores), min(apart, cores))
    segment = ExecutionRate(small_model(model, layers).work, model).segment(0, (version,) * len(layers), cores, domains)
    here = np.diff(segment.timeline(cache, memory))
    assert (np.diff(segment.timeline(cache + 1, memory)) >= here - 1e-6).all()
    assert (np.diff(segment.timeline(memory, cache + 1)) >= np.diff(segment.timeline(memory, cache)) - 1e-6).all()
    assert segment.demand(cache) <= model.dram_gb_s * 1e9


@given(st.floats(0, 20))
def test_a_pressure_is_taken_to_the_nearest_level(pressure):
    off = [abs(level - pressure) for level in PRESSURES]
    assert off[pressure_level(pressure)] == pytest.approx(min(off))


def test_a_block_waits_for_threads_on_cores_that_its_query_did_not_hold_last():
    interference, enter = neighbours("c", wake_ns=500.0)
    assert enter(1, (0, 1)) == 500
    interference.leave(1)
    assert enter(1, (0,)) == 0  # its threads are awake on fewer cores
    assert enter(2, (1,)) == 500
    interference.leave(1)
    interference.leave(2)
    assert enter(1, (0, 1)) == 500  # the other has put them to sleep on one core
    assert enter(1, (0, 1, 2), grown=True) > 500  # a growth costs what it costs
    interference.leave(1)
    assert enter(1, (0, 1, 2)) == 0


def test_neighbours_in_a_domain_share_its_link_if_the_machine_says_so():
    alone = {0: 1001e3, 1: 1001e3}  # 40 MB over 40 GB/s
    interference, enter = neighbours("s", dram_gb_s=1e6)
    enter(0, (0, 1))
    enter(1, (2, 3))
    assert ends(interference) == pytest.approx(alone)
    interference, enter = neighbours("s", dram_gb_s=1e6, shared_links=True)
    enter(0, (0, 1))
    assert ends(interference) == pytest.approx({0: 1001e3})
    enter(1, (2, 3))
    assert ends(interference) == pytest.approx({0: 2001e3, 1: 2001e3})  # 20 GB/s each
    enter(2, (4, 5))
    assert ends(interference) == pytest.approx({2: 1001e3})  # in another domain
    interference.leave(0)
    assert ends(interference) == pytest.approx({1: 1001e3})


def test_links_that_are_shared_slow_nobody_who_computes_or_has_domains_alone():
    interference, enter = neighbours("c", shared_links=True)
    enter(0, (0, 1))
    enter(1, (2, 3))
    assert ends(interference) == pytest.approx({0: 2001e3, 1: 2001e3})  # computing on half of the cores
    interference, enter = neighbours("s", dram_gb_s=1e6, shared_links=True)
    for query in range(4):
        enter(query, range(4 * query, 4 * query + 4))
    assert ends(interference) == pytest.approx(dict.fromkeys(range(4), 1001e3))
