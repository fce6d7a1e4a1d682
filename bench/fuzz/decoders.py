"""The decoders in Python as a target: HTTP bodies, messages of gRPC, compressed bodies.

`python -m bench.fuzz.decoders FOLDER [-runs=N …]` runs it under atheris, with the options of libFuzzer.
"""

from __future__ import annotations

import importlib
import sys

LIMIT_BYTES = 1 << 20
KINDS = 6
MODULES = ("compressed_body", "grpc_codec", "http_codec", "infer_request", "length_prefixed", "tensor_values")


def examine(data: bytes) -> bool:
    """Decode one input, whose first byte says as what. Returns whether it is valid.

    Whatever it is, it is decoded or refused with a RequestError (or, by protobuf, a DecodeError): any other error is a
    defect.
    """
    from google.protobuf.message import DecodeError

    from veltair.errors import RequestError
    from veltair.server.protocol import compressed_body, grpc_codec, http_codec, infer_request, tensor_values

    if not data:
        return False
    kind, body = data[0] % KINDS, data[1:]
    try:
        if kind == 0:
            request = http_codec.decode_request(body)
        elif kind == 1:
            request = http_codec.decode_request(body[1:], body[0] if body else None)
        elif kind == 2:
            request = grpc_codec.decode_request(grpc_codec.parse_request(memoryview(body)))
        elif kind == 3:
            raw = grpc_codec.with_raw_contents(body)
            request = grpc_codec.decode_request(grpc_codec.parse_request(memoryview(raw), len(raw)))
        else:
            compressed_body.inflate(body, "gzip" if kind == 4 else "deflate", LIMIT_BYTES)
            return True
        for tensor in request.inputs:
            if not isinstance(tensor.data, infer_request.TensorLocation):
                tensor_values.tensor_bytes(tensor_values.tensor_values(tensor))
        if kind < 2:
            http_codec.encode_request(request)
    except (RequestError, DecodeError):
        return False
    return True


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["veltair.server.protocol"]):
        for module in MODULES:
            importlib.import_module(f"veltair.server.protocol.{module}")
    atheris.Setup(sys.argv, examine)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
