"""The application that `serve deploy` builds: `import_path: veltair.ray.app:build`."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException

from veltair.errors import ConfigError
from veltair.ray.arguments import Arguments, group_config, read_arguments
from veltair.ray.directory import Directory
from veltair.ray.entrance import Entrance
from veltair.ray.machine import Machine
from veltair.ray.router import DeadlineRequestRouter
from veltair.ray.serve_config import ENTRANCE, entrance_options, machine_options

REPORT_PERIOD_S = 0.2  # between two reports of a replica to the routers; Ray's controller turns ten times a second


def build(args: dict[str, Any]) -> Application:
    """The application of these `veltair.ray.arguments.Arguments`. Raises RayServeException, whose text alone is what
    `serve status` shows; of another exception it shows a traceback.

    Where there is one group, Ray's proxies send queries to its machines themselves.
    """
    try:
        arguments = read_arguments(args)
    except ConfigError as error:
        raise RayServeException(str(error)) from None
    machines = {group: _machines(arguments, group, args) for group in arguments.groups}
    if arguments.direct:
        return serve.deployment(Directory).options(name=ENTRANCE, **entrance_options()).bind(machines)
    if len(machines) == 1:
        return next(iter(machines.values()))
    homes = {tenant: group for group, tenants in arguments.groups.items() for tenant in tenants}
    return serve.deployment(Entrance).options(name=ENTRANCE, **entrance_options()).bind(machines, homes)


def _machines(arguments: Arguments, group: str, args: dict[str, Any]) -> Application:
    options = machine_options(group_config(arguments, group).server)
    if arguments.router == "deadlines":
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=DeadlineRequestRouter, request_routing_stats_period_s=REPORT_PERIOD_S
        )
    return serve.deployment(Machine).options(name=group, **options).bind(args, group)
