"""The configuration file of Ray Serve that `veltair ray` writes, and the options of its deployments."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from veltair.address import split_address
from veltair.api.artifacts_config import configuration_values
from veltair.config import ServeConfig, ServerConfig
from veltair.errors import ConfigError
from veltair.ray.arguments import RouterName, check_groups

IMPORT_PATH = "veltair.ray.app:build"
SERVICER = "veltair.ray.servicer.add_inference_service"
APPLICATION = "veltair"
RESOURCE = "veltair"  # of a node that serves: `ray start --resources '{"veltair": 1}'`
GROUP = "machines"  # the deployment, where there is one
ENTRANCE = "entrance"  # the deployment before several groups, or the one that says where daemons listen
DIRECTORY_PORT = 8500  # where Ray tells where the daemons listen; they have the configuration's ports
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 1.0, 5.0
STOP_S = 30.0  # beyond the daemon's lame duck and drain
SPARE_REQUESTS = 64  # that are not for inference
ENTRANCE_REQUESTS = 4096
MOST_ENTRANCES = 3  # on nodes of their own: the others are there while one is cut off
DIRECTORY_TIMEOUT_S = 10.0  # for a question to a directory that is cut off; the client asks again
POLICY = "veltair.ray.scaling:scale_by_slo"
LOOK_BACK_S = 15.0  # what the autoscaler averages over
GROW_S, SHRINK_S = 10.0, 300.0  # how long it sees a need before it acts


@dataclass(frozen=True, slots=True)
class Placement:
    """What the command line says of the machines.

    >>> Placement(machines=(2, 8)).machines
    (2, 8)
    """

    machines: tuple[int, int] = (1, 1)  # of each group: at least, at most
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # deployment: tenants; default: one with all
    direct: bool = False  # clients reach the daemons themselves
    cpus: float | None = None  # of a node, as Ray counts them; default: server.cores, else 1
    router: RouterName = "deadlines"  # or "two-choices", Ray's own
    proxies: str = "EveryNode"  # where Ray listens
    request_timeout_s: float | None = None  # that a query may take through a proxy, and a whole stream


def machine_options(server: ServerConfig) -> dict[str, Any]:
    """Options of a deployment of `Machine` that no operator needs to change.

    The daemon bounds what it holds and refuses the rest with a reason; Ray's own bounds lie above.
    """
    return {
        "max_ongoing_requests": server.queue_slots + SPARE_REQUESTS,
        "max_queued_requests": server.queue_slots,
        "max_replicas_per_node": 1,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": server.lame_duck_s + server.drain_timeout_s + STOP_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "ray_actor_options": _actor_options(server, None),
    }


def entrance_options() -> dict[str, Any]:
    """Options of the deployment before the machines, which waits for them and computes next to nothing."""
    return {
        "max_ongoing_requests": ENTRANCE_REQUESTS,
        "max_replicas_per_node": 1,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "ray_actor_options": {"num_cpus": 0},
    }


def serve_config(config: ServeConfig, placement: Placement) -> dict[str, Any]:
    """What the file says. Raises ConfigError for what cannot be done behind Ray, or with such groups."""
    groups = {name: list(tenants) for name, tenants in placement.groups.items()}
    groups = groups or {GROUP: [tenant.name for tenant in config.tenants]}
    check_groups(groups, config, "--group")
    _check_server(config.server, direct=placement.direct)
    if ENTRANCE in groups:
        raise ConfigError(f"--group: {ENTRANCE} is the name of what stands before the groups")
    if placement.machines[0] != placement.machines[1] and config.clients:
        raise ConfigError("--machines: with [[clients]] nobody tells the autoscaler the metrics; expected one number")
    args: dict[str, Any] = {"config": configuration_values(config), "groups": groups}
    if placement.direct:
        args["direct"] = True
    if placement.router != Placement().router:
        args["router"] = placement.router
    host, port = split_address(config.server.http)
    listening: dict[str, Any] = {"http_options": {"host": host, "port": DIRECTORY_PORT if placement.direct else port}}
    if placement.direct:
        listening["http_options"]["request_timeout_s"] = DIRECTORY_TIMEOUT_S
    else:
        grpc_port = split_address(config.server.grpc)[1]
        listening["grpc_options"] = {"port": grpc_port, "grpc_servicer_functions": [SERVICER]}
    if placement.request_timeout_s is not None:
        if placement.direct:
            raise ConfigError("--request-timeout: with --direct no query comes through Ray")
        for options in listening.values():
            options["request_timeout_s"] = placement.request_timeout_s
    actor = _actor_options(config.server, placement.cpus)
    deployments = [{"name": name, **_replicas(*placement.machines), "ray_actor_options": actor} for name in groups]
    if placement.direct or len(groups) > 1:  # each machine has a node, so there are nodes for so many
        deployments.append({"name": ENTRANCE, "num_replicas": min(placement.machines[0] * len(groups), MOST_ENTRANCES)})
    return {
        "proxy_location": placement.proxies,
        **listening,
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": args,
                "deployments": deployments,
            }
        ],
    }


def _replicas(least: int, most: int) -> dict[str, Any]:
    if least == most:
        return {"num_replicas": least}
    return {
        "num_replicas": "auto",
        "autoscaling_config": {
            "min_replicas": least,
            "max_replicas": most,
            "look_back_period_s": LOOK_BACK_S,
            "upscale_delay_s": GROW_S,
            "downscale_delay_s": SHRINK_S,
            "policy": {"policy_function": POLICY},
        },
    }


def _actor_options(server: ServerConfig, cpus: float | None) -> dict[str, Any]:
    return {"num_cpus": cpus or server.cores or 1, "resources": {RESOURCE: 1}}


def _check_server(server: ServerConfig, *, direct: bool) -> None:
    if server.repository is not None:
        raise ConfigError("server.repository: behind Ray a machine serves the tenants of the configuration alone")
    if direct:
        for key in ("http", "grpc"):
            if _is_loopback(getattr(server, key)):
                raise ConfigError(
                    f"server.{key}: {getattr(server, key)} is for its own machine alone; name another host"
                )
        return
    if server.tls is not None:
        raise ConfigError("server.tls: clients come to Ray's proxies, which have none of it; see --direct")
    if server.shared_memory:
        raise ConfigError("server.shared_memory: a query may come to another machine than its region; see --direct")
    if server.model_control and not server.fronts:
        raise ConfigError("server.model_control: without I/O threads (fronts = 0) Ray would load on any one machine")


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0]
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
