"""The native front: I/O threads in plain C that carry most queries between socket, tensor pool and engine.

A request whose head was seen before needs no decoding: `plan` says what it becomes, and `plans.c` carries that out.
Everything else is passed to Python as it came. `io_threads` starts the threads and dispatches their events;
`native_call` is a gRPC call that Python handles; `engine_link` joins the threads and one engine process; `native` has
the signatures of the functions in C. What each C file does stands in `wire.h`.
"""
