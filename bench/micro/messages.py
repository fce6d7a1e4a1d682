"""What passes between the front, the engine and a worker: the message of a query, the order of a block and its end.

python -m bench.micro.messages -o FILE.json
"""

from __future__ import annotations

import os

import msgspec

from bench.micro.runner import make_runner
from veltair.server.ipc.block_orders import BlockEnd, Members, Order
from veltair.server.ipc.messages import InferQuery
from veltair.server.ipc.worker_cell import WorkerCell, cell_bytes, create_worker_cell

QUERY = InferQuery(query=123_456, tenant=2, slot=7, batch=1, arrival_ns=10**15, deadline_ns=None)
BLOCK = Order(123_456, tenant=2, members=Members.of([(7, 1)]), start=10, versions=(0, 2, 1) * 6, cores=(0, 1))
END = BlockEnd(123_456, stop=28, reported=False, begin_ns=10**15, end_ns=10**15 + 350_000)


def main() -> None:
    runner = make_runner("bench.micro.messages")
    encoder = msgspec.msgpack.Encoder()
    packet, decoder = encoder.encode(QUERY), msgspec.msgpack.Decoder(InferQuery)
    runner.bench_func("message encode, query", encoder.encode, QUERY)
    runner.bench_func("message decode, query", decoder.decode, packet)

    cell = WorkerCell(create_worker_cell(cell_bytes(layers=64, queries=8)))
    bell = os.eventfd(0, os.EFD_NONBLOCK)

    def order() -> None:
        cell.publish_order(BLOCK)
        cell.wait_for_order(0)
        cell.read_order()

    def end() -> None:
        cell.publish_order(BLOCK)  # without it there is nothing to end
        cell.wait_for_order(0)
        cell.publish_end(END, bell)
        os.eventfd_read(bell)
        cell.take_end()

    runner.bench_func("order and taking it, without sleep", order)
    runner.bench_func("order, end and taking both, without sleep", end)


if __name__ == "__main__":
    main()
