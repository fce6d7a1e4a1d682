from __future__ import annotations

from pathlib import Path

import pytest

from veltair.errors import ConfigError
from veltair.simulation.simulation_scenario import read_simulation_scenario

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
GOOD = '[[tenants]]\nname = "a"\nqps = 10\ntarget_ms = 5.0\n'
QOS_MS = {
    "resnet50": 15,
    "googlenet": 15,
    "efficientnet_b0": 10,
    "mobilenet_v2": 10,
    "ssd300": 100,
    "tiny_yolov2": 10,
    "bert_large": 130,
}


def read(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_text(text)
    return read_simulation_scenario(path)


def test_what_is_not_said_has_defaults(tmp_path):
    scenario = read(tmp_path, GOOD)
    (tenant,) = scenario.tenants
    assert (tenant.model, tenant.percentile, tenant.priority, tenant.arrivals) == ("a", 0.95, 1, "poisson")
    assert (scenario.load.seed, scenario.load.proxy, scenario.qps) == (1, "observed", 10)


def test_paths_count_from_the_scenario(tmp_path):
    tenant = read(tmp_path, GOOD + 'model = "artifacts/a"\narrivals = "file"\nfile = "t.txt"\n').tenants[0]
    assert (tenant.model, tenant.file) == (str(tmp_path / "artifacts/a"), str(tmp_path / "t.txt"))


def test_a_folder_beside_the_scenario_is_no_model_of_the_zoo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(GOOD + 'model = "./a"\n')
    assert read_simulation_scenario(Path("s.toml")).tenants[0].model == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "speed = 1\n", "tenants[0]: object contains unknown field `speed`"),
        ("[loud]\n" + GOOD, "object contains unknown field `loud`"),
        ("[load]\nquery = 1\n" + GOOD, "load: object contains unknown field `query`"),
        (GOOD.replace("10", "0"), "tenants[0].qps: expected `float` > 0.0"),
        (GOOD.replace("10", "-3"), "tenants[0].qps: expected `float` > 0.0"),
        (GOOD.replace("5.0", "0"), "tenants[0].target_ms: expected `float` > 0.0"),
        (GOOD + GOOD, "tenants[1].name: 'a' appears twice"),
        (GOOD + 'arrivals = "file"\n', 'tenants[0]: expected file exactly where arrivals = "file"'),
        (GOOD + 'file = "x"\n', 'tenants[0]: expected file exactly where arrivals = "file"'),
        (GOOD + 'arrivals = "bursts"\n', "tenants[0].arrivals: invalid enum value 'bursts'"),
        ("[load]\nqueries = 5\nduration_s = 1\n" + GOOD, "load: expected queries or duration_s, not both"),
        ("[load]\nwarmup = 1.0\n" + GOOD, "load.warmup: expected `float` < 1.0"),
        ("", "object missing required field `tenants`"),
        ("tenants = []", "tenants: expected `array` of length >= 1"),
        ("[[tenants", "not valid TOML"),
    ],
)
def test_wrong_scenarios_are_refused_with_the_key(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.lower().startswith(f"{tmp_path}/s.toml: {said}".lower())
    assert "\n" not in message.partition("not valid TOML")[0]


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("light", {"efficientnet_b0", "mobilenet_v2", "tiny_yolov2"}),
        ("medium", {"resnet50", "googlenet"}),
        ("heavy", {"ssd300", "bert_large"}),
        ("mix", set(QOS_MS)),
    ],
)
def test_the_papers_workloads(name, models):
    tenants = read_simulation_scenario(SCENARIOS / f"{name}.toml").tenants
    assert {tenant.model: tenant.target_ms for tenant in tenants} == {model: QOS_MS[model] for model in models}
    assert len({round(tenant.qps * tenant.target_ms) for tenant in tenants}) == 1  # as often as 1 / QoS
