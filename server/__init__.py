"""The daemon: one front process, one engine process and a pool of worker processes.

The way of a query:

1. `wire/` accepts the request in threads of C, and carries out steps 2 and 5 itself where the request's head is known.
   Else `front/` and `protocol/` decode and validate it; `front/admission.py` and the codecs refuse what cannot be
   served.
2. `front/engine_connection.py` copies the inputs into shared memory (`ipc/tensor_pool.py`) and sends `InferQuery` to
   the engine process.
3. `engine/` passes the query to `veltair.scheduler` and carries out its decisions: it gives the query a worker
   process and orders one layer-block after the other.
4. `worker/` runs each block that the engine writes into its `ipc/worker_cell.py`, on the cores that stand there.
5. `QueryEnded` returns to the front, which answers the client and updates `front/metrics.py`.

`front_process.py` puts the front together; `veltair.commands.serve` starts it. Only `veltair/` and `bench/` may import
this package.
"""
