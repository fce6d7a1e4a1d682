"""The front process: HTTP, gRPC, metrics, dashboard, and the connection to the engine process.

The way of a query: `http_front` or `grpc_front` decodes the request; `inference_service` finds its tenant, validates
its inputs and counts its end; `engine_client` keeps an engine process alive; `engine_connection` copies the inputs
into shared memory, sends the query and receives its end.

Refusals, in this order: `http_body` (too large), `protocol/` (malformed, wrong shapes), `admission` (unknown model,
deadline passed, shutting down, no free slot). The scheduler refuses after that (`veltair/scheduler/`, "rejected").
`server/front_process.py` puts them together; `bench/` imports this folder too.
"""
