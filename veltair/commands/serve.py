"""`veltair serve CONFIG.toml`: runs the front process, which starts the engine; from start to drain."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import uvloop

from veltair.api.artifacts_config import artifacts_config
from veltair.commands.usage import announce
from veltair.config import ServeConfig, read_config
from veltair.error_line import print_error
from veltair.errors import ConfigError, UserError, VeltairError
from veltair.machine.malloc import reuse_message_memory
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.server.access.certificates import check_files, find_faults
from veltair.server.front.tracing.start import wanted_traces
from veltair.server.front_process import serve
from veltair.server.ipc.logs.json_lines import event
from veltair.server.ipc.process_setup import log_to_stderr, logs_json
from veltair.server.repository.model_folders import configured_models, wanted_versions

_log = logging.getLogger("veltair.server")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", type=Path, nargs="*", metavar="CONFIG.toml|ARTIFACT", help="a configuration, or artifacts to serve"
    )
    parser.add_argument("--repository", type=Path, metavar="DIR", help="a folder of models (server.repository)")
    parser.add_argument(
        "--model-control", action="store_true", help="clients may load and unload models (server.model_control)"
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="where to listen (server.http)")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="where to listen (server.grpc)")
    parser.add_argument("--check", action="store_true", help="check the configuration and its artifacts, serve nothing")
    parser.add_argument("--attached", action="store_true", help="drain and end when stdin closes, as at SIGTERM")
    parser.add_argument("--log-format", choices=("text", "json"), help="of the log on stderr (server.log_format)")
    parser.add_argument("--json", action="store_true", help="say where it listens as one line of JSON")
    parser.epilog = """\
examples:
  veltair serve artifacts/resnet50 artifacts/dlrm
  veltair serve serve.toml
  veltair serve --repository models --model-control"""


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean drain, 2 when the configuration or an artifact is wrong."""
    log_to_stderr("text" if args.check else args.log_format or "text")
    reuse_message_memory()
    try:
        read = partial(_configuration, args)
        if args.check:
            return check(read(), as_json=args.json)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(read, partial(announce, as_json=args.json), attached=args.attached))
    except VeltairError as error:
        if logs_json():
            _log.critical("%s", error, extra=event("failed"))
        else:
            print_error("serve", str(error))
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:  # before the daemon had its own handlers
        return 130
    return 0


def _configuration(args: argparse.Namespace) -> ServeConfig:
    """The file, if there is one, and what the command line says besides. Raises ConfigError or ArtifactError."""
    keys = ("http", "grpc", "log_format")
    own: dict[str, Any] = {key: value for key in keys if (value := getattr(args, key)) is not None}
    if args.repository is not None:
        own["repository"] = str(args.repository.absolute())
    if args.model_control:
        own["model_control"] = True
    if len(args.models) == 1 and not args.models[0].is_dir():
        return read_config(args.models[0], own)
    return artifacts_config(args.models, own, "veltair serve")


def check(config: ServeConfig, *, as_json: bool) -> int:
    """Check the artifacts of the configuration, and say what would be served. Returns 0; raises UserError."""
    wanted_traces(config.server)
    if config.server.tls is not None:
        check_files(config.server.tls)
        for fault in find_faults(config.server.tls):
            print(f"warning: {fault}", file=sys.stderr)
    entries, broken = configured_models(config)
    for reason in broken.values():
        raise ConfigError(reason)
    wanted = [each for entry in entries.values() for each in wanted_versions(entry)]
    found = [(each, load_artifact(each.path)) for each in wanted]
    if as_json:
        print(json.dumps({"ok": True, "tenants": {each.entry.name: artifact.digest for each, artifact in found}}))
        return 0
    for each, artifact in found:
        print(f"{each.entry.name} {each.version}: {artifact.path}\n{indent(artifact.summary(), '  ')}")
    print("the configuration is right")
    return 0
