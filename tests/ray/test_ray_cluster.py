"""The application on a cluster: stock clients through Ray's proxies, and what is left when parts of it die."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from example_models import LONG_TURNS, mlp_outputs, spin_state
from ray_cluster import RayCluster, are_gone, daemons, family, kill, until
from running_daemon import X, spin, tensor
from tritonclient.utils import InferenceServerException

from veltair.ray.serve_config import Placement, serve_config

pytestmark = pytest.mark.slow
COMPUTES_S = 0.3  # of core time, in which no idle worker comes
MODULES = {"grpc": grpc_client, "http": http_client}


@pytest.fixture(scope="module")
def serving(cluster: RayCluster, artifacts: Path) -> RayCluster:
    config = cluster.config({name: artifacts / name for name in ("mlp", "spin")})
    cluster.deploy(serve_config(config, Placement((2, 2), proxies="HeadOnly")))
    cluster.wait_until_running()
    return cluster


def ask(serving: RayCluster, protocol: str = "grpc") -> None:
    with getattr(serving, protocol)() as client:
        answer = client.infer("mlp", [tensor(MODULES[protocol], "x", X, "FP32")])
        np.testing.assert_allclose(answer.as_numpy("y"), mlp_outputs(X), rtol=1e-3, atol=1e-4)


def healed(count: int = 2, without: psutil.Process | None = None) -> bool:
    fronts = daemons().values()
    return len(fronts) == count and (without is None or without.pid not in [front.pid for front in fronts])


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_stock_client_works_through_ray(serving: RayCluster, protocol: str) -> None:
    module = MODULES[protocol]
    with getattr(serving, protocol)() as client:
        assert client.is_server_ready() and client.is_model_ready("mlp")
        answer = client.infer("mlp", [tensor(module, "x", X, "FP32")], request_id="seven")
        np.testing.assert_allclose(answer.as_numpy("y"), mlp_outputs(X), rtol=1e-3, atol=1e-4)
        response: Any = answer.get_response()
        assert (response.id if protocol == "grpc" else response["id"]) == "seven"
        with pytest.raises(InferenceServerException, match="unknown model 'nobody'") as refused:
            client.infer("nobody", [tensor(module, "x", X, "FP32")])
        assert refused.value.status() == {"grpc": "StatusCode.NOT_FOUND", "http": "404"}[protocol]
        assert client.get_model_repository_index()


def test_a_stream_of_queries_goes_through_ray(serving: RayCluster) -> None:
    results: list[Any] = []
    with serving.grpc() as client:
        client.start_stream(lambda result, error: results.append(error or result.as_numpy("state").item()))
        for seed in range(4):
            client.async_stream_infer("spin", spin(grpc_client, 10, seed))
        until("all are answered", lambda: len(results) == 4)
        client.stop_stream()
    assert results == [spin_state(10, seed) for seed in range(4)]


def test_both_machines_serve_and_each_has_a_daemon_of_its_own(serving: RayCluster) -> None:
    fronts = list(daemons().values())
    assert len(fronts) == 2
    assert all("OMP_NUM_THREADS" not in front.environ() for front in fronts)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(serving), range(32)))


def test_an_actor_that_is_killed_takes_its_daemon_with_it_and_costs_its_own_queries(serving: RayCluster) -> None:
    shared_memory = in_shared_memory()
    before = {replica: worker_s(front) for replica, front in daemons().items()}

    def compute() -> bool:
        return all(worker_s(front) > before[replica] + COMPUTES_S for replica, front in daemons().items())

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(long_query, serving, seed) for seed in range(4)]
        until("both machines compute", compute)
        victim, front = next(iter(daemons().items()))
        members = family(front)
        kill(victim)
        until("the daemon has ended with all it had", lambda: are_gone(members))
        ask(serving)  # at once, on the other machine
        lost = [error for answer in answers if (error := answer.exception()) is not None]
        served = {answer.result() for answer in answers if answer.exception() is None}
    assert 0 < len(lost) < 4, [str(error) for error in lost]
    assert served < {spin_state(LONG, seed) for seed in range(4)}
    for error in lost:
        assert isinstance(error, InferenceServerException)
        assert error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.INTERNAL"), error
    until("another replica is there", lambda: healed(without=front))
    new = in_shared_memory() - shared_memory
    until("tests in other processes to remove theirs", lambda: not new & in_shared_memory())
    serving.wait_until_running()


def test_a_daemon_that_dies_makes_its_replica_unhealthy_and_ray_replaces_it(serving: RayCluster) -> None:
    victim, front = next(iter(daemons().items()))
    kill(front.pid)
    until("another replica is there", lambda: healed(without=front) and victim not in daemons())
    serving.wait_until_running()
    ask(serving)


def test_a_rolling_update_loses_no_query(serving: RayCluster, artifacts: Path) -> None:
    before = set(daemons())
    stop, failures, answered = threading.Event(), [], []

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                ask(serving)
                answered.append(1)
            except InferenceServerException as error:
                failures.append(error)

    config = serving.config({name: artifacts / name for name in ("mlp", "spin")}, queue_slots=512)
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking) for _ in range(4)]
        try:
            serving.deploy(serve_config(config, Placement((2, 2), proxies="HeadOnly")))
            until("both replicas are new", lambda: len(daemons()) == 2 and not before & set(daemons()))
            serving.wait_until_running()
        finally:
            stop.set()
        for each in asking:
            each.result()
    assert answered and not failures


def test_a_raylet_that_is_killed_takes_the_daemon_with_it(serving: RayCluster) -> None:
    node = serving.nodes.pop()
    raylet = node.all_processes["raylet"][0].process
    children = {child.pid for child in psutil.Process(raylet.pid).children(recursive=True)}
    victims = [front for replica, front in daemons().items() if replica in children]
    assert len(victims) == 1
    members = family(victims[0])
    kill(raylet.pid)
    until("the daemon has ended with all it had", lambda: are_gone(members))
    ask(serving)
    serving.cluster.remove_node(node)
    serving.nodes.append(serving.add_node())
    until("a replica is on the new node", lambda: healed(without=victims[0]))
    serving.wait_until_running()


LONG = LONG_TURNS // 3  # some seconds


def long_query(serving: RayCluster, seed: int) -> int:
    with serving.grpc() as client:
        state: int = client.infer("spin", spin(grpc_client, LONG, seed)).as_numpy("state").item()
        return state


def worker_s(front: psutil.Process) -> float:
    """The core time of a daemon's workers."""
    workers = [each for each in front.children(recursive=True) if "worker" in " ".join(each.cmdline())]
    return sum(each.cpu_times().user for each in workers)


def in_shared_memory() -> set[str]:
    """What nobody but Ray's own object store has there."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("plasma")}
