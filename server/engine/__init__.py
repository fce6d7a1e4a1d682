"""The engine process: turns messages into scheduler events, and carries out the scheduler's decisions.

A query arrives as `InferQuery` (`engine`), waits as a `PendingQuery`, runs in an `InFlightBatch` on one
`WorkerProcess`, and ends as `QueryEnded` (`in_flight_queries`). Its blocks stay in `block_history`, from which the
front takes them. The scheduler decides about all of it; nothing here chooses cores or versions. `worker_supervisor`
keeps the worker processes alive. `models` are those that it serves, and how they come and go.

The front imports `machine_limits` alone; it starts the rest as a process of its own (`front/engine_connection.py`).
"""
