"""An Open Inference Protocol request with one image of 600 KB, raw: decoding it and encoding its answer, per protocol.

python -m bench.micro.requests -o FILE.json
"""

from __future__ import annotations

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from bench.micro.runner import make_runner
from veltair.server.protocol import grpc_codec, http_codec
from veltair.server.protocol.infer_request import InferRequest, NamedTensor

IMAGE, LOGITS = (1, 3, 224, 224), (1, 1000)


def main() -> None:
    runner = make_runner("bench.micro.requests")
    chance = np.random.default_rng(0)
    image, logits = (chance.standard_normal(shape, np.float32) for shape in (IMAGE, LOGITS))
    request = InferRequest("1", {}, (NamedTensor("x", "FP32", IMAGE, image.tobytes()),), (), True)
    http = http_codec.encode_request(request)
    grpc = pb.ModelInferRequest(model_name="model", id="1", raw_input_contents=[image.tobytes()])
    grpc.inputs.add(name="x", datatype="FP32", shape=IMAGE)
    data = memoryview(grpc.SerializeToString())
    outputs = {"y": logits}

    def decode_grpc() -> InferRequest:
        return grpc_codec.decode_request(grpc_codec.parse_request(data))

    def encode_http() -> bytes:
        return http_codec.encode_response("model", "1", request, outputs, {}, {}).body

    def encode_grpc() -> bytes:
        found: bytes = grpc_codec.encode_response("model", "1", request.id, outputs, {}, {}).SerializeToString()
        return found

    runner.bench_func("decode request, HTTP", http_codec.decode_request, http.body, http.header_bytes)
    runner.bench_func("decode request, gRPC", decode_grpc)
    runner.bench_func("encode answer, HTTP", encode_http)
    runner.bench_func("encode answer, gRPC", encode_grpc)


if __name__ == "__main__":
    main()
