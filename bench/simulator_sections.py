"""The sections of `docs/measurements.md` about the scheduler and the simulator."""

from __future__ import annotations

from bench import part_tables
from bench.paper import reality
from bench.policies import __main__ as policies
from bench.section import Section, environment_line, read, with_environment


def reality_tables() -> str:
    parts = []
    for name in ("reality", "epyc/reality"):
        found = read(name)
        parts += [environment_line(found["environment"]), "", f"Machine model: `{found['machine']}`.", ""]
        parts += [reality.table(found), ""]
    return "\n".join(parts).rstrip()


SECTIONS = (
    Section(
        "Cost of scheduling",
        """The scheduler alone at 64 cores, in us (`python -m bench.paper.scheduling_cost`). One event, such as the end
of a block, may start several blocks, so events and decisions are counted separately. Bars: 50 us a decision at p99,
100 us a query.""",
        part_tables.scheduling,
    ),
    Section(
        "Speed of the simulator",
        """Queries of the paper's mix on its 64 cores for each second of wall time, after a first run has filled the
tables that follow from the models (`python -m bench.paper.simulator_speed`; bar: 3,000 under `veltair` and
`veltair-full`). One load is held by every policy, the other is near the machine's limit.""",
        part_tables.simulator,
    ),
    Section(
        "Every policy beside the default",
        """Peaks of the daemon's policies on the paper's workloads and the models of its machine and of others, at 95
and 99 % of each tenant's queries in target: means of ten seeds with their 95 % intervals (`python -m bench.policies`).
Of 800 queries of the mix ten are BERT-Large's, so that one late query decides a peak there; of 6,000 it has a hundred.
Policies that take only as many cores as the target needs plan with the share of it that suits them best; the paper's
are read as its text says. What `veltair` gains has the interval of the difference seed by seed. No scheduler exceeds
what a linear program says of the same arrivals, all known beforehand, with every query in the least core time in which
it can be in time, on any cores at any moment ([record 89](decisions/89-clairvoyant-bound.md)).""",
        lambda: with_environment("policies", lambda found: policies.tables(found["rows"], found["bounds"])),
    ),
    Section(
        "Many machines behind a router",
        """100 simulated machines of 64 cores, each with the paper's mix at 0.6 of its file's rates (27,000 queries a
second in all), for half a second of virtual time (`python -m bench.paper.routers`). Two choices see both queues as they
are at that moment; reports for deadlines come every 100 ms and 5 ms late. A router knows of a death after 100 ms.""",
        part_tables.routers,
    ),
    Section(
        "Reality check of the simulator",
        """The same scenario on the daemon and in the simulator with the machine's model (`python -m
bench.paper.reality`; bar: within 20 %). [The results of the paper](results.md) discuss the differences.""",
        reality_tables,
    ),
)
