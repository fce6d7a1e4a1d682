"""What the server says of itself over HTTP, HEAD, and OpenMetrics."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

from fastapi.routing import APIRoute
from in_process_front import Front, run
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.routing import Route

from veltair.server.front.monitor.api_description import SCHEMAS, describe_api
from veltair.server.protocol.http_codec import decode_request

# Paths that serve other pages, are refused as such, or are another's spelling.
UNDESCRIBED = re.compile(r"/|/admin/|/admin/\{name\}|/v2/(models/\{model\}/)?(cudasharedmemory|trace|logging).*")


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    async def test(front: Front) -> None:
        served = set()
        for route in front.app.routes:
            assert isinstance(route, APIRoute | Route)
            if not UNDESCRIBED.fullmatch(route.path):
                served |= {(method.lower(), route.path) for method in route.methods or () if method != "HEAD"}
        described = {
            (method, path.replace("/load", "/{action}").replace("/unload", "/{action}"))
            for path, operations in (await front.http.get("/openapi.json")).json()["paths"].items()
            for method in operations
        }
        assert served == described

    run(test)


def test_every_reference_leads_to_a_schema() -> None:
    found = set(re.findall(r"#/components/schemas/(\w+)", str(describe_api("1"))))
    assert found == set(SCHEMAS)


def test_a_body_of_the_described_members_is_taken() -> None:
    request = decode_request(
        b'{"id":"1","parameters":{"timeout":5,"priority":1,"tenant":"t","veltair_trace":true,"binary_data_output":true},'
        b'"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1],"parameters":{}}],"outputs":[{"name":"y"}]}'
    )
    described = SCHEMAS["InferRequest"]["properties"]["parameters"]["properties"]
    assert set(request.parameters) == set(described)


def test_the_page_names_every_path_and_its_policy_allows_its_style() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.get("/docs")
        assert "<script" not in answer.text and "http" not in answer.text.replace("over HTTP", "").lower()
        assert all(path in answer.text for path in describe_api("1")["paths"])
        style = answer.text.partition("<style>")[2].partition("</style>")[0]
        digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}'" in answer.headers["Content-Security-Policy"]

    run(test)


def test_head_is_answered_wherever_get_is() -> None:
    async def test(front: Front) -> None:
        for path, operations in describe_api("1")["paths"].items():
            if "get" not in operations:
                continue
            place = path.format(model="sums", version="1", region="r")
            answer = await front.http.head(place)
            assert answer.status_code != 405, place
            if path != "/admin/events":  # a GET of it never ends
                assert answer.status_code == (await front.http.get(place)).status_code

    run(test)


def test_openmetrics_where_accept_asks_for_it() -> None:
    async def test(front: Front) -> None:
        asked = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"}
        answer = await front.http.get("/metrics", headers=asked)
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        names = {family.name for family in text_string_to_metric_families(answer.text)}
        assert {"veltair_requests", "veltair_request_duration_seconds"} <= names
        strange = await front.http.get("/metrics", headers={"Accept": "application/openmetrics-text;version=x"})
        assert strange.status_code == 200
        plain = await front.http.get("/metrics")
        assert plain.headers["Content-Type"].startswith("text/plain") and "# EOF" not in plain.text

    run(test)
