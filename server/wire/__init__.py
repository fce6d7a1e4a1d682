"""The native front: I/O threads in plain C that carry most queries between socket, tensor pool and engine.

A request whose head was seen before needs no decoding: `plan` says what it becomes, and `plans.c` carries that out.
Everything else is passed on as it came: over gRPC to Python as a `native_call`, over HTTP to uvicorn. `io_threads`
starts the threads and dispatches their events; `response_parts` cuts up a response for a plan; `engine_link` joins the
threads and one engine process; `native` has the signatures of the functions in C. What each C file does stands in
`wire.h`.
"""
