"""The header of a log: a scheduler comes out of it as it went in, and what does not fit is refused."""

import json
from dataclasses import replace

import pytest
from scheduler_builders import make_machine, make_tenant, simple_profile

from veltair.errors import ConfigError, ProfileError
from veltair.scheduler.event_log.header import (
    InterferenceSettings,
    SchedulerSettings,
    dump_header,
    load_header,
    make_header,
)
from veltair.scheduler.interference import PROXIES, CounterModel, ObservedSlowdown, PredictedDemand

PROFILES = {"m": [simple_profile((30, 16)), simple_profile((50, 30), batch=2)]}
SETTINGS = SchedulerSettings(
    policy="veltair",
    machine=make_machine(2, 2),
    workers=3,
    planned_share=0.9,
    tenants=(make_tenant(50), make_tenant(70, "b", batching=True)),
    interference=InterferenceSettings("observed", {"weight": 0.1}),
)
HEADER = make_header(SETTINGS, PROFILES, {"kind": "daemon", "artifacts": {"m": "/somewhere"}})


def test_it_survives():
    line = dump_header(HEADER)
    assert "\n" not in line and json.loads(line)["type"] == "LogHeader"
    assert load_header(line) == HEADER


def test_the_scheduler_is_made_as_it_was():
    scheduler = load_header(dump_header(HEADER)).scheduler.make_scheduler(PROFILES)
    assert (scheduler.state.machine, scheduler.state.workers) == (SETTINGS.machine, 3)
    assert list(scheduler.state.tenants.values()) == list(SETTINGS.tenants)


@pytest.mark.parametrize("proxy", [CounterModel(1.0, 2.5, 0.1), ObservedSlowdown(0.3), PredictedDemand(85.0)])
def test_every_source_of_the_level_can_be_made_of_its_settings(proxy):
    again = InterferenceSettings(proxy.name, proxy.settings).make_proxy()
    assert type(again) is type(proxy) is PROXIES[proxy.name] and again.settings == proxy.settings


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version":3', '"version":7', "expected format version 3, got 7"),
        ('"veltair"', '"fifo"', "unknown policy 'fifo'"),
        ('"workers":3', '"workers":"3"', "LogHeader.scheduler.workers: expected"),
        ('"workers":3,', "", "LogHeader.scheduler: expected the fields"),
        ('"LogHeader"', '"Header"', "to be one of LogHeader"),
        ("{", "[", "expected a JSON object"),
    ],
)
def test_a_broken_header_is_refused(old, new, says):
    line = dump_header(HEADER)
    assert old in line
    with pytest.raises(ConfigError, match=says):
        load_header(line.replace(old, new, 1))


def test_a_source_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="interference source 'guess': expected one of counters"):
        InterferenceSettings("guess", {}).make_proxy()
    with pytest.raises(ConfigError, match="interference source 'observed'"):
        InterferenceSettings("observed", {"mass": 1.0}).make_proxy()


def test_profiles_must_be_those_of_the_recording():
    HEADER.check_profiles(PROFILES)
    HEADER.check_profiles(PROFILES | {"other": [simple_profile((1,))]})
    HEADER.check_profiles({"m": [replace(profile, digest="renamed") for profile in PROFILES["m"]]})
    with pytest.raises(ProfileError, match="m: the log needs its profile, which is missing"):
        HEADER.check_profiles({})
    for changed in ([simple_profile((30, 17)), PROFILES["m"][1]], PROFILES["m"][:1]):
        with pytest.raises(ProfileError, match="m: the log was recorded with another profile"):
            HEADER.check_profiles({"m": changed})
