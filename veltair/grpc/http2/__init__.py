"""HTTP/2 (RFC 9113) as gRPC uses it, for either side of a connection, without I/O.

Bytes come in through `Connection.get_buffer` and `buffer_updated`, and go out through a `Transport`. Only
`veltair.grpc` imports this folder; it imports the standard library and numpy.

`frames` (kinds, codes, limits), `frame_reader` (bytes to frames), `header_blocks` and `hpack` (header compression),
`stream` (one call: messages and its flow control), `connection` (streams, settings, flow control).
"""
