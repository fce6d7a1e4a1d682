"""The event log of a simulated run: its header, and the scheduler that replays it."""

from __future__ import annotations

from typing import Any

import msgspec

from veltair.errors import ConfigError
from veltair.scheduler.event_log.header import LogHeader, make_header
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.modelled_profiles import scenario_models
from veltair.simulation.simulation import Simulation
from veltair.simulation.simulation_scenario import SimulationScenario

KIND = "simulation"


class _Origin(msgspec.Struct):
    kind: str
    machine: MachineModel
    cores: int | None  # of the machine in use; None: all
    scenario: SimulationScenario


def make_simulation_header(simulation: Simulation, policy: str) -> LogHeader:
    """The header of a log of one run under this policy."""
    origin: dict[str, Any] = msgspec.to_builtins(_Origin(KIND, simulation.model, simulation.cores, simulation.scenario))
    return make_header(simulation.scheduler_settings(policy), simulation.profiles, origin)


def rebuild_scheduler(header: LogHeader) -> Scheduler:
    """A fresh scheduler for a log whose origin is a simulation.

    Raises ConfigError for an origin that cannot be read, ProfileError if the profiles differ now from those of the
    recording.
    """
    try:
        origin = msgspec.convert(header.origin, _Origin)
    except msgspec.ValidationError as error:
        raise ConfigError(f"scheduler log: origin: {error}") from None
    models = scenario_models(origin.scenario, origin.machine, cores=origin.cores)
    simulation = Simulation(origin.scenario, origin.machine, models, origin.cores)
    header.check_profiles(simulation.profiles)
    return header.scheduler.make_scheduler(simulation.catalogue, simulation.growth)
