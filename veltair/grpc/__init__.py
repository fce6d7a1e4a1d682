"""gRPC over HTTP/2 without TLS, for the daemon's front and the load generator, in less than half of grpcio's CPU time.

`server` (listening, methods), `server_call` (one call and its context), `client` (channels and unary calls),
`transport` (a connection on asyncio), `http2/` (the protocol without I/O), `native/` (the same in C). `veltair.server`
and `veltair.loadgen` import it; it imports `veltair.errors`, and of grpcio the status codes only.
"""
