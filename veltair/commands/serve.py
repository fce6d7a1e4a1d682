"""`veltair serve CONFIG.toml`: runs the front process, which starts the engine; from start to drain."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import uvloop

from veltair.api.artifacts_config import artifacts_config
from veltair.commands.usage import announce
from veltair.config import ServeConfig, read_config, split_address
from veltair.error_line import print_error
from veltair.errors import ConfigError, UserError, VeltairError
from veltair.grpc.server import BACKLOG
from veltair.machine.malloc import reuse_message_memory
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.server.access.callers import Access
from veltair.server.access.certificates import Certificates, check_files, find_faults
from veltair.server.access.http_access import AccessCheck
from veltair.server.engine.machine_limits import home_core, limit_machine
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.grpc_front import GrpcFront
from veltair.server.front.http_front import application
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.logs.access_log import AccessLog
from veltair.server.front.logs.line_writer import LineWriter
from veltair.server.front.logs.refusal_bursts import RefusalBursts
from veltair.server.front.metrics import Metrics
from veltair.server.front.monitor.build_info import describe_build
from veltair.server.front.monitor.dashboard import Dashboard
from veltair.server.front.monitor.event_history import EventHistory
from veltair.server.front.monitor.hour_history import HourHistory
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.front.tracing.start import trace_queries, wanted_traces
from veltair.server.ipc.daemon_events import EventKind
from veltair.server.ipc.json_lines import event
from veltair.server.ipc.process_setup import log_to_stderr, logs_json, set_nice
from veltair.server.lifecycle import SERVING, ended_before, leave, let_in, read_stdin, reload_when_asked
from veltair.server.listening import FLUSH_S, HttpServer, address_of, bind, listen_inside, start_threads
from veltair.server.protocol.origin_check import OriginCheck, known_hosts
from veltair.server.repository.model_folders import configured_models, wanted_versions
from veltair.server.service_manager import ServiceManager
from veltair.server.wire import native

NICE = -5  # where allowed: above the workers, since a request or response that waits for a core is lost time

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
            runner.run(serve(read, as_json=args.json, attached=args.attached))
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


async def serve(read: Callable[[], ServeConfig], *, as_json: bool, attached: bool = False) -> None:
    """Run the front process in one event loop until a signal. Raises ConfigError or ArtifactError.

    The first SIGTERM or SIGINT drains, after `lame_duck_s`; the second ends at once. `read` gives the configuration,
    again at a SIGHUP. `attached`: the end of stdin is like a first signal.
    """
    manager = ServiceManager()
    config = read()
    log_to_stderr(config.server.log_format)
    _tell(config, "start", [each.name for each in config.tenants], "starting with the policy %s", config.server.policy)
    tracing = wanted_traces(config.server)
    manager.loading()
    set_nice(NICE)
    stop, stop_now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stop_now.set() if stop.is_set() else stop.set())
    if attached:
        loop.add_reader(sys.stdin.fileno(), read_stdin, loop, stop)
    again = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, again.set)
    with contextlib.ExitStack() as held:
        as_lines = config.server.log_format == "json"
        writer = held.enter_context(LineWriter(sys.stderr.fileno())) if as_lines and config.server.access_log else None
        listener = held.enter_context(bind("http", config.server.http))  # nobody is let in before somebody answers
        admin = None if config.server.admin is None else held.enter_context(bind("admin", config.server.admin))
        started = time.monotonic()
        access = Access()
        machine = limit_machine(config.server.cores)
        hosts = known_hosts(split_address(config.server.http)[0], config.server.hosts)
        threads = start_threads(config.server, home_core(machine), hosts)
        certificates, events = None, EventHistory()
        if threads is not None:
            held.callback(threads.close)
            if config.server.tls is not None:
                certificates = Certificates(threads, config.server.tls, events.add)
                held.callback(asyncio.create_task(certificates.follow()).cancel)
        let_in(access, certificates, threads, config)
        starting = asyncio.create_task(EngineClient.start(config, threads, events.add))
        if not await ended_before(stop, starting):
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().shut_down()
            return
        client = starting.result()
        service: InferenceService | None = None
        reloading: asyncio.Task[None] | None = None
        try:
            metrics = Metrics({n: (t.manifest.model, t.qos) for n, t in client.tenants.items()})
            metrics.denied = access.denied
            if certificates is not None:
                metrics.certificate_days = certificates.days_left
            if threads is not None:
                metrics.refresh, metrics.connections = threads.drain_counts, threads.connection_counts
                metrics.tenant_of, metrics.version_of = partial(_tenant_of, client), partial(_version_of, client)
                metrics.refused_by_threads = threads.refusal_counts
            metrics.events, metrics.hour = events, HourHistory(metrics.tenants, lambda: metrics.refresh())
            held.callback(asyncio.create_task(metrics.hour.record()).cancel)
            service = InferenceService(
                client,
                metrics,
                config.server.body_limit_mb << 20,
                memory_bytes=config.server.limits.memory_mb << 20,
                shared_memory=config.server.shared_memory,
                control=client.control,
                model_control=config.server.model_control,
            )
            if writer is not None:
                log = service.access_log = AccessLog(
                    writer, metrics.tenant_of, lambda name: metrics.tenants[name].model
                )
                if threads is not None:
                    threads.log_ended(log.add_ended)
                    held.callback(asyncio.create_task(log.follow(metrics.refresh)).cancel)
            if tracing is not None:
                held.enter_context(trace_queries(tracing, service, client, metrics, threads))
            if as_lines:
                held.callback(asyncio.create_task(RefusalBursts(metrics).follow()).cancel)
            metrics.build = describe_build(config.server.policy)
            dashboard = Dashboard(client, metrics, machine, apart=admin is not None)
            if (control := client.control) is not None:
                control.read_config, control.on_change = read, partial(_tell_of_models, client, metrics, dashboard)
                control.on_reload = partial(let_in, access, certificates, threads)
                metrics.on_ended = control.room.ended
                control.room.refresh, metrics.memory_moves = metrics.refresh, control.memory_moves
                reloading = asyncio.create_task(reload_when_asked(again, control, manager))
            learner = None if threads is None else PlanLearner(threads, client, service.regions, access)
            grpc_front = await GrpcFront.start(service, config.server.grpc, learner, access, apart=admin is not None)
            routes = AccessCheck(application(service, dashboard, learner), access, apart=admin is not None)
            app = OriginCheck(routes, hosts, config.server.origins)
            secret = None if threads is None else threads.uvicorn_secret
            http = HttpServer.of(app, listener, config.server.limits.idle_s, secret)
            inside = listener if threads is None else listen_inside()
            http_task = asyncio.create_task(http.serve(sockets=[inside]))
            if threads is not None:
                threads.forward_to(inside)
                threads.listen_http(listener)
                if admin is not None:
                    threads.listen_http(admin, native.ADMIN)
            else:
                listener.listen(BACKLOG)
            gc.collect()
            gc.freeze()  # what exists now stays: later collections skip it
            client.open_to_threads()
            addresses = {"http": address_of(listener), "grpc": grpc_front.address}
            if admin is not None:
                addresses["admin"] = address_of(admin)
            announce(config, client.tenants, addresses, time.monotonic() - started, as_json=as_json)
            events.add(EventKind.STARTED, "", f"version {service.version}, {len(client.tenants)} tenants")
            manager.ready(SERVING)
            held.callback(asyncio.create_task(manager.keep_alive()).cancel)
            where = ", ".join(map(" ".join, addresses.items()))
            _tell(config, "ready", client.tenants, "ready: %s", where, **addresses)
            await ended_before(stop, http_task)
            if reloading is not None:
                reloading.cancel()
            lame_duck_s = config.server.lame_duck_s if stop.is_set() else 0.0
            manager.stopping(lame_duck_s + config.server.drain_timeout_s)
            await leave(client, grpc_front, stop_now, lame_duck_s, events.add)
            if service.traces is not None:
                service.traces.settle(last=True)
            await dashboard.close()
            http.end()
            await asyncio.gather(http_task, grpc_front.stop(FLUSH_S))
        finally:
            if reloading is not None:
                reloading.cancel()
            await client.shut_down()
            if service is not None:
                await service.close()


def _tell(config: ServeConfig, kind: str, tenants: Iterable[str], text: str, value: str, **fields: str) -> None:
    """Log what a terminal does not need to be told, since `announce` does."""
    if config.server.log_format == "json":
        _log.info(text, value, extra=event(kind, tenants=list(tenants), **fields))


def _tenant_of(client: EngineClient, number: int) -> str | None:
    """The name of the tenant that the engine knows by this number."""
    served = None if client.numbered is None else client.numbered.served_as(number)
    return None if served is None else served.name


def _version_of(client: EngineClient, number: int) -> str:
    """Of the model that the engine knows by this number."""
    served = None if client.numbered is None else client.numbered.served_as(number)
    return "" if served is None else served.version


def _tell_of_models(client: EngineClient, metrics: Metrics, dashboard: Dashboard) -> None:
    """Other models are live than before."""
    for name, served in client.tenants.items():
        metrics.know(name, served.manifest.model, served.qos)
    dashboard.begin_anew()
