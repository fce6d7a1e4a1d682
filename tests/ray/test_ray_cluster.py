"""The application on a cluster: stock clients through Ray's proxies, and what is left when parts of it die."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from example_models import mlp_outputs
from ray_cluster import RayCluster
from running_daemon import X, tensor
from tritonclient.utils import InferenceServerException

from veltair.ray.serve_config import Placement, serve_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serving(cluster: RayCluster, artifacts: Path) -> RayCluster:
    config = cluster.config({name: artifacts / name for name in ("mlp", "spin")})
    cluster.deploy(serve_config(config, Placement((2, 2), proxies="HeadOnly")))
    cluster.wait_until_running()
    return cluster


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_stock_client_works_through_ray(serving: RayCluster, protocol: str) -> None:
    module, client = {"grpc": (grpc_client, serving.grpc), "http": (http_client, serving.http)}[protocol]
    with client() as asking:
        assert asking.is_server_ready() and asking.is_model_ready("mlp")
        answer = asking.infer("mlp", [tensor(module, "x", X, "FP32")], request_id="seven")
        np.testing.assert_allclose(answer.as_numpy("y"), mlp_outputs(X), rtol=1e-3, atol=1e-4)
        response: Any = answer.get_response()
        assert (response.id if protocol == "grpc" else response["id"]) == "seven"
        with pytest.raises(InferenceServerException, match="unknown model 'nobody'") as refused:
            asking.infer("nobody", [tensor(module, "x", X, "FP32")])
        assert refused.value.status() == {"grpc": "StatusCode.NOT_FOUND", "http": "404"}[protocol]
