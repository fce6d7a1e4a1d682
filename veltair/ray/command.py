"""`veltair ray CONFIG.toml`: writes the configuration by which Ray Serve runs a daemon on each of many machines."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, get_args

from veltair.config import read_config
from veltair.errors import ConfigError
from veltair.machine.whole_file import whole_file
from veltair.ray.arguments import RouterName
from veltair.ray.serve_config import RESOURCE, Placement, serve_config

MOST_MACHINES = 10_000
MOST = 1_000_000  # CPUs of a node, seconds of a query
PROXIES = {"every": "EveryNode", "head": "HeadOnly"}
HEADER = """\
# Written by `veltair ray`. Start each node that serves with: ray start --resources '{{"{resource}": 1}}'
# It needs the artifacts under the same paths. Then: serve deploy {file}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="a configuration of `veltair serve`")
    parser.add_argument("--out", type=Path, default=Path("ray.yaml"), metavar="FILE", help="default: ray.yaml")
    parser.add_argument("--machines", default="1", metavar="N|MIN-MAX", help="of each group (default: 1)")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=TENANT,…",
        help="a deployment with these tenants alone, again for each group (default: one with all of them)",
    )
    parser.add_argument(
        "--router", choices=get_args(RouterName), default="deadlines", help="default: deadlines; the other is Ray's own"
    )
    parser.add_argument("--direct", action="store_true", help="clients reach the daemons; Ray says where these are")
    parser.add_argument(
        "--cpus", type=float, metavar="N", help="of a node, as Ray counts (default: server.cores, or 1)"
    )
    parser.add_argument(
        "--request-timeout",
        type=float,
        metavar="S",
        help="a query that is longer on its way fails, as one at a machine that is cut off does; so does a gRPC stream "
        "(default: no limit)",
    )
    parser.add_argument("--proxies", choices=PROXIES, default="every", help="nodes where Ray listens (default: every)")
    parser.epilog = """\
examples:
  veltair ray serve.toml --machines 4
  veltair ray serve.toml --machines 2-16 --group vision=resnet50,efficientnet --group ads=dlrm"""


def run(args: argparse.Namespace) -> int:
    """Write the file. Returns 0; raises ConfigError where it exists already, or for what Ray cannot be told."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("PyYAML is missing: pip install 'veltair[ray]'") from None
    config = read_config(args.config)
    placement = Placement(
        machines=_range(args.machines),
        groups=_groups(args.group),
        direct=args.direct,
        cpus=_positive("--cpus", args.cpus),
        router=args.router,
        proxies=PROXIES[args.proxies],
        request_timeout_s=_positive("--request-timeout", args.request_timeout),
    )
    content = serve_config(config, placement)
    text = HEADER.format(resource=RESOURCE, file=args.out) + yaml.safe_dump(content, sort_keys=False)
    try:
        with whole_file(args.out, new=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{args.out}: {error.strerror}") from None
    print(f"{args.out}: {_summary(content)}; deploy it: serve deploy {args.out}")
    return 0


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", text)
    least, most = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if not 1 <= least <= most <= MOST_MACHINES:
        raise ConfigError(f"--machines: expected N or MIN-MAX from 1 to {MOST_MACHINES}, got {text!r:.80}")
    return least, most


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value <= MOST:
        raise ConfigError(f"{option}: expected a number above 0, to {MOST:,}, got {value:g}")
    return value


def _groups(texts: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, equals, tenants = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(f"--group: expected NAME=TENANT,TENANT with letters, digits, - and _, got {text!r:.80}")
        if name in groups:
            raise ConfigError(f"--group: {name} appears twice")
        groups[name] = [tenant for tenant in tenants.split(",") if tenant]
    return groups


def _summary(content: dict[str, Any]) -> str:
    [application] = content["applications"]
    return ", ".join(f"{name} with {', '.join(tenants)}" for name, tenants in application["args"]["groups"].items())
