"""Who may call which method over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from veltair.access_config import Role
from veltair.errors import UnsupportedError
from veltair.grpc.server_call import Method
from veltair.server.access.callers import Access

CERTIFICATE = ":certificate"  # a field that I/O threads add: the name in the client's certificate
_OPEN = ("/ServerLive", "/ServerReady")
_ADMIN = ("/RepositoryModelLoad", "/RepositoryModelUnload")


def roles_for(path: str) -> tuple[Role, ...]:
    """The roles of which a method takes one; none: nobody is asked.

    >>> roles_for("/inference.GRPCInferenceService/ModelInfer"), roles_for("/grpc.health.v1.Health/Check")
    (('infer',), ())
    """
    if not path.startswith("/inference.") or path.endswith(_OPEN):
        return ()
    if path.endswith("/RepositoryIndex"):
        return ("infer", "admin")
    return ("admin",) if path.endswith(_ADMIN) else ("infer",)


def with_access(methods: Mapping[str, Method], access: Access, *, apart: bool) -> dict[str, Method]:
    """The methods, each for those who may call it. `apart`: administration has an address of its own, over HTTP."""
    return {path: _guarded(method, roles_for(path), access, apart) for path, method in methods.items()}


def _guarded(method: Method, roles: tuple[Role, ...], access: Access, apart: bool) -> Method:
    if not roles:
        return method

    def admit(context: Any) -> None:
        if apart and "infer" not in roles:
            raise UnsupportedError("models are loaded and unloaded at the address for administration, over HTTP")
        fields = context.invocation_metadata() or ()
        authorization = [value for name, value in fields if name == "authorization"]
        certificate = next((value for name, value in fields if name == CERTIFICATE), "")
        access.admit(authorization, certificate, roles)

    async def call(request: Any, context: Any) -> Any:
        admit(context)
        return await method.handler(request, context)

    async def stream(request: Any, context: Any) -> Any:
        admit(context)
        async for response in method.handler(request, context):
            yield response

    return method._replace(handler=stream if method.is_generator else call)
