"""What `veltair ray` writes, and what it says of input that cannot be served."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema

from veltair.cli import main
from veltair.config import ServeConfig, parse_config
from veltair.errors import ConfigError
from veltair.ray.app import build
from veltair.ray.arguments import group_config, read_arguments
from veltair.ray.serve_config import Placement, serve_config

TENANTS = '[[tenants]]\nname = "a"\nartifact = "art/a"\n[[tenants]]\nname = "b"\nartifact = "art/b"\n'


def written(folder: Path, text: str, *options: str) -> int:
    (folder / "serve.toml").write_text(text)
    return main(["ray", str(folder / "serve.toml"), "--out", str(folder / "ray.yaml"), *options])


def config(**server: Any) -> ServeConfig:
    tenants = [{"name": name, "artifact": f"/art/{name}"} for name in "ab"]
    return parse_config({"server": server, "tenants": tenants}, Path("test.toml"))


def test_the_file_is_one_that_serve_deploy_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert written(tmp_path, "[server]\ncores = 8\n" + TENANTS, "--machines", "2-5") == 0
    assert "machines with a, b" in capsys.readouterr().out
    content = ServeDeploySchema.model_validate(yaml.safe_load((tmp_path / "ray.yaml").read_text()))
    [application] = content.applications
    [deployment] = application.deployments
    assert deployment.ray_actor_options.num_cpus == 8 and deployment.ray_actor_options.resources == {"veltair": 1}
    assert deployment.autoscaling_config["max_replicas"] == 5
    arguments = read_arguments(application.args)
    served = group_config(arguments, "machines")
    assert [tenant.artifact for tenant in served.tenants] == [str(tmp_path / "art" / name) for name in "ab"]
    assert (served.server.http, served.server.admin, served.server.cores) == ("127.0.0.1:0", "127.0.0.1:0", 8)


def test_queries_at_a_machine_that_is_cut_off_end(tmp_path: Path) -> None:
    assert written(tmp_path, TENANTS, "--request-timeout", "15") == 0
    content = ServeDeploySchema.model_validate(yaml.safe_load((tmp_path / "ray.yaml").read_text()))
    assert content.http_options.request_timeout_s == content.grpc_options.request_timeout_s == 15
    with pytest.raises(ConfigError, match="--request-timeout: with --direct no query comes through Ray"):
        own = config(http="10.0.0.1:8000", grpc="10.0.0.1:8001")
        serve_config(own, Placement(direct=True, request_timeout_s=15.0))


def test_a_group_has_its_own_tenants() -> None:
    content = serve_config(config(), Placement(groups={"one": ["a"], "two": ["b"]}))
    [application] = content["applications"]
    arguments = read_arguments(application["args"])
    assert [tenant.name for tenant in group_config(arguments, "two").tenants] == ["b"]
    assert [each["name"] for each in application["deployments"]] == ["one", "two", "entrance"]


@pytest.mark.parametrize(
    ("machines", "groups", "expected"),
    [((1, 1), {}, 1), ((2, 9), {}, 2), ((5, 5), {}, 3), ((1, 1), {"one": ["a"], "two": ["b"]}, 2)],
)
@pytest.mark.parametrize("direct", [False, True])
def test_what_stands_before_the_machines_is_on_several_nodes(
    machines: tuple[int, int], groups: dict[str, list[str]], expected: int, *, direct: bool
) -> None:
    """And on no more than there are machines, each of which has a node of its own."""
    own = config(http="10.0.0.1:8000", grpc="10.0.0.1:8001")
    content = serve_config(own, Placement(machines=machines, groups=groups, direct=direct))
    ServeDeploySchema.model_validate(content)
    found = [each for each in content["applications"][0]["deployments"] if each["name"] == "entrance"]
    assert [each["num_replicas"] for each in found] == ([expected] if direct or groups else [])
    application = build(content["applications"][0]["args"])._bound_deployment
    assert not found or (application.name == "entrance" and application._replica_config.max_replicas_per_node == 1)
    assert content["http_options"].get("request_timeout_s") == (10.0 if direct else None)


@pytest.mark.parametrize("kind", [{}, {"direct": True}, {"groups": {"one": ["a"], "two": ["b"]}}])
def test_the_application_is_built(kind: dict[str, Any]) -> None:
    content = serve_config(config(http="10.0.0.1:8000", grpc="10.0.0.1:8001"), Placement(**kind))
    name = build(content["applications"][0]["args"])._bound_deployment.name
    assert name == ("entrance" if kind else "machines")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--group", "x=a,nobody"], "--group: x: unknown tenant 'nobody'; the configuration has a, b"),
        (["--group", "x=a"], "--group: no group has b"),
        (["--group", "x=a,b", "--group", "y=b"], "--group: y: tenant 'b' is in group x already"),
        (["--group", "x"], "--group: expected NAME=TENANT,TENANT with letters, digits, - and _, got 'x'"),
        (["--group", "entrance=a,b"], "--group: entrance is the name of what stands before the groups"),
        (["--machines", "٣"], "--machines: expected N or MIN-MAX from 1 to 10000, got '٣'"),
        (["--machines", "3-2"], "--machines: expected N or MIN-MAX from 1 to 10000, got '3-2'"),
        (["--cpus", "nan"], "--cpus: expected a number above 0, to 1,000,000, got nan"),
        (["--request-timeout", "0"], "--request-timeout: expected a number above 0, to 1,000,000, got 0"),
        (["--direct"], "server.http: 127.0.0.1:8000 is for its own machine alone; name another host"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert written(tmp_path, TENANTS, *options) == 2
    assert capsys.readouterr().err == f"veltair ray: {expected}\n"
    assert not (tmp_path / "ray.yaml").exists()


def test_what_ray_cannot_do_is_said() -> None:
    tls = {"certificate": "/c", "key": "/k"}
    with pytest.raises(ConfigError, match=r"server\.tls: clients come to Ray's proxies"):
        serve_config(config(tls=tls), Placement())
    with pytest.raises(ConfigError, match=r"server\.shared_memory: a query may come to another machine"):
        serve_config(config(shared_memory=True), Placement())
    with pytest.raises(ConfigError, match=r"server\.model_control: without I/O threads"):
        serve_config(config(model_control=True, fronts=0), Placement())
    assert serve_config(config(model_control=True), Placement())
    own = config(tls=tls, shared_memory=True, http="10.0.0.1:1", grpc="10.0.0.1:2")
    assert serve_config(own, Placement(direct=True))
    with pytest.raises(ConfigError, match=r"server\.repository"):
        serve_config(config(repository="/models"), Placement())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"groups": {"machines": ["a", "b", "nobody"]}}, "unknown tenant 'nobody'"),
        ({"router": "best"}, "router"),
        ({"config": {}}, "tenants: expected at least one"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_arguments_of_a_file_that_was_edited_are_checked(change: dict[str, Any], expected: str) -> None:
    arguments = serve_config(config(), Placement())["applications"][0]["args"] | change
    with pytest.raises(ConfigError, match=expected) as error:
        read_arguments(arguments)
    assert "\n" not in str(error.value)
    with pytest.raises(RayServeException) as shown:  # the only one of which Ray shows the text alone
        build(arguments)
    assert str(shown.value) == str(error.value)
