"""How long a layer takes on a machine model: the slowest of its resources, as if all were used at once.

    time = max(compute, L2 <-> L3 traffic / L3 bandwidth, traffic of the domains / their links, DRAM traffic / share)
           + launch

Compute knows how parallel tasks come out on so many cores. What moves below the L3 follows from how much of it the
layer can keep (`machine.cache_traffic`). Everything is an array over all layers and code versions of a model, so that
one call costs microseconds; versions that a layer does not have take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veltair.simulate.machine_model.machines import MachineModel

Table = NDArray[np.float64]
_EMPTY = 1e-6  # bytes: a level that needs no more than the one before is reached with it


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What one query of a model asks of a machine; axes (cores, layers, versions), index 0 of cores being one core."""

    model: str
    compute_ns: Table  # and task overhead, as tasks come out on the cores
    l3_bytes: Table  # that pass between the cores' L2 and their L3
    remote_bytes: Table  # of activations that lie in other domains' L3
    need_bytes: Table  # (cores, levels, layers, versions): of all domains' L3 together, ascending with the levels
    dram_bytes: Table  # likewise: what passes below the L3 when that much is kept
    flops: NDArray[np.float64]  # (layers)
    in_bytes: float = 0.0  # of a query, as clients send it
    out_bytes: float = 0.0

    @property
    def cores(self) -> int:
        return len(self.compute_ns)


def kept_traffic(need: Table, moved: Table, kept: float | Table) -> Table:
    """`cache_traffic.traffic_bytes` for arrays: axis 0 are the loop levels, `kept` bytes are held of each rest."""
    result: Table = moved[0].copy()
    for low, high, inner, outer in zip(need, need[1:], moved, moved[1:], strict=False):
        held = (kept - low + _EMPTY) / np.maximum(high - low, _EMPTY)
        np.clip(held, 0.0, 1.0, out=held)
        held *= outer - inner
        result += held
    return result


def sharing_cores(work: ModelWork, cores: int, domains: int, machine: MachineModel) -> int:
    """On how many cores a layer moves what it moves below the L2 when it runs on so many that lie in `domains` domains.

    Each domain reads what its cores share, so those that lie on more domains than they would fill move as much as if
    they filled them.
    """
    return cores if domains == machine.domains(cores) else min(domains * machine.domain_cores, work.cores)


def dram_bytes(work: ModelWork, cores: int, l3_bytes: float | Table) -> Table:
    """(layers, versions): bytes from and to DRAM when the layer keeps `l3_bytes` of its domains' L3, all together."""
    return kept_traffic(work.need_bytes[cores - 1], work.dram_bytes[cores - 1], l3_bytes)


def layer_ns(
    work: ModelWork,
    cores: int,
    domains: int,
    l3_bytes: float | Table,
    dram_gb_s: float,
    latency: float,
    machine: MachineModel,
) -> Table:
    """(layers, versions): time on so many cores in so many domains, while they keep `l3_bytes` of L3 and get
    `dram_gb_s` of DRAM bandwidth, and memory takes `latency` times as long to answer as when it is idle."""
    row, sharing = cores - 1, sharing_cores(work, cores, domains, machine)
    moved, remote = dram_bytes(work, sharing, l3_bytes), work.remote_bytes[sharing - 1]
    count, link = np.array(float(cores)), link_gb_s(cores, domains, latency, machine)
    return _slowest(work.compute_ns[row], work.l3_bytes[row], remote, moved, count, link, dram_gb_s, machine)


def link_gb_s(cores: int | Table, domains: int | Table, latency: float, machine: MachineModel) -> Table:
    """What so many cores in so many domains can draw from outside of these. A core has only so many lines in flight, so
    it draws the less the longer memory takes to answer."""
    link: Table = np.minimum(cores * machine.core_gb_s / latency, domains * machine.domain_gb_s)
    return link


def under_pressure_ns(work: ModelWork, pressure: float, machine: MachineModel) -> Table:
    """(cores, layers, versions): time while others hold that share of the L3 and of the DRAM bandwidth."""
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
    longest = np.maximum(compute_ns, l3 / (cores * machine.l3_gb_s))
    np.maximum(longest, (moved + remote) / link, out=longest)
    np.maximum(longest, moved / min(dram_gb_s, machine.dram_gb_s), out=longest)
    longest += machine.launch_ns + machine.launch_core_ns * (cores - 1)
    return longest


def footprint_bytes(work: ModelWork, cores: int) -> Table:
    """(layers, versions): what it would keep of the L3 if it could, of all its domains together."""
    wanted: Table = work.need_bytes[cores - 1, -1]
    return wanted
