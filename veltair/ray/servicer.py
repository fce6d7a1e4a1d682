"""The Open Inference Protocol's service at Ray's gRPC proxies, which name `add_inference_service` in their options.

Messages stay bytes. Stock stubs would have each proxy decode what the daemon decodes again; and those of tritonclient
give classes of a module that nobody can import, which Ray's proxies cannot send on.
"""

from __future__ import annotations

from typing import Any

import grpc
from tritonclient.grpc import service_pb2

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE: str = _SERVICE.full_name
STREAM_METHOD = "ModelStreamInfer"  # the only one with streams, in both directions
UNARY_METHODS: tuple[str, ...] = tuple(method.name for method in _SERVICE.methods if method.name != STREAM_METHOD)


def add_inference_service(servicer: Any, server: Any) -> None:
    """Do what generated functions of this kind do: `servicer` has a method for each of the service's."""
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name)) for name in UNARY_METHODS
    }
    handlers[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(getattr(servicer, STREAM_METHOD))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def leading_text(message: bytes) -> str:
    """Field 1 of a protobuf message where it comes first and is a string, which is the model's name; else "".

    >>> leading_text(service_pb2.ModelInferRequest(model_name="mlp", id="7").SerializeToString())
    'mlp'
    >>> leading_text(service_pb2.ModelInferRequest(id="7").SerializeToString()), leading_text(b"")
    ('', '')
    """
    if len(message) < 2 or message[0] != 0x0A or message[1] > 0x7F:  # a name of 128 bytes is no tenant's
        return ""
    return message[2 : 2 + message[1]].decode("utf-8", "replace")
