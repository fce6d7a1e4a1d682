"""The environment that is recorded beside a result."""

from __future__ import annotations

from veltair.machine.environment import describe_environment
from veltair.machine.isa import CPU_FEATURES, cpu_features, tvm_target
from veltair.machine.topology import usable_machine


def test_this_machine() -> None:
    environment = describe_environment()
    assert environment.cores == len(usable_machine().cores) == tvm_target()["num-cores"]
    assert set(environment.isa) == cpu_features() <= CPU_FEATURES.keys()
    assert environment.memory_bytes > 0 and environment.versions["apache-tvm"] and environment.versions["veltair"]
