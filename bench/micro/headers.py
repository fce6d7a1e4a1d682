"""HPACK: the header block of a gRPC request and of its answer.

python -m bench.micro.headers -o FILE.json
"""

from __future__ import annotations

from bench.micro.runner import make_runner
from veltair.grpc.http2.hpack import Decoder, encode

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1:8001"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.80.0 grpc-c/50.0.0 (linux; chttp2)"),
]
ANSWER = [(":status", "200"), ("content-type", "application/grpc")]


def main() -> None:
    runner = make_runner("bench.micro.headers")
    block, decoder = encode(REQUEST), Decoder()
    runner.bench_func("hpack encode, request", encode, REQUEST)
    runner.bench_func("hpack encode, answer", encode, ANSWER)
    runner.bench_func("hpack decode, request", decoder.decode, block)


if __name__ == "__main__":
    main()
