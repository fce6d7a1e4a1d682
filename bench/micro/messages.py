"""Messages between the front, the engine and a worker: encoding and decoding a query and a block.

python -m bench.micro.messages -o FILE.json
"""

from __future__ import annotations

import msgspec

from bench.micro.runner import make_runner
from veltair.server.ipc.messages import BatchMember, InferQuery, RunBlock

QUERY = InferQuery(query=123_456, tenant=2, slot=7, batch=1, arrival_ns=10**15, deadline_ns=None)
BLOCK = RunBlock(query=123_456, tenant=2, members=(BatchMember(7, 1),), start=10, versions=(0, 2, 1) * 6, cores=(0, 1))


def main() -> None:
    runner = make_runner("bench.micro.messages")
    encoder = msgspec.msgpack.Encoder()
    for name, message in (("query", QUERY), ("block", BLOCK)):
        packet, decoder = encoder.encode(message), msgspec.msgpack.Decoder(type(message))
        runner.bench_func(f"message encode, {name}", encoder.encode, message)
        runner.bench_func(f"message decode, {name}", decoder.decode, packet)


if __name__ == "__main__":
    main()
