"""`serve`: the front process, from its start to the end of its drain, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from veltair.address import split_address
from veltair.config import ServeConfig
from veltair.errors import VeltairError
from veltair.grpc.server import BACKLOG
from veltair.server.access.callers import Access
from veltair.server.access.certificates import Certificates
from veltair.server.access.http_access import AccessCheck
from veltair.server.engine.machine_limits import home_core, limit_machine
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.grpc_front import GrpcFront
from veltair.server.front.http_front import application
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.logs.access_log import AccessLog
from veltair.server.front.logs.refusal_bursts import RefusalBursts
from veltair.server.front.metrics import Metrics
from veltair.server.front.monitor.build_info import describe_build
from veltair.server.front.monitor.dashboard import Dashboard
from veltair.server.front.monitor.event_history import EventHistory
from veltair.server.front.monitor.hour_history import HourHistory
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.front.tracing.start import trace_queries, wanted_traces
from veltair.server.ipc.daemon_events import EventKind
from veltair.server.ipc.logs.json_lines import event
from veltair.server.ipc.logs.line_writer import LineWriter, log_beside
from veltair.server.ipc.process_setup import log_to_stderr, set_nice
from veltair.server.lifecycle import SERVING, Signals, ended_before, follow_signals, leave, let_in, reload_when_asked
from veltair.server.listening import FLUSH_S, HttpServer, address_of, bind, listen_inside, start_threads
from veltair.server.protocol.origin_check import OriginCheck, known_hosts
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.model_control import ModelControl
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.service_manager import ServiceManager
from veltair.server.wire import native

NICE = -5  # where allowed: above the workers, since a request or response that waits for a core is lost time

# Called once requests are answered: configuration, tenants by name, HOST:PORT by listener, seconds since the start.
Announce: TypeAlias = Callable[[ServeConfig, Mapping[str, ServedTenant], Mapping[str, str], float], None]

_log = logging.getLogger("veltair.server")


async def serve(read: Callable[[], ServeConfig], announce: Announce, *, attached: bool = False) -> None:
    """Run the front process in this event loop until a signal. Raises ConfigError or ArtifactError.

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
    signals = follow_signals(attached=attached)
    with contextlib.ExitStack() as held:
        front = _FrontProcess(config, signals, manager, held, held.enter_context(log_beside()))
        client = await front.start_engine()
        if client is None:
            return
        try:
            service = front.make_service(client)
            if tracing is not None:
                held.enter_context(trace_queries(tracing, service, client, service.metrics, front.threads))
            await front.serve(client, service, read, announce)
        finally:
            await front.end(client)


class _FrontProcess:
    """The parts of the front process, made in the order of its methods; `held` closes them in reverse."""

    def __init__(
        self,
        config: ServeConfig,
        signals: Signals,
        manager: ServiceManager,
        held: contextlib.ExitStack,
        writer: LineWriter,
    ) -> None:
        """Bind the addresses and start the I/O threads, so that a wrong address is found before models are loaded.
        Nobody is let in yet.
        """
        server = config.server
        self._config, self._signals, self._manager, self._held = config, signals, manager, held
        self._as_lines = server.log_format == "json"
        self._writer = writer if self._as_lines and server.access_log else None
        self._listener = held.enter_context(bind("http", server.http))
        self._admin = None if server.admin is None else held.enter_context(bind("admin", server.admin))
        self._started_s = time.monotonic()
        self._access, self._events = Access(), EventHistory()
        self._machine = limit_machine(server.cores)
        self._hosts = known_hosts(split_address(server.http)[0], server.hosts)
        self.threads = start_threads(server, home_core(self._machine), self._hosts)
        self._certificates: Certificates | None = None
        if self.threads is not None:
            held.callback(self.threads.close)
            if server.tls is not None:
                self._certificates = Certificates(self.threads, server.tls, self._events.add)
        self._service: InferenceService | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def start_engine(self) -> EngineClient | None:
        """Wait until every worker has loaded every model; None if the process is asked to stop before."""
        starting = asyncio.create_task(self._start())
        if await ended_before(self._signals.stop, starting):
            return starting.result()
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().shut_down()
        return None

    async def _start(self) -> EngineClient:
        await let_in(self._access, self._certificates, self.threads, self._config, FolderReads())
        if self._certificates is not None:
            self._run_beside(self._certificates.follow())
        try:
            return await EngineClient.start(self._config, self.threads, self._events.add)
        except (OSError, MemoryError) as error:
            raise VeltairError(f"the engine does not start: {str(error) or 'no memory'}") from None

    def make_service(self, client: EngineClient) -> InferenceService:
        """What answers requests, with its metrics and the logs that were asked for."""
        server, metrics = self._config.server, self._make_metrics(client)
        service = self._service = InferenceService(
            client,
            metrics,
            server.body_limit_mb << 20,
            memory_bytes=server.limits.memory_mb << 20,
            shared_memory=server.shared_memory,
            control=client.control,
            model_control=server.model_control,
        )
        if self._writer is not None:
            log = service.access_log = AccessLog(
                self._writer, metrics.tenant_of, lambda name: metrics.tenants[name].model
            )
            if self.threads is not None:
                self.threads.log_ended(log.add_ended)
                self._run_beside(log.follow(metrics.refresh))
        if self._as_lines:
            self._run_beside(RefusalBursts(metrics).follow())
        return service

    def _make_metrics(self, client: EngineClient) -> Metrics:
        metrics, threads = Metrics({n: (t.manifest.model, t.qos) for n, t in client.tenants.items()}), self.threads
        metrics.build = describe_build(self._config.server.policy)
        metrics.denied = self._access.denied
        if self._certificates is not None:
            metrics.certificate_days = self._certificates.days_left
        if threads is not None:
            metrics.refresh, metrics.connections = threads.drain_counts, threads.connection_counts
            metrics.tenant_of, metrics.version_of = partial(_tenant_of, client), partial(_version_of, client)
            metrics.refused_by_threads = threads.refusal_counts
        metrics.events, metrics.hour = self._events, HourHistory(metrics.tenants, lambda: metrics.refresh())
        self._run_beside(metrics.hour.record())
        return metrics

    async def serve(
        self, client: EngineClient, service: InferenceService, read: Callable[[], ServeConfig], announce: Announce
    ) -> None:
        """Let requests in, say so, and drain once that is asked for."""
        metrics, apart = service.metrics, self._admin is not None
        dashboard = Dashboard(client, metrics, self._machine, apart=apart)
        if client.control is not None:
            self._follow_changes(client, client.control, metrics, dashboard, read)
        threads = self.threads
        learner = None if threads is None else PlanLearner(threads, client, service.regions, self._access)
        grpc_front = await GrpcFront.start(service, self._config.server.grpc, learner, self._access, apart=apart)
        http = self._make_http(service, dashboard, learner)
        http_task = self._listen(http)
        gc.collect()
        gc.freeze()  # what exists now stays: later collections skip it
        client.open_to_threads()
        self._tell_ready(client, service, grpc_front.address, announce)
        await ended_before(self._signals.stop, http_task)
        if self._reloading is not None:
            self._reloading.cancel()
        await self._drain(client, grpc_front)
        if service.traces is not None:
            service.traces.settle(last=True)
        await dashboard.close()
        http.end()
        await asyncio.gather(http_task, grpc_front.stop(FLUSH_S))

    async def end(self, client: EngineClient) -> None:
        """End the engine and what `make_service` and `serve` have left, however far they came."""
        if self._reloading is not None:
            self._reloading.cancel()
        await client.shut_down()
        if self._service is not None:
            await self._service.close()

    def _follow_changes(
        self,
        client: EngineClient,
        control: ModelControl,
        metrics: Metrics,
        dashboard: Dashboard,
        read: Callable[[], ServeConfig],
    ) -> None:
        """Keep clients, metrics and dashboard in step with the models and the configuration."""
        control.read_config, control.on_change = read, partial(_models_changed, client, metrics, dashboard)
        control.on_reload = partial(let_in, self._access, self._certificates, self.threads)
        metrics.on_ended = control.room.ended
        control.room.refresh, metrics.memory_moves = metrics.refresh, control.memory_moves
        self._reloading = asyncio.create_task(reload_when_asked(self._signals.reload, control, self._manager))

    def _make_http(self, service: InferenceService, dashboard: Dashboard, learner: PlanLearner | None) -> HttpServer:
        server = self._config.server
        routes = AccessCheck(application(service, dashboard, learner), self._access, apart=self._admin is not None)
        app = OriginCheck(routes, self._hosts, server.origins)
        secret = None if self.threads is None else self.threads.uvicorn_secret
        scheme = "http" if server.tls is None else "https"
        return HttpServer.of(app, self._listener, server.limits.idle_s, secret, scheme)

    def _listen(self, http: HttpServer) -> asyncio.Task[None]:
        """Accept connections over HTTP: the I/O threads do, and uvicorn from them; without threads uvicorn alone."""
        inside = self._listener if self.threads is None else listen_inside()
        http_task = asyncio.create_task(http.serve(sockets=[inside]))
        if self.threads is None:
            self._listener.listen(BACKLOG)
            return http_task
        self.threads.forward_to(inside)
        self.threads.listen_http(self._listener)
        if self._admin is not None:
            self.threads.listen_http(self._admin, native.ADMIN)
        return http_task

    def _tell_ready(
        self, client: EngineClient, service: InferenceService, grpc_address: str, announce: Announce
    ) -> None:
        addresses = {"http": address_of(self._listener), "grpc": grpc_address}
        if self._admin is not None:
            addresses["admin"] = address_of(self._admin)
        announce(self._config, client.tenants, addresses, time.monotonic() - self._started_s)
        self._events.add(EventKind.STARTED, "", f"version {service.version}, {len(client.tenants)} tenants")
        self._manager.ready(SERVING)
        self._run_beside(self._manager.keep_alive())
        where = ", ".join(map(" ".join, addresses.items()))
        _tell(self._config, "ready", client.tenants, "ready: %s", where, **addresses)

    async def _drain(self, client: EngineClient, grpc_front: GrpcFront) -> None:
        server = self._config.server
        lame_duck_s = server.lame_duck_s if self._signals.stop.is_set() else 0.0
        self._manager.stopping(lame_duck_s + server.drain_timeout_s)
        await leave(client, grpc_front, self._signals.stop_now, lame_duck_s, self._events.add)

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the loop until the process ends."""
        self._held.callback(asyncio.create_task(work).cancel)


def _tell(config: ServeConfig, kind: str, tenants: Iterable[str], text: str, value: str, **fields: str) -> None:
    """Log what a terminal does not need to be told, since `Announce` does."""
    if config.server.log_format == "json":
        _log.info(text, value, extra=event(kind, tenants=list(tenants), **fields))


def _tenant_of(client: EngineClient, number: int) -> str | None:
    """The name of the tenant that the engine knows by this number."""
    served = None if client.numbered is None else client.numbered.served_as(number)
    return None if served is None else served.name


def _version_of(client: EngineClient, number: int) -> str:
    """The version of the model that the engine knows by this number."""
    served = None if client.numbered is None else client.numbered.served_as(number)
    return "" if served is None else served.version


def _models_changed(client: EngineClient, metrics: Metrics, dashboard: Dashboard) -> None:
    """Other models are live than before."""
    for name, served in client.tenants.items():
        metrics.know(name, served.manifest.model, served.qos)
    dashboard.begin_anew()
