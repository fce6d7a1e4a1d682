from __future__ import annotations

from pathlib import Path

import pytest

from veltair.errors import ConfigError
from veltair.loadgen.scenario import LoadSettings, LogNormalSizes, Scenario, TenantLoad, read_scenario
from veltair.scenarios import find_scenario

GOOD = """
[load]
target = "grpc://127.0.0.1:8001"
duration_s = 30
[[tenants]]
name = "resnet50"
qps = 20
target_ms = 100.0
[[tenants]]
name = "dlrm"
qps = 5.5
target_ms = 50
percentile = 0.99
batch = [1, 32]
"""


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_good_file_with_its_defaults(tmp_path):
    assert read_scenario(write(tmp_path, GOOD)) == Scenario(
        LoadSettings("grpc://127.0.0.1:8001", 30.0, 2.0, 1, 4, 10.0),
        (
            TenantLoad("resnet50", 20.0, 100.0, 0.95, None),
            TenantLoad("dlrm", 5.5, 50.0, 0.99, (1, 32)),
        ),
    )


def test_sizes_of_recommendation(tmp_path):
    text = GOOD.replace("batch = [1, 32]", "batch = { log_mean = 4.5, most = 512 }")
    assert read_scenario(write(tmp_path, text)).tenants[1].batch == LogNormalSizes(4.5, 0.2, 512)


def test_the_demo_scenario_is_a_good_file():
    demo = read_scenario(Path(__file__).parents[2] / "scenarios" / "demo.toml")
    assert [tenant.name for tenant in demo.tenants] == ["resnet50", "mobilenet_v2", "dlrm"]
    assert demo.load.duration_s == 30


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("qps = 20", "qps = 0", "tenants[0].qps", "> 0"),
        ("qps = 20", "qps = -3", "tenants[0].qps", "> 0"),
        ("qps = 20", "qps = nan", "tenants[0].qps", "> 0"),
        ("qps = 20", "qps = inf", "tenants[0].qps", "<= 1000000"),
        ("qps = 20", 'qps = "many"', "tenants[0].qps", "`float`"),
        ("qps = 20", "qps = 900000", "tenants[0].qps", "at most 10000000"),
        ("qps = 20\n", "", "tenants[0]", "`qps`"),
        ("target_ms = 100.0", "target_ms = 0", "tenants[0].target_ms", "> 0"),
        ("percentile = 0.99", "percentile = 1.5", "tenants[1].percentile", "<= 1"),
        ("percentile = 0.99", "percentile = 0", "tenants[1].percentile", "> 0"),
        ("batch = [1, 32]", "batch = 0", "tenants[1].batch", ">= 1"),
        ("batch = [1, 32]", "batch = [0, 4]", "tenants[1].batch[0]", ">= 1"),
        ("batch = [1, 32]", "batch = [4]", "tenants[1].batch", "length"),
        ("batch = [1, 32]", "batch = [1, 2, 3]", "tenants[1].batch", "length"),
        ("batch = [1, 32]", "batch = [9, 2]", "tenants[1].batch", "[low, high]"),
        ("batch = [1, 32]", "batch = {mean = 5}", "tenants[1].batch", "`mean`"),
        ("batch = [1, 32]", "batch = {most = 0}", "tenants[1].batch.most", ">= 1"),
        ("batch = [1, 32]", "batch = {log_sigma = -1}", "tenants[1].batch.log_sigma", ">= 0"),
        ("batch = [1, 32]", "batches = 3", "tenants[1]", "`batches`"),
        ("duration_s = 30", "duration_s = 0", "load.duration_s", "> 0"),
        ("duration_s = 30", "warmup_s = -1", "load.warmup_s", ">= 0"),
        ("duration_s = 30", "seed = -1", "load.seed", ">= 0"),
        ("duration_s = 30", "connections = 0", "load.connections", ">= 1"),
        ("duration_s = 30", "timeout_s = 0", "load.timeout_s", "> 0"),
        ("duration_s = 30", "speed = 1", "load", "`speed`"),
        ('"dlrm"', '"resnet50"', "tenants[1].name", "twice"),
        ('"dlrm"', '""', "tenants[1].name", "length >= 1"),
        ("grpc://127.0.0.1:8001", "127.0.0.1:8001", "load.target", "grpc://HOST:PORT"),
        ("grpc://127.0.0.1:8001", "https://127.0.0.1:8001", "load.target", "grpc://HOST:PORT"),
        ("grpc://127.0.0.1:8001", "grpc://127.0.0.1", "load.target", "grpc://HOST:PORT"),
        ("grpc://127.0.0.1:8001", "grpc://127.0.0.1:99999", "load.target", "grpc://HOST:PORT"),
        ("grpc://127.0.0.1:8001", "http://h:1/v2", "load.target", "grpc://HOST:PORT"),
        ("grpc://127.0.0.1:8001", "http://[::1:80", "load.target", "grpc://HOST:PORT"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(tmp_path, old, new, key, expected):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_scenario(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: {key}: ")
    assert expected in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "load"),
        ("[load]\ntarget = 'http://h:1'", "tenants"),
        ("tenants = []\n[load]\ntarget = 'http://h:1'", "tenants: "),
        ("[load\n", "not valid TOML"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_a_file_that_is_no_scenario(tmp_path, content, expected):
    with pytest.raises(ConfigError, match=expected):
        read_scenario(write(tmp_path, content))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        read_scenario(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_scenario(tmp_path)


def test_a_file_hides_a_scenario_of_ours_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = find_scenario("demo")
    assert ours.is_file() and ours.is_absolute()
    (tmp_path / "demo").mkdir()  # as `veltair demo` makes it
    assert find_scenario("demo") == ours
    (tmp_path / "mix").write_text("", "utf-8")
    assert find_scenario("mix") == Path("mix")
    with pytest.raises(ConfigError, match="other: no such file"):
        find_scenario("other")
