"""A cluster of Ray with several nodes on this machine, an application on it, and what the system says about it."""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
import running_daemon
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from free_ports import free_ports
from ray import serve
from ray._private.utils import get_ray_address_file
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from veltair.config import parse_config
from veltair.ray.serve_config import APPLICATION, RESOURCE, Placement, serve_config

MEMORY = 80 << 20  # of each node's object store
ATTEMPTS = 3
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
FRONT = "veltair.cli"
QOS_MS = 60_000.0  # slow machines serve every query in time, so none is refused
HUNG_BLOCK_S = 300.0  # on cores that many others want, a block of seconds may take a minute
until = partial(running_daemon.until, seconds=240.0)  # a replica is a daemon's processes behind some of Ray's


def node_arguments(**more: Any) -> dict[str, Any]:
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    return {"num_cpus": 2, "object_store_memory": MEMORY, "include_dashboard": False, **ports, **more}


class RayCluster:
    """Nodes that serve, besides a head that does not, and Serve's proxies at the head."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self.folder = folder
        self.http_port, self.grpc_port = free_ports(2)
        self.cluster = Cluster()
        # Where Ray writes the address of a cluster; it makes the folder for a head without `temp_dir` alone.
        Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)
        self._add_node(temp_dir=str(folder))  # the first one is the head
        self.nodes = [self.add_node() for _ in range(nodes)]
        ray.init(address=self.cluster.address, log_to_driver=False)
        options = {"host": "127.0.0.1", "port": self.http_port}
        content = serve_config(self.config({"m": "/nowhere"}), Placement(proxies="HeadOnly"))
        serve.start(proxy_location="HeadOnly", http_options=options, grpc_options=content["grpc_options"])

    def add_node(self) -> Any:
        return self._add_node(resources={RESOURCE: 1})

    def _add_node(self, **more: Any) -> Any:
        """Ray gives a node's processes 15 s to start, which many others on the machine can make too few."""
        for attempt in range(ATTEMPTS):
            try:
                return self.cluster.add_node(**node_arguments(**more))
            except Exception as error:  # Ray raises nothing more specific
                if attempt + 1 == ATTEMPTS or "timed out" not in str(error).lower():
                    raise
        raise AssertionError

    def config(self, tenants: Mapping[str, str | Path], **server: Any) -> Any:
        """A configuration with clients at Serve's proxies."""
        own = {"http": f"127.0.0.1:{self.http_port}", "grpc": f"127.0.0.1:{self.grpc_port}"}
        own |= {"workers": 2, "cores": 1, "hung_block_s": HUNG_BLOCK_S}
        entries = [{"name": name, "artifact": str(path), "qos_ms": QOS_MS} for name, path in tenants.items()]
        return parse_config({"server": own | server, "tenants": entries}, Path("test.toml"))

    def deploy(self, content: dict[str, Any]) -> None:
        """As `serve deploy`, which asks a dashboard to do this."""
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(content))

    def status(self, application: str = APPLICATION) -> Any:
        return serve.status().applications[application]

    def wait_until_running(self) -> None:
        until("the application runs", lambda: self.status().status == "RUNNING")

    def grpc(self) -> Any:
        return grpc_client.InferenceServerClient(f"127.0.0.1:{self.grpc_port}")

    def http(self) -> Any:
        return http_client.InferenceServerClient(f"127.0.0.1:{self.http_port}")

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


@contextmanager
def ray_environment() -> Iterator[None]:
    """What keeps Ray's processes few and quick to start, and to itself.

    The grammars of `rfc3987_syntax` take 2 s of a core to read, in each of them, since jsonschema loads what is there.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rfc3987_syntax.py").write_text("raise ImportError('not needed here')\n")
        own = {
            "PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            "RAY_raylet_start_wait_time_s": "60",
            "RAY_agent_register_timeout_ms": "120000",
        }
        before = {key: os.environ.get(key) for key in own}
        os.environ.update(own)
        try:
            yield
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})


def daemons() -> dict[int, psutil.Process]:
    """The front process of each daemon that a replica has started, by its process."""
    found = {}
    for replica in psutil.process_iter(["name", "cmdline"]):
        try:
            if "ray::ServeReplica" in " ".join(replica.info["cmdline"] or [replica.info["name"] or ""]):
                fronts = [each for each in replica.children() if FRONT in each.cmdline()]
                if fronts:
                    found[replica.pid] = fronts[0]
        except psutil.NoSuchProcess:
            continue
    return found


def family(front: psutil.Process) -> list[psutil.Process]:
    """A daemon's processes: front, engine, workers and the loader of artifacts."""
    return [front, *front.children(recursive=True)]


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
