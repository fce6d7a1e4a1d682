"""`/openapi.json` and `/docs`: what the server takes over HTTP, for programs and for people.

The page has no script and one style, which its policy allows by digest: it needs no other host.
"""

from __future__ import annotations

import hashlib
import html
from base64 import b64encode
from typing import Any, NamedTuple

import msgspec
from fastapi import Request, Response

from veltair.server.front.http_body import HEADER_LENGTH
from veltair.server.front.inference_service import TENANT_HEADER
from veltair.server.front.monitor.static_files import HEADERS
from veltair.server.protocol.datatypes import BYTES, DTYPES
from veltair.server.protocol.request_bounds import MAX_RANK, MAX_TENSORS

_MODEL = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td { padding: .2rem 1rem .2rem 0; vertical-align: top } code { white-space: nowrap }
@media (prefers-color-scheme: dark) { body { background: #161c24; color: #e6e6e6 } a { color: #8ab4f8 } }
"""
_POLICY = HEADERS["Content-Security-Policy"].replace(
    "style-src 'self'", f"style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


class Operation(NamedTuple):
    """What one method of a path does.

    >>> Operation("get", "/v2", "the server").replies
    'application/json'
    """

    method: str
    path: str
    summary: str
    takes: str = ""  # the schema of the JSON in its body; empty: nothing is read
    gives: str = ""  # likewise of the answer; empty: any JSON
    replies: str = "application/json"  # empty: no body


OPERATIONS = (
    Operation("get", "/v2", "Name, version and extensions of the server"),
    Operation("get", "/v2/health/live", "Whether the daemon runs: 200", replies=""),
    Operation("get", "/v2/health/ready", "Whether it serves: 200 or 503", replies=""),
    *(Operation("get", path, "Inputs and outputs of a model") for path in _MODEL),
    *(Operation("get", f"{path}/ready", "Whether a model can be asked: 200 or 503", replies="") for path in _MODEL),
    *(Operation("get", f"{path}/config", "Triton's model configuration") for path in _MODEL),
    *(Operation("get", f"{path}/stats", "Counts and times of a model") for path in _MODEL),
    Operation("get", "/v2/models/stats", "Counts and times of all models"),
    *(Operation("post", f"{path}/infer", "Ask a model", "InferRequest", "InferResponse") for path in _MODEL),
    Operation("post", "/v2/repository/index", "Models, their versions and states", "RepositoryIndexRequest"),
    Operation("post", "/v2/repository/models/{model}/load", "Serve the versions that a model's folder has now"),
    Operation("post", "/v2/repository/models/{model}/unload", "Serve a model no longer"),
    Operation("get", "/v2/systemsharedmemory/status", "Regions of shared memory"),
    Operation("get", "/v2/systemsharedmemory/region/{region}/status", "One region"),
    Operation("post", "/v2/systemsharedmemory/region/{region}/register", "Register a region", "RegionRequest"),
    Operation("post", "/v2/systemsharedmemory/region/{region}/unregister", "Forget a region"),
    Operation("post", "/v2/systemsharedmemory/unregister", "Forget all regions"),
    Operation("post", "/admin/reload", "Read the configuration again"),
    Operation("get", "/admin", "The dashboard", replies="text/html"),
    Operation("get", "/admin/models/{model}", "The dashboard's page about a model", replies="text/html"),
    Operation("get", "/admin/events", "The dashboard's stream", replies="text/event-stream"),
    Operation("get", "/admin/api/events", "What has happened to the daemon; `?since=N`: since revision N"),
    Operation("get", "/admin/api/models/{model}", "One model in full; `?version=N`: that version"),
    Operation("get", "/metrics", "Prometheus, or OpenMetrics where Accept asks for it", replies="text/plain"),
    Operation("get", "/openapi.json", "This description"),
    Operation("get", "/docs", "This description as a page", replies="text/html"),
)
_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_SHAPE = {"type": "array", "items": _COUNT, "maxItems": MAX_RANK}
_VALUE = {"type": ["boolean", "integer", "number", "string", "null"]}
_PARAMETERS = {"type": "object", "additionalProperties": _VALUE}
_IN_REGION = {"shared_memory_region": _TEXT, "shared_memory_byte_size": _COUNT, "shared_memory_offset": _COUNT}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _tensor(what: str) -> dict[str, Any]:
    sent = {"binary_data_size": {**_COUNT, "description": "bytes behind the JSON"}, **_IN_REGION}
    return _object(
        ("name", "shape", "datatype"),
        name=_TEXT,
        shape=_SHAPE,
        datatype={"type": "string", "enum": [*DTYPES, BYTES]},
        data={"type": "array", "items": {}, "description": f"the {what}'s values, nested or flat"},
        parameters={**_PARAMETERS, "properties": sent},
    )


_REQUEST_PARAMETERS: dict[str, dict[str, Any]] = {
    "timeout": {**_COUNT, "description": "microseconds that the client waits"},
    "priority": {**_COUNT, "description": "among the tenant's own queries: 1 goes first, 0 is the default"},
    "tenant": {**_TEXT, "description": "where a model is served under several"},
    "veltair_trace": {**_FLAG, "description": "the answer says how it was served"},
    "binary_data_output": {**_FLAG, "description": "outputs come as bytes behind the JSON"},
}
SCHEMAS = {
    "Error": _object(("error",), error=_TEXT),
    "Tensor": _tensor("tensor"),
    "RequestedOutput": _object(
        ("name",),
        name=_TEXT,
        parameters={**_PARAMETERS, "properties": {"binary_data": _FLAG, **_IN_REGION}},
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters={**_PARAMETERS, "properties": _REQUEST_PARAMETERS},
        inputs={"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}, "maxItems": MAX_TENSORS},
        outputs={"type": "array", "items": {"$ref": "#/components/schemas/RequestedOutput"}, "maxItems": MAX_TENSORS},
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_PARAMETERS,
        outputs={"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
    ),
    "RepositoryIndexRequest": _object(ready={**_FLAG, "description": "those that are ready alone"}),
    "RegionRequest": _object(("key", "byte_size"), key=_TEXT, byte_size=_COUNT, offset=_COUNT),
}


def describe_api(version: str) -> dict[str, Any]:
    """The description as OpenAPI 3.1. `version`: of the server."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    about = "The Open Inference Protocol v2 with extensions. HEAD is answered wherever GET is."
    return {
        "openapi": "3.1.0",
        "info": {"title": "veltair", "version": version, "description": about},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _describe(operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    given = {"schema": {"$ref": f"#/components/schemas/{operation.gives}"}} if operation.gives else {}
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.replies:
        answer["content"] = {operation.replies: given}
    failure = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": answer, "default": {"description": "A refusal or an error", "content": failure}},
    }
    if names:
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    if operation.takes:
        schema = {"schema": {"$ref": f"#/components/schemas/{operation.takes}"}}
        content: dict[str, Any] = {"application/json": schema}
        if operation.takes == "InferRequest":
            content["application/octet-stream"] = {}  # the JSON, then raw tensors
            taken = {TENANT_HEADER: _TEXT, HEADER_LENGTH: {**_COUNT, "description": "bytes of the JSON"}}
            headers = [{"name": name, "in": "header", "schema": kind} for name, kind in taken.items()]
            found["parameters"] += headers
            answer["content"]["application/octet-stream"] = {}
        found["requestBody"] = {"content": content}
    return found


class ApiPages:
    """Both, made once: `app.add_route("/docs", ApiPages("0.1.0").page)`."""

    def __init__(self, version: str) -> None:
        self._description = msgspec.json.encode(describe_api(version))
        rows = "".join(
            f"<tr><td>{o.method.upper()}<td><code>{html.escape(o.path)}</code><td>{html.escape(o.summary)}"
            for o in OPERATIONS
        )
        parameters = "".join(
            f"<tr><td><code>{name}</code><td>{html.escape(str(kind['description']))}"
            for name, kind in _REQUEST_PARAMETERS.items()
        )
        self._page = (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>veltair over HTTP</title><style>{_STYLE}</style>"
            f"<h1>veltair {html.escape(version)} over HTTP</h1><p>The Open Inference Protocol v2 with extensions; "
            f'<a href="/openapi.json">openapi.json</a> has the same for programs, with the schemas of bodies.'
            f"<table>{rows}</table><h2>Parameters of an inference</h2><table>{parameters}</table></html>"
        ).encode()

    async def description(self, request: Request) -> Response:
        return Response(self._description, 200, HEADERS, "application/json")

    async def page(self, request: Request) -> Response:
        return Response(self._page, 200, {**HEADERS, "Content-Security-Policy": _POLICY}, "text/html")
