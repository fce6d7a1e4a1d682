"""HTTP/2 in C: the fast counterpart of `veltair.grpc.http2`, with the same limits, errors and frames.

The same tests run against both, and random sessions have to give the same events and frames. Plain C11 without headers
of Python: the extension `_http2` is for ctypes; other extensions list its sources among theirs.

`http2.h` (a connection and its streams), `hpack.h` (header compression). Behind them: `http2_connection.c` (the life of
connections and streams), `http2_frames.c` (incoming bytes to frames), `http2_control.c` (frames other than data),
`http2_messages.c` (incoming messages), `http2_output.c` (outgoing frames), `hpack.c`, `hpack_huffman.c`;
`http2_internal.h` is what these share.
"""
