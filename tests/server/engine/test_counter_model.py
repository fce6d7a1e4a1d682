"""A fitted counter model in the daemon's scheduler, and in what is kept for a replay."""

from __future__ import annotations

import pytest

from veltair.config import CounterCoefficients
from veltair.scheduler.event_log.header import SchedulerSettings, dump_header, load_header, make_header
from veltair.scheduler.events import CountersSampled
from veltair.server.engine.event_log import interference_settings
from veltair.types import CodeVersion as Version
from veltair.types import CounterSample, LatencyTable, Layer, Machine, ModelProfile, QoSTarget, Tenant

TABLE = LatencyTable((1.0, 2.0), ((1000, 600), (2000, 1500)))
LAYER, VERSION = Layer(0, "l", "matmul", (), (), 1, 1), Version(0, 0, 1, 1, "s", TABLE)
PROFILES = {"m": [ModelProfile("m", 1, (LAYER,), ((VERSION,),), {}, "")]}


def make_settings(fitted: CounterCoefficients | None) -> SchedulerSettings:
    tenants = (Tenant("t", "m", QoSTarget(10_000)),)
    return SchedulerSettings("veltair", Machine(((0, 1),)), 2, 1.0, tenants, interference_settings(fitted))


def test_the_level_follows_the_counters() -> None:
    settings = make_settings(CounterCoefficients(1.0, 2.0, 0.5))
    header = make_header(settings, PROFILES, {"kind": "daemon", "artifacts": {}})
    for kept in (settings, load_header(dump_header(header)).scheduler):
        scheduler = kept.make_scheduler(PROFILES)
        assert scheduler.level_source == "counters"
        scheduler.handle(CountersSampled(2000, CounterSample(2000, 1000, 2000, 500, "perf")))
        assert scheduler.level == pytest.approx(1 + 2 * 0.25 + 0.5 * 2)


def test_without_a_model_counters_are_not_used() -> None:
    assert make_settings(None).make_scheduler(PROFILES).level_source == "observed"
