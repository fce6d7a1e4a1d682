"""Open Inference Protocol v2 as functions over bytes and values, without sockets, processes or state.

`http_codec` and `grpc_codec` decode a request into an `InferRequest` (`infer_request`) and encode the response;
`validation` turns the request's tensors into what the model takes, or raises RequestError. `json_parser` is the
exception: it keeps a child process that parses large JSON bodies. Beside inference: `origin_check` (what web pages may
not do) and `health_checks` (gRPC's health protocol). `front/` imports this folder.
"""
