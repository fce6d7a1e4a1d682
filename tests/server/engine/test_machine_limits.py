"""The cores that the daemon uses, and how many workers it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from veltair.errors import ConfigError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.server.engine import machine_limits
from veltair.server.engine.machine_limits import default_workers, limit_machine
from veltair.types import Machine

pytestmark = pytest.mark.slow


TWO_SOCKETS = Machine(((0, 1, 2, 3), (8, 9, 10, 11)))


@pytest.fixture
def mlp(artifacts: Path) -> Artifact:
    return load_artifact(artifacts / "mlp")


@pytest.mark.parametrize(
    ("cores", "domains"),
    [(None, ((0, 1, 2, 3), (8, 9, 10, 11))), (1, ((0,),)), (4, ((0, 1, 2, 3),)), (6, ((0, 1, 2, 3), (8, 9)))],
)
def test_fewer_cores_are_whole_domains_first(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, domains: tuple[tuple[int, ...], ...]
) -> None:
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: TWO_SOCKETS)
    assert limit_machine(cores) == Machine(domains)


def test_cores_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: TWO_SOCKETS)
    with pytest.raises(ConfigError, match=r"server\.cores: 9 asked for, 8 usable"):
        limit_machine(9)
    monkeypatch.setattr(machine_limits, "usable_machine", lambda: Machine(((1023, 1024),)))
    with pytest.raises(ConfigError, match="core 1024"):
        limit_machine(None)
    assert limit_machine(1) == Machine(((1023,),))


def test_workers_are_twice_the_cores_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch, mlp: Artifact) -> None:
    heavy = replace(mlp, manifest=msgspec.structs.replace(mlp.manifest, arena_bytes=1 << 30), digest="heavy")
    monkeypatch.setattr(machine_limits, "memory_bytes", lambda: 16 << 30)
    assert default_workers(8, [mlp]) == 16
    assert default_workers(8, [heavy, heavy]) == 6  # 8 GB by 1 GB of arena and a process; loaded once
    assert default_workers(1, [mlp]) == 2
    monkeypatch.setattr(machine_limits, "memory_bytes", lambda: 1 << 20)
    assert default_workers(8, [mlp]) == 2
