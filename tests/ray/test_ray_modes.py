"""Other shapes of the application on a cluster: groups of tenants, clients that go to the daemons, what goes wrong."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from example_models import mlp_outputs, spin_state
from ray_cluster import RayCluster, daemons, until
from running_daemon import X, spin, tensor
from tritonclient.utils import InferenceServerException

from veltair.ray.serve_config import Placement, serve_config

pytestmark = pytest.mark.slow
MODULES = {"grpc": grpc_client, "http": http_client}


@pytest.fixture(scope="module")
def grouped(cluster: RayCluster, artifacts: Path) -> RayCluster:
    config = cluster.config({name: artifacts / name for name in ("mlp", "spin")})
    groups = {"rows": ["mlp"], "turns": ["spin"]}
    cluster.deploy(serve_config(config, Placement(groups=groups, proxies="HeadOnly")))
    until("both groups are there", lambda: {"rows", "turns", "entrance"} <= set(cluster.status().deployments))
    cluster.wait_until_running()
    return cluster


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_query_goes_to_the_group_of_its_tenant(grouped: RayCluster, protocol: str) -> None:
    module = MODULES[protocol]
    with getattr(grouped, protocol)() as client:
        assert client.is_server_ready()
        y = client.infer("mlp", [tensor(module, "x", X, "FP32")]).as_numpy("y")
        np.testing.assert_allclose(y, mlp_outputs(X), rtol=1e-3, atol=1e-4)
        assert client.infer("spin", spin(module, 10, 3)).as_numpy("state").item() == spin_state(10, 3)
        index = client.get_model_repository_index()
        names = [model.name for model in index.models] if protocol == "grpc" else [model["name"] for model in index]
        assert sorted(names) == ["mlp", "spin"]
        with pytest.raises(InferenceServerException, match="unknown model 'nobody'"):
            client.infer("nobody", [tensor(module, "x", X, "FP32")])


def test_each_query_of_a_stream_goes_to_its_own_group(grouped: RayCluster) -> None:
    results: list[str] = []

    def add(result: Any, error: Any) -> None:
        results.append(str(error) if error else result.get_response().model_name)

    with grouped.grpc() as client:
        client.start_stream(add)
        client.async_stream_infer("spin", spin(grpc_client, 10, 1))
        client.async_stream_infer("mlp", [tensor(grpc_client, "x", X, "FP32")])
        client.async_stream_infer("nobody", [tensor(grpc_client, "x", X, "FP32")])
        until("all are answered", lambda: len(results) == 3)
        client.stop_stream()
    assert results[:2] == ["spin", "mlp"] and "unknown model 'nobody'" in results[2]


def test_clients_find_the_daemons_and_go_there_themselves(cluster: RayCluster, artifacts: Path) -> None:
    config = cluster.config({"mlp": artifacts / "mlp"}, http="0.0.0.0:0", grpc="0.0.0.0:0")
    cluster.deploy(serve_config(config, Placement((2, 2), direct=True, proxies="HeadOnly")))
    until("the machines are there", lambda: "machines" in cluster.status().deployments and len(daemons()) == 2)
    cluster.wait_until_running()
    directory = f"http://127.0.0.1:{cluster.http_port}/"
    with urllib.request.urlopen(directory + "?tenant=mlp") as answer:
        machines = json.load(answer)["machines"]
    assert len({machine["grpc"] for machine in machines}) == 2
    for machine in machines:
        assert machine["tenants"] == ["mlp"]
        with grpc_client.InferenceServerClient(machine["grpc"]) as client:
            y = client.infer("mlp", [tensor(grpc_client, "x", X, "FP32")]).as_numpy("y")
            np.testing.assert_allclose(y, mlp_outputs(X), rtol=1e-3, atol=1e-4)
    with pytest.raises(urllib.request.HTTPError) as missing:
        urllib.request.urlopen(directory + "?tenant=nobody")
    with missing.value as error:
        assert json.load(error) == {"error": "no machine serves tenant 'nobody'"}


def test_an_artifact_that_a_node_lacks_is_one_line_with_the_node(cluster: RayCluster, tmp_path: Path) -> None:
    config = cluster.config({"lost": tmp_path / "lost"})
    cluster.deploy(serve_config(config, Placement(groups={"losers": ["lost"]}, proxies="HeadOnly")))

    def said() -> str:
        deployment = cluster.status().deployments.get("losers")
        return "" if deployment is None else deployment.message

    until("the status says why", lambda: "no model artifact there" in said())
    [line] = {line for line in said().splitlines() if "no model artifact there" in line}
    assert f"{tmp_path}/lost: no model artifact there" in line and "node " in line
    assert "Traceback" not in said() and "File " not in said()
