"""The time of a layer on a machine model: that of its slowest resource, and what does not overlap with it.

    computing = max(compute, L2 <-> L3 traffic / L3 bandwidth)
    moving = max(traffic of the domains / their links, DRAM traffic / share)
    time = max(computing, moving) + exposed x min(computing, moving) + launch

The exposed share is 0 unless the machine model says otherwise.

Compute time accounts for how parallel tasks divide among the cores. The traffic below the L3 follows from how much of
the L3 the layer can keep (`machine.cache_traffic`). Everything is an array over all layers and versions of a model, so
that one call costs microseconds; versions that a layer does not have take infinitely long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veltair.simulation.machine_model.machine_model import MachineModel

Table = NDArray[np.float64]
_EMPTY = 1e-6  # bytes: a level that needs at most as much as the one before is reached together with it


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of one query of a model; axes are (cores, layers, versions), and index 0 of cores is one core.

    ::

        work = model_profiles([shape], machine, {"resnet50": 15_000_000})["resnet50"].work
        work.compute_ns[3]  # (layers, versions) on four cores
    """

    model: str
    compute_ns: Table  # and task overhead, with the tasks divided among the cores
    l3_bytes: Table  # that pass between the cores' L2 and their L3
    remote_bytes: Table  # of activations in the L3 of other domains
    need_bytes: Table  # (cores, levels, layers, versions): L3 of all domains together, ascending with the levels
    dram_bytes: Table  # the same axes: bytes that pass below the L3 when that much is kept
    flops: NDArray[np.float64]  # (layers)
    in_bytes: float = 0.0  # of a query's inputs, as clients send them
    out_bytes: float = 0.0

    @property
    def cores(self) -> int:
        return len(self.compute_ns)


def kept_traffic(need: Table, moved: Table, kept: float | Table) -> Table:
    """`cache_traffic.traffic_bytes` for arrays: axis 0 are the loop levels, of which `kept` bytes are held."""
    result: Table = moved[0].copy()
    for low, high, inner, outer in zip(need, need[1:], moved, moved[1:], strict=False):
        held = (kept - low + _EMPTY) / np.maximum(high - low, _EMPTY)
        np.clip(held, 0.0, 1.0, out=held)
        held *= outer - inner
        result += held
    return result


def sharing_cores(work: ModelWork, cores: int, domains: int, machine: MachineModel) -> int:
    """Returns the number of cores that cause the same traffic below the L2 as `cores` cores in `domains` domains.

    Each domain reads what its cores share, so cores that lie on more domains than they would fill cause as much traffic
    as if they filled these domains.
    """
    return cores if domains == machine.domains(cores) else min(domains * machine.domain_cores, work.cores)


def dram_bytes(work: ModelWork, cores: int, l3_bytes: float | Table) -> Table:
    """Returns bytes from and to DRAM as (layers, versions), where the layer keeps `l3_bytes` of its domains' L3."""
    return kept_traffic(work.need_bytes[cores - 1], work.dram_bytes[cores - 1], l3_bytes)


def layer_ns(
    work: ModelWork,
    cores: int,
    domains: int,
    l3_bytes: float | Table,
    dram_gb_s: float,
    latency: float,
    machine: MachineModel,
    link_share: float = 1.0,
) -> Table:
    """Returns times in ns as (layers, versions) on this many cores in this many domains.

    The layers keep `l3_bytes` of L3, get `dram_gb_s` of DRAM bandwidth and `link_share` of what their links let
    through, and memory takes `latency` times as long to answer as idle memory.
    """
    row, sharing = cores - 1, sharing_cores(work, cores, domains, machine)
    moved, remote = dram_bytes(work, sharing, l3_bytes), work.remote_bytes[sharing - 1]
    count, link = np.array(float(cores)), link_gb_s(cores, domains, latency, machine) * link_share
    return _slowest(work.compute_ns[row], work.l3_bytes[row], remote, moved, count, link, dram_gb_s, machine)


def link_gb_s(cores: int | Table, domains: int | Table, latency: float, machine: MachineModel) -> Table:
    """Returns the bandwidth at which cores in a number of domains can draw data from outside of these domains.

    A core has a limited number of lines in flight, so it draws the less the longer memory takes to answer.
    """
    link: Table = np.minimum(cores * machine.core_gb_s / latency, domains * machine.domain_gb_s)
    return link


def pressed_times_ns(work: ModelWork, pressure: float, machine: MachineModel) -> Table:
    """Returns times in ns as (cores, layers, versions), while others hold this share of L3 and DRAM bandwidth."""
    count = np.arange(1.0, work.cores + 1)[:, None, None]
    kept = -(-count // machine.domain_cores) * machine.l3_bytes * (1 - pressure)
    moved = kept_traffic(np.moveaxis(work.need_bytes, 1, 0), np.moveaxis(work.dram_bytes, 1, 0), kept)
    share = machine.dram_gb_s * (1 - pressure)
    link = link_gb_s(count, -(-count // machine.domain_cores), machine.memory_latency(pressure), machine)
    return _slowest(work.compute_ns, work.l3_bytes, work.remote_bytes, moved, count, link, share, machine)


def _slowest(
    compute_ns: Table,
    l3: Table,
    remote: Table,
    moved: Table,
    cores: Table,
    link: Table,
    dram_gb_s: float,
    machine: MachineModel,
) -> Table:
    computing = np.maximum(compute_ns, l3 / (cores * machine.l3_gb_s))
    moving = np.maximum((moved + remote) / link, moved / min(dram_gb_s, machine.dram_gb_s))
    longest: Table = np.maximum(computing, moving)
    if machine.exposed_share:
        longest += machine.exposed_share * np.minimum(computing, moving)
    longest += machine.launch_ns + machine.launch_core_ns * (cores - 1)
    return longest


def footprint_bytes(work: ModelWork, cores: int) -> Table:
    """Returns the bytes of L3 that a layer would like to keep in all its domains together, as (layers, versions)."""
    wanted: Table = work.need_bytes[cores - 1, -1]
    return wanted
