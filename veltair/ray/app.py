"""The application that `serve deploy` builds: `import_path: veltair.ray.app:build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application

from veltair.ray.arguments import group_config, read_arguments
from veltair.ray.machine import Machine
from veltair.ray.serve_config import machine_options


def build(args: dict[str, Any]) -> Application:
    """The application of these `veltair.ray.arguments.Arguments`. Raises ConfigError."""
    arguments = read_arguments(args)
    plain: Mapping[str, Any] = args
    machines = {
        group: serve.deployment(Machine)
        .options(name=group, **machine_options(group_config(arguments, group).server))
        .bind(plain, group)
        for group in arguments.groups
    }
    return next(iter(machines.values()))
