"""The HTTP front: Open Inference Protocol v2, /metrics and the dashboard as an ASGI application.

Every error is `{"error": "…"}` with the status of its class. An unexpected error is logged, and the client reads
"internal error" alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from veltair.errors import QueryError, RefusedError, RequestError, TooLargeError, UnsupportedError, quoted
from veltair.server.front import metrics
from veltair.server.front.http_body import HEADER_LENGTH, read_body, read_control_body, read_infer_request
from veltair.server.front.inference_service import TENANT_HEADER, InferenceService
from veltair.server.front.monitor.api_description import ApiPages
from veltair.server.front.monitor.dashboard import Dashboard
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.front.process_metrics import read_daemon_processes
from veltair.server.front.query_result import wants_trace
from veltair.server.front.shared_memory_regions import CudaRegions, SharedMemoryRegions
from veltair.server.ipc.stages import server_timing
from veltair.server.protocol.compressed_body import deflate, response_coding
from veltair.server.protocol.failed_queries import CLIENT_CLOSED, one_line
from veltair.server.protocol.http_codec import encode_response
from veltair.server.protocol.json_parser import INLINE_BYTES
from veltair.server.protocol.repository_request import wants_ready
from veltair.server.protocol.request_bounds import only_value

RETRY_AFTER_S = 1

_log = logging.getLogger(__name__)
# FastAPI's own would trace requests besides, and its logs have texts of errors: `server.otel` is the one way.
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
READ = ["GET", "HEAD"]  # Starlette's own routes add HEAD by themselves; uvicorn sends no body for it
_UNSUPPORTED = ("trace", "logging")


def application(service: InferenceService, dashboard: Dashboard, learner: PlanLearner | None = None) -> FastAPI:
    """All routes. The inference route comes first: routes are tried in their order.

    `learner` writes down what requests become, where I/O threads can follow it.
    """
    app = FastAPI(title="veltair", docs_url=None, redoc_url=None, openapi_url=None, telemetry=_NO_TELEMETRY)
    _add_error_handlers(app)
    _add_inference(app, service, learner)
    _add_models(app, service)
    _add_server(app, service)
    _add_shared_memory(app, "system", service.regions)
    _add_shared_memory(app, "cuda", CudaRegions(service.regions))
    _add_pages(app, service, dashboard)
    return app


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": text}, status, headers)


def _add_error_handlers(app: FastAPI) -> None:
    async def refused(_: Request, error: Any) -> Response:
        headers = {}
        if error.http_status == 503:
            headers["Retry-After"] = str(RETRY_AFTER_S)
        if isinstance(error, TooLargeError):
            headers["Connection"] = "close"  # the rest of the body is not read
        return _error(error.http_status, str(error), headers)

    async def no_route(request: Request, error: Any) -> Response:
        path = quoted(request.url.path)
        text = {404: f"there is no {path}", 405: f"{path} does not take {request.method}"}
        return _error(error.status_code, text.get(error.status_code, str(error.detail)), error.headers)

    async def invalid(_: Request, error: Any) -> Response:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _error(422, faults)

    async def gone(_request: Request, _error: Any) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    async def broken(request: Request, error: Any) -> Response:
        _log.error("%s %s failed", request.method, one_line(request.url.path), exc_info=error)
        return _error(500, "internal error")

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(QueryError, refused)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, broken)


async def _cancel_on_disconnect(request: Request, task: asyncio.Task[Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def _add_inference(app: FastAPI, service: InferenceService, learner: PlanLearner | None) -> None:
    async def infer(request: Request) -> Response:
        try:
            tenant = only_value(request.headers.getlist(TENANT_HEADER), TENANT_HEADER)
            received = await read_infer_request(
                request, service.parser, service.body_limit_bytes, service.bodies, service.unpacker
            )
        except (RequestError, RefusedError) as error:
            service.metrics.count_unread(error)
            raise
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_cancel_on_disconnect(request, task))
        decoded = received.request
        model, version = request.path_params["model"], request.path_params.get("version", "")
        traces = service.traces
        fields = request.headers.getlist("traceparent"), request.headers.getlist("tracestate")
        trace = None if traces is None else traces.begin(*fields, "http")
        try:
            response = await service.infer(
                model,
                version,
                decoded,
                arrival_ns=time.monotonic_ns(),
                tenant=tenant,
                trace=trace,
            )
        except asyncio.CancelledError:
            if not watch.done():
                raise
            task.uncancel()
            return Response(status_code=CLIENT_CLOSED)
        finally:
            watch.cancel()
        encoded = encode_response(
            model, response.served.version, decoded, response.outputs, response.parameters, response.stored
        )
        if learner is not None and not wants_trace(decoded.parameters):
            learner.learn_http(request.scope["raw_path"], received, tenant, response.served, response, encoded)
        headers = {"Server-Timing": server_timing(response.stage_ns)}
        body = encoded.body
        if encoded.header_bytes is not None:
            headers[HEADER_LENGTH] = str(encoded.header_bytes)
        coding = response_coding(request.headers.get("accept-encoding", ""))
        if coding:
            body = await asyncio.to_thread(deflate, body, coding)
            headers["Content-Encoding"] = coding
        service.encoded(response)
        kind = "application/json" if encoded.header_bytes is None else "application/octet-stream"
        return Response(body, 200, headers, kind)

    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        app.add_route(path, infer, methods=["POST"])


def _add_models(app: FastAPI, service: InferenceService) -> None:
    @app.api_route("/v2/models/stats", methods=READ)
    async def all_statistics() -> Response:
        return _json(await service.statistics())

    def add(suffix: str, answer: Callable[[str, str], Awaitable[Response]]) -> None:
        async def latest(model: str) -> Response:
            return await answer(model, "")

        async def versioned(model: str, version: str) -> Response:
            return await answer(model, version)

        app.add_api_route(f"/v2/models/{{model}}{suffix}", latest, methods=READ)
        app.add_api_route(f"/v2/models/{{model}}/versions/{{version}}{suffix}", versioned, methods=READ)

    async def ready(model: str, version: str) -> Response:
        service.resolve(model, version)
        return _health(service)

    async def configuration(model: str, version: str) -> Response:
        return _json(service.model_configuration(model, version))

    async def statistics(model: str, version: str) -> Response:
        return _json(await service.statistics(model, version))

    async def metadata(model: str, version: str) -> Response:
        return _json(service.model_metadata(model, version))

    for suffix, answer in (("/ready", ready), ("/config", configuration), ("/stats", statistics), ("", metadata)):
        add(suffix, answer)


def _health(service: InferenceService) -> Response:
    if service.engine.ready:
        return Response(status_code=200)
    return _error(503, "the server is starting or shutting down", {"Retry-After": str(RETRY_AFTER_S)})


def _add_server(app: FastAPI, service: InferenceService) -> None:
    @app.api_route("/v2", methods=READ)
    async def server() -> Response:
        return _json(service.server_metadata())

    @app.api_route("/v2/health/live", methods=READ)
    async def live() -> Response:
        return Response(status_code=200)

    @app.api_route("/v2/health/ready", methods=READ)
    async def ready() -> Response:
        return _health(service)

    @app.post("/v2/repository/index")
    async def index(request: Request) -> Response:
        ready_alone = wants_ready(await read_body(request, INLINE_BYTES))
        return _json(service.repository_index(ready_alone=ready_alone))

    @app.post("/v2/repository/models/{model}/{action}")
    async def control(model: str, action: str, request: Request) -> Response:
        if action not in ("load", "unload"):
            raise HTTPException(404)
        control = service.require_control(what := f"{quoted(model)} is not {action}ed")
        await read_control_body(request, what)
        await (control.load(model) if action == "load" else control.unload(model))
        return _json({})

    async def unsupported(request: Request) -> Response:
        raise UnsupportedError(f"{quoted(request.url.path)} is not supported: no trace or logging control")

    for path in [f"/v2/{name}" for name in _UNSUPPORTED] + ["/v2/models/{model}/trace"]:
        app.add_route(path, unsupported, methods=["GET", "POST"])
        app.add_route(path + "/{rest:path}", unsupported, methods=["GET", "POST"])


class _RegionRegistration(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


def _add_shared_memory(app: FastAPI, kind: str, regions: SharedMemoryRegions | CudaRegions) -> None:
    async def status(request: Request) -> Response:
        return _json([region.description() for region in regions.list_regions(request.path_params.get("region", ""))])

    async def register(request: Request) -> Response:
        regions.require_allowed()
        name = request.path_params["region"]
        try:
            asked = msgspec.json.decode(await read_body(request, INLINE_BYTES), type=_RegionRegistration)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"region {quoted(name)}: {error}") from None
        regions.register(name, asked.key, asked.offset, asked.byte_size)
        return _json({})

    async def unregister(request: Request) -> Response:
        regions.unregister(request.path_params.get("region", ""))
        return _json({})

    memory = f"/v2/{kind}sharedmemory"
    for path in (memory, memory + "/region/{region}"):
        app.add_route(f"{path}/status", status, methods=["GET"])
        app.add_route(f"{path}/unregister", unregister, methods=["POST"])
    app.add_route(memory + "/region/{region}/register", register, methods=["POST"])


def _add_pages(app: FastAPI, service: InferenceService, dashboard: Dashboard) -> None:
    @app.post("/admin/reload")
    async def reload() -> Response:
        done = await service.require_control("the configuration is not read again").reload()
        return _json({"done": done})

    @app.api_route("/metrics", methods=READ)
    async def scrape(request: Request) -> Response:
        snapshot = await dashboard.snapshot()
        processes = await asyncio.to_thread(read_daemon_processes, snapshot)
        openmetrics = metrics.wants_openmetrics(request.headers.get("accept", ""))
        page = service.metrics.page(snapshot, processes, openmetrics=openmetrics)
        kind = metrics.OPENMETRICS_TYPE if openmetrics else metrics.CONTENT_TYPE
        return Response(page, headers={"Content-Type": kind, "Vary": "Accept"})

    api = ApiPages(service.version)
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/docs", api.page),
        ("/openapi.json", api.description),
        ("/", dashboard.front_door),
        ("/admin", dashboard.page),
        ("/admin/", dashboard.page),
        ("/admin/events", dashboard.stream),
        ("/admin/api/events", dashboard.past_events),
        ("/admin/api/models/{model}", dashboard.model),
        ("/admin/models/{model}", dashboard.model_page),
        ("/admin/{name}", dashboard.file),
    ]
    for path, endpoint in routes:
        app.add_route(path, endpoint, methods=["GET"])
