"""`ResponseParts`: the response of a plan, without what differs from one request to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2 as pb

from veltair.server.protocol.datatypes import Array
from veltair.server.protocol.http_codec import HttpBody


@dataclass(frozen=True, slots=True)
class ResponseParts:
    """A response up to its id, and from behind it up to the tensors' bytes.

    >>> ResponseParts(b"{", b"}", outputs={"y": (1, 8)}).outputs["y"]
    (1, 8)
    """

    begin: bytes
    rest: bytes
    outputs: Mapping[str, tuple[int, ...]]  # shapes by name, in their order


def split_message(response: Any) -> ResponseParts:
    """The parts of a ModelInferResponse.

    >>> parts = split_message(pb.ModelInferResponse(model_name="mlp", model_version="1", id="7"))
    >>> parts.begin == pb.ModelInferResponse(model_name="mlp", model_version="1").SerializeToString()
    True
    """
    head = pb.ModelInferResponse()
    head.CopyFrom(response)
    head.ClearField("id")
    head.ClearField("raw_output_contents")
    begin = pb.ModelInferResponse(model_name=head.model_name, model_version=head.model_version).SerializeToString()
    outputs = {output.name: tuple(output.shape) for output in response.outputs}
    return ResponseParts(begin, head.SerializeToString(deterministic=True)[len(begin) :], outputs)


def split_body(body: HttpBody, request_id: str | None, outputs: Mapping[str, Array]) -> ResponseParts:
    r"""The parts of a response over HTTP. `request_id` is the one that each request has its own of; None for none.

    >>> body = HttpBody(b'{"model_name":"mlp","model_version":"1","id":"7","outputs":[]}', None)
    >>> split_body(body, "7", outputs={})
    ResponseParts(begin=b'{"model_name":"mlp","model_version":"1",', rest=b'"outputs":[]}', outputs={})
    """
    text = body.body[: body.header_bytes]
    shapes = {name: values.shape for name, values in outputs.items()}
    if request_id is None:
        return ResponseParts(text, b"", shapes)
    head = msgspec.json.decode(text)
    begin = msgspec.json.encode({key: head[key] for key in ("model_name", "model_version")})[:-1] + b","
    member = b'"id":%s,' % msgspec.json.encode(request_id) if request_id else b""
    return ResponseParts(begin, text[len(begin) + len(member) :], shapes)
