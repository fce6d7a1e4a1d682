"""`veltair serve CONFIG.toml`: runs the front process, which starts the engine; from start to drain."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from msgspec.structs import replace
from rich.console import Console
from starlette.types import ASGIApp, Receive, Scope, Send

from veltair.config import ServeConfig, ServerConfig, parse_config, read_config, split_address
from veltair.errors import ConfigError, UserError, VeltairError
from veltair.grpc.server import BACKLOG
from veltair.machine.malloc import reuse_message_memory
from veltair.server.engine.machine_limits import home_core, limit_machine
from veltair.server.front.dashboard import Dashboard
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.grpc_front import GrpcFront, start_threads
from veltair.server.front.http_front import application
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.metrics import Metrics
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.ipc.process_setup import set_nice
from veltair.server.protocol.origin_check import OriginCheck, known_hosts
from veltair.server.repository.model_control import ModelControl

OTHER_DESCRIPTORS = 256  # of libraries, the engine, the threads, the dashboard
FLUSH_S = 2.0  # for responses still being sent when everything else has ended
NICE = -5  # where allowed: above the workers, since a request or response that waits for a core is lost time

_log = logging.getLogger("veltair.server")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG.toml")
    parser.add_argument("--repository", type=Path, metavar="DIR", help="a folder of models (server.repository)")
    parser.add_argument(
        "--model-control", action="store_true", help="clients may load and unload models (server.model_control)"
    )
    parser.add_argument("--json", action="store_true", help="say where it listens as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean drain, 2 when the configuration or an artifact is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    reuse_message_memory()
    try:
        read = partial(_configuration, args.config, args.repository, args.model_control)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(read, as_json=args.json))
    except VeltairError as error:
        print(f"veltair serve: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:  # before the daemon had its own handlers
        return 130
    return 0


def _configuration(path: Path | None, repository: Path | None, model_control: bool) -> ServeConfig:
    """The file, if there is one, and what the command line says besides. Raises ConfigError."""
    own: dict[str, Any] = {} if repository is None else {"repository": str(repository.absolute())}
    if model_control:
        own["model_control"] = True
    if path is None:
        return parse_config({"server": own}, Path("veltair serve"))
    return read_config(path, own)


def with_descriptors(server: ServerConfig) -> ServerConfig:
    """Raise the number of open files as far as the system lets us, and bound the connections by it.

    A connection over HTTP may need one more inside; the rest of the process has a few.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = max(1, (most - OTHER_DESCRIPTORS) // 2)
    if server.limits.connections <= connections:
        return server
    _log.warning("%d connections at most: the system gives this process %d descriptors", connections, most)
    return replace(server, limits=replace(server.limits, connections=connections))


class _HttpServer(uvicorn.Server):
    """Does not handle signals: `serve` does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(read: Callable[[], ServeConfig], *, as_json: bool) -> None:
    """Run the front process in one event loop until a signal. Raises ConfigError or ArtifactError.

    The first SIGTERM or SIGINT drains, after `lame_duck_s`; the second ends at once. `read` gives the configuration,
    again at a SIGHUP.
    """
    config = read()
    set_nice(NICE)
    stop, stop_now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stop_now.set() if stop.is_set() else stop.set())
    again = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, again.set)
    listener = _bind(config.server.http)  # nobody is let in before somebody answers
    started = time.monotonic()
    with contextlib.closing(listener), contextlib.ExitStack() as held:
        machine = limit_machine(config.server.cores)
        hosts = known_hosts(split_address(config.server.http)[0], config.server.hosts)
        threads = start_threads(with_descriptors(config.server), home_core(machine), hosts)
        if threads is not None:
            held.callback(threads.close)
        starting = asyncio.create_task(EngineClient.start(config, threads))
        if not await _ended_before(stop, starting):
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
            if threads is not None:
                metrics.refresh, metrics.connections = threads.drain_counts, threads.connection_counts
                metrics.tenant_of = client.tenant_of
            service = InferenceService(
                client,
                metrics,
                config.server.body_limit_mb << 20,
                memory_bytes=config.server.limits.memory_mb << 20,
                shared_memory=config.server.shared_memory,
                control=client.control,
                model_control=config.server.model_control,
            )
            about = {"version": service.version, "policy": config.server.policy}
            dashboard = Dashboard(client, metrics, machine, about)
            if (control := client.control) is not None:
                control.read_config, control.on_change = read, partial(_tell_of_models, client, metrics, dashboard)
                reloading = asyncio.create_task(_reload_when_asked(again, control))
            learner = None if threads is None else PlanLearner(threads, client, service.regions)
            grpc_front = await GrpcFront.start(service, config.server.grpc, learner)
            app = OriginCheck(application(service, dashboard, learner), hosts, config.server.origins)
            http = _http_server(app, listener, config.server.limits.idle_s)
            inside = listener if threads is None else _listen_inside()
            http_task = asyncio.create_task(http.serve(sockets=[inside]))
            if threads is not None:
                threads.listen_http(listener, inside)
            else:
                listener.listen(BACKLOG)
            gc.collect()
            gc.freeze()  # what exists now stays: later collections skip it
            client.open_to_threads()
            _announce(
                config, client.tenants, _address(listener), grpc_front.address, time.monotonic() - started, as_json
            )
            await _ended_before(stop, http_task)
            await _leave(client, grpc_front, stop_now, config.server.lame_duck_s if stop.is_set() else 0.0)
            await dashboard.close()
            http.should_exit = True
            await asyncio.gather(http_task, grpc_front.stop(FLUSH_S))
        finally:
            if reloading is not None:
                reloading.cancel()
            await client.shut_down()
            if service is not None:
                await service.close()


async def _reload_when_asked(again: asyncio.Event, control: ModelControl) -> None:
    while True:
        await again.wait()
        again.clear()
        try:
            done = await control.reload()
        except VeltairError as error:
            _log.error("%s", error)
        else:
            _log.info("the configuration was read again: %s", ", ".join(done) or "nothing has changed")


def _tell_of_models(client: EngineClient, metrics: Metrics, dashboard: Dashboard) -> None:
    """Other models are live than before."""
    for name, served in client.tenants.items():
        metrics.know(name, served.manifest.model, served.qos)
    dashboard.begin_anew()


def _http_server(app: ASGIApp, listener: socket.socket, idle_s: float) -> _HttpServer:
    """`listener` is the one that clients know, whichever uvicorn accepts from."""
    server = listener.getsockname()[:2]

    async def seen_from_outside(scope: Scope, receive: Receive, send: Send) -> None:
        scope["server"] = server
        await app(scope, receive, send)

    config = uvicorn.Config(
        seen_from_outside,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        server_header=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=math.ceil(idle_s),
        timeout_graceful_shutdown=int(FLUSH_S),
    )
    return _HttpServer(config)


async def _ended_before(stop: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for either. Returns whether the task has ended."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, task], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    return task.done()


async def _leave(client: EngineClient, grpc_front: GrpcFront, stop_now: asyncio.Event, lame_duck_s: float) -> None:
    """Be not ready, serve for `lame_duck_s` more, and answer the accepted queries; a second signal ends the wait."""
    client.report_not_ready()
    await grpc_front.report_draining()
    if lame_duck_s:
        _log.info("not ready any more; serving for %.1f s more, or until a second signal", lame_duck_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_now.wait(), lame_duck_s)
    _log.info("draining: accepted queries are answered, new ones refused; a second signal ends at once")
    draining = asyncio.create_task(client.drain())
    if not await _ended_before(stop_now, draining):
        await client.shut_down()
    await draining


def _bind(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"server.http: cannot listen on {address} ({error.strerror})") from None
    return listener


def _listen_inside() -> socket.socket:
    """Where the I/O threads reach uvicorn: a Unix socket with a name that the system gives, which is no file's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")
    listener.listen(BACKLOG)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _announce(config: ServeConfig, names: Collection[str], http: str, grpc: str, seconds: float, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ready": True, "http": http, "grpc": grpc}), flush=True)
        return
    console = Console(highlight=False)
    names = ", ".join(names) or "no model yet"
    console.print(f"[bold]veltair[/] serves {names} [dim](policy {config.server.policy}, up in {seconds:.1f} s)[/]")
    for label, url in (("HTTP", f"http://{http}"), ("gRPC", f"grpc://{grpc}"), ("Dashboard", f"http://{http}/admin")):
        console.print(f"  [dim]{label:<10}[/] [cyan]{url}[/]")
