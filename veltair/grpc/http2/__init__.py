"""HTTP/2 as gRPC uses it, for either side of a connection."""
