"""The configuration file of `veltair serve`: every key, and every kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest

from veltair import config
from veltair.errors import ConfigError

WHOLE = """
[server]
http = "0.0.0.0:0"
grpc = "[::1]:8001"
policy = "fcfs"
planned_share = 0.8
cores = 2
workers = 4
spare_workers = 0
queue_slots = 16
body_limit_mb = 8
drain_timeout_s = 1
event_log = "logs/events.jsonl"
[[tenants]]
name = "resnet50"
artifact = "artifacts/resnet50"
qos_ms = 100
percentile = 0.99
priority = 2
[[tenants]]
name = "dlrm"
artifact = "/srv/dlrm"
"""
TENANT = '[[tenants]]\nname = "a"\nartifact = "a"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_every_key_is_read_and_paths_count_from_the_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path)
    loaded = config.read_config(Path("serve.toml"))
    server = loaded.server
    assert (server.http, server.grpc, server.policy) == ("0.0.0.0:0", "[::1]:8001", "fcfs")
    assert (server.cores, server.workers, server.spare_workers, server.queue_slots) == (2, 4, 0, 16)
    assert (server.body_limit_mb, server.drain_timeout_s, server.planned_share) == (8, 1.0, 0.8)
    assert server.event_log == str(tmp_path / "logs/events.jsonl")
    first, second = loaded.tenants
    assert (first.name, first.qos_ms, first.percentile, first.priority) == ("resnet50", 100.0, 0.99, 2)
    assert first.artifact == str(tmp_path / "artifacts/resnet50")
    assert (second.artifact, second.qos_ms, second.percentile, second.priority) == ("/srv/dlrm", None, 0.95, 1)


def test_all_but_the_tenants_has_defaults(tmp_path: Path) -> None:
    server = config.read_config(write(tmp_path, TENANT)).server
    assert (server.http, server.policy) == ("127.0.0.1:8000", "veltair")
    assert server.cores is None and server.event_log is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tenants"),
        ("[server]\n" + "tenants = []", "server: object contains unknown field `tenants`"),
        ("tenants = []", "tenants: expected at least one, or server.repository"),
        ("[server]\nhtpp = 'x:1'\n" + TENANT, "server: object contains unknown field `htpp`"),
        ("[server]\ncores = 0\n" + TENANT, "server.cores: expected `int` >= 1"),
        (TENANT + "burst = 99999999999999999999\n", "burst"),
        ("[server]\ncores = true\n" + TENANT, "server.cores: expected `int | null`, got `bool`"),
        ("[server]\nplanned_share = 0\n" + TENANT, "server.planned_share: expected `float` > 0.0"),
        ("[server]\nplanned_share = 1.1\n" + TENANT, "server.planned_share: expected `float` <= 1.0"),
        ("[server]\nworkers = 'two'\n" + TENANT, "server.workers: expected `int | null`, got `str`"),
        ("[server]\nhttp = 'localhost'\n" + TENANT, "server.http: expected host:port, got 'localhost'"),
        ("[server]\ngrpc = 'localhost:70000'\n" + TENANT, "server.grpc: expected host:port"),
        ("[server]\ndrain_timeout_s = inf\n" + TENANT, "server.drain_timeout_s: expected `float` <= 1000000000.0"),
        (TENANT + "qos_ms = nan\n", r"tenants[0].qos_ms (tenant 'a'): expected `float`"),
        (TENANT + "qos_ms = -1\n", r"tenants[0].qos_ms (tenant 'a'): expected `float` > 0.0"),
        (TENANT + "percentile = 95\n", r"tenants[0].percentile (tenant 'a'): expected `float` < 1.0"),
        (TENANT + "color = 'red'\n", r"tenants[0] (tenant 'a'): object contains unknown field `color`"),
        ("[[tenants]]\nname = 'a b'\nartifact = 'x'\n", r"tenants[0].name (tenant 'a b'): expected `str` matching"),
        ("[[tenants]]\nname = 'a'\n", "tenants[0] (tenant 'a'): object missing required field `artifact`"),
        (TENANT + TENANT, "tenants: the name 'a' appears twice"),
        ("[server\n", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.read_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        config.read_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 5"):
        config.read_config(tmp_path / "latin.toml")


def test_a_counter_model_is_read_beside_the_file(tmp_path: Path) -> None:
    fitted = '{"constant": 0.9, "per_miss_rate": 0.5, "per_access_per_ns": 0.02, "r2": 0.9}'
    (tmp_path / "proxy.json").write_text(fitted)
    server = config.read_config(write(tmp_path, f'[server]\ncounter_model = "proxy.json"\n{TENANT}')).server
    assert server.counter_model == str(tmp_path / "proxy.json")
    assert config.read_counter_coefficients(tmp_path / "proxy.json") == config.CounterCoefficients(0.9, 0.5, 0.02)


@pytest.mark.parametrize("content", [None, "{", '{"constant": 1}', '{"constant": "a"}'])
def test_a_wrong_counter_model_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "proxy.json").write_text(content)
    path = write(tmp_path, f'[server]\ncounter_model = "proxy.json"\n{TENANT}')
    with pytest.raises(ConfigError, match=r"serve\.toml: server\.counter_model: .*proxy\.json: "):
        config.read_config(path)
