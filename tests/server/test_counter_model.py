"""A fitted counter model in the daemon's scheduler, and in what is kept for a replay."""

from __future__ import annotations

import msgspec
import pytest

from veltair.config import CounterCoefficients
from veltair.scheduler.events import CountersSampled
from veltair.server.engine import event_log
from veltair.server.engine.event_log import Setup
from veltair.types import CodeVersion as Version
from veltair.types import CounterSample, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Tenant


@pytest.fixture(autouse=True)
def tenancy(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LatencyTable((1.0, 2.0), ((1000, 600), (2000, 1500)))
    profile = ModelProfile(
        "m", 1, (Layer(0, "l", "matmul", (), (), 1, 1),), ((Version(0, 0, 1, 1, "s", table),),), {}, ""
    )
    known = [Tenant("t", "m", QoSTarget(10_000))], {"m": [profile]}
    monkeypatch.setattr(event_log, "tenants_and_profiles", lambda specs, artifacts: known)


def test_the_level_follows_the_counters() -> None:
    fitted = CounterCoefficients(1.0, 2.0, 0.5)
    setup = Setup(Machine(((0, 1),)), (), "veltair", 2, fitted)
    for kept in (setup, msgspec.json.decode(msgspec.json.encode(setup), type=Setup)):
        scheduler = kept.scheduler([])
        assert scheduler.level_source == "counters"
        scheduler.handle(CountersSampled(2000, CounterSample(2000, 1000, 2000, 500, "perf")))
        assert scheduler.level == pytest.approx(1 + 2 * 0.25 + 0.5 * 2)


def test_without_a_model_counters_are_not_used() -> None:
    scheduler = Setup(Machine(((0, 1),)), (), "veltair", 2).scheduler([])
    assert scheduler.level_source == "observed"
