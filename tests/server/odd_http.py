"""Requests over HTTP/1.1 that I/O threads may have plans for, others, and odd header lines."""

from native_http import GET, infer

KNOWN = [
    infer(request_id="abc"),
    infer(),
    infer([[1, 2, 3, 4]] * 2, [[1, 2]] * 2, request_id="abc"),
    infer(request_id="abc", outputs=["ids_sum"]),
    infer(request_id="abc", timeout=50_000_000),
    infer(request_id="abc", path="/v2/models/sums/versions/1/infer"),
]
OTHERS = [GET, infer(binary=False), b"HEAD /v2 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /none HTTP/1.0\r\n\r\n"]
LINES = [
    "Content-Length: 5",
    "Content-Length: 05",
    "Content-Length: +5",
    "Content-Length:",
    "content-length: 99999999999999999999",
    "Inference-Header-Content-Length: 3",
    "Inference-Header-Content-Length: -1",
    "Inference-Header-Content-Length: 99",
    "Connection: close",
    "Connection: keep-alive",
    "Upgrade: h2c",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "Expect: 100-continue",
    "Accept-Encoding: deflate",
    "Accept-Encoding: gzip, deflate",
    "Content-Encoding: gzip",
    "Veltair-Tenant: sums",
    "Veltair-Tenant: none",
    "Veltair-Tenant: sums\t",
    "Veltair-Tenant:\tsums",
    "veltair-tenant : sums",
    "A: \x7f",
    "A: \xe9",
    "A: \x00",
    ": b",
    " folded",
    "no colon",
    "H\xf6st: a",
    "Host: b",
    "Host: [::1",
]
