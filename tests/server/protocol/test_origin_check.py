"""Which requests of web pages are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.protocol.origin_check import OriginCheck, is_known, known_hosts
from veltair.server.protocol.request_target import split_target

INFER, REGISTER = "/v2/models/a/infer", "/v2/systemsharedmemory/region/r/register"


HEADERS: dict[str, str] = {}  # of the last answer
HOSTS: list[list[str]] = []  # that the application was given


def status(
    method: str = "POST",
    path: str = INFER,
    hosts: frozenset[str] = frozenset(("localhost",)),
    origins: tuple[str, ...] = (),
    version: str = "1.0",
    more: tuple[tuple[bytes, bytes], ...] = (),
    target: str = "",
    scheme: str = "http",
    **headers: str,
) -> int:
    """What a request gets; 200 from the application behind the check."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        HOSTS.append([value.decode() for name, value in scope["headers"] if name == b"host"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "http_version": version, "headers": [*raw, *more]}
    scope["scheme"] = scheme
    split_target((target or path).encode("latin-1"), scope)
    asyncio.run(OriginCheck(app, hosts, origins)(scope, receive, send))
    HEADERS.clear()
    HEADERS.update((name.decode(), value.decode()) for name, value in sent[0]["headers"])
    return int(sent[0]["status"])


def test_names_that_lead_here() -> None:
    assert status("GET", host="localhost:8000") == status("GET", host="127.0.0.1:8000") == status("GET") == 200
    assert status("GET", host="[::1]:8000") == status("GET", host="LOCALHOST.") == 200
    assert status("GET", host="evil.example:8000") == status("GET", host="localhost.evil.example") == 421
    assert status("GET", host="box:8000") == 200  # a name of the local network
    assert status("GET", host="localhost:") == 200 and status("GET", host="evil%2Eexample") == 421
    assert status("GET", host="my.host", hosts=known_hosts("127.0.0.1", ["My.Host"])) == 200
    assert status("GET", host="any.example", hosts=known_hosts("0.0.0.0", None)) == 200
    assert status("GET", host="any.example", hosts=known_hosts("0.0.0.0", ["my.host"])) == 421
    assert status("GET", host="any.example", hosts=known_hosts("127.0.0.1", ["*"])) == 200


def test_a_request_has_one_host() -> None:
    assert status("GET", version="1.1") == 400
    assert status("GET", version="1.1", host="localhost") == 200
    assert status("GET", version="1.1", host="localhost", more=((b"host", b"localhost"),)) == 400


@pytest.mark.parametrize(
    "host", ["", "a:b:c", ":80", "localhost:99999", "a b", "a/b", "u@localhost", "[::1", "[zz]", "\xe9", "a%2"]
)
def test_what_is_no_host_is_a_bad_request(host: str) -> None:
    """RFC 9112, section 3.2, whatever the names of the server."""
    more = ((b"host", host.encode("latin-1")),)
    assert status("GET", more=more) == status("GET", more=more, hosts=known_hosts("127.0.0.1", ["*"])) == 400


def test_an_absolute_target_says_who_is_asked_whatever_host_says() -> None:
    """RFC 9112, section 3.2.2."""
    ours, evil = "http://localhost:8000/v2", "http://evil.example/v2"
    for host in ("localhost:8000", "evil.example", "other", ""):
        more = ((b"host", host.encode()),)
        assert status("GET", version="1.1", target=ours, more=more) == 200
        assert HOSTS[-1] == ["localhost:8000"]
        assert status("GET", version="1.1", target=evil, more=more) == 421
    assert status("GET", target=ours) == 200 and status("GET", target=evil) == 421  # over HTTP/1.0
    assert status("GET", version="1.1", target=ours) == 400
    assert status("GET", version="1.1", target=ours, host="a", more=((b"host", b"a"),)) == 400
    assert status("GET", target=ours, host="a b") == 400
    assert status(target=ours, host="evil.example", origin="http://localhost:8000") == 200
    assert status(target=ours, host="evil.example", origin="http://evil.example") == 403


def test_a_target_of_another_scheme_is_for_another_server() -> None:
    assert status("GET", target="HTTP://localhost", host="localhost") == 200
    assert status("GET", target="https://localhost/", host="localhost", scheme="https") == 200
    assert status("GET", target="https://localhost/", host="localhost") == 421
    assert status("GET", target="http://localhost/", host="localhost", scheme="https") == 421
    assert status("GET", target="ftp://localhost/", host="localhost") == 421
    for target in ("http:///v2", "http://u:p@localhost/", "http://localhost:http/", "http://a:1:2/", "http://[::1/"):
        assert status("GET", target=target, host="localhost") == 400


def test_an_asterisk_is_the_server_as_a_whole() -> None:
    assert status("OPTIONS", target="*", host="localhost") == 200 and "POST" in HEADERS["allow"]
    assert status("OPTIONS", target="*", host="evil.example") == 421
    assert status("GET", target="*", host="localhost") == 400


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_server_that_listens_to_this_machine_alone_is_called_localhost(address: str) -> None:
    assert known_hosts(address, None) == {"localhost"}


def test_pages_of_other_origins_change_nothing() -> None:
    own = {"host": "localhost:8000"}
    assert status(**own, origin="http://localhost:8000") == 200
    assert status(**own, origin="http://evil.example") == status(**own, origin="http://localhost:9000") == 403
    assert status(**own, origin="null") == status(**own, sec_fetch_site="cross-site") == 403
    assert status(**own, sec_fetch_site="same-site") == 403
    assert status(**own, sec_fetch_site="same-origin") == status(**own, sec_fetch_site="none") == status(**own) == 200
    assert status(**own, origin="https://ours:1", origins=("https://ours:1",)) == 200


def test_pages_elsewhere_hold_nothing_open_and_may_lead_here() -> None:
    """An image, a script or a fetch of a stream costs a viewer's place though its page cannot read it."""
    own = {"host": "localhost:8000", "path": "/admin/events", "method": "GET"}
    assert status(**own, origin="http://evil.example") == status(**own, origin="null") == 403
    for site in ("cross-site", "same-site", "CROSS-SITE", ""):
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image") == 403
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403
        assert status(**own, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
    assert status(**own, sec_fetch_site="same-origin", sec_fetch_mode="cors", sec_fetch_dest="empty") == 200
    form = {"host": "localhost:8000", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert status(**form, sec_fetch_site="cross-site") == 403


def test_what_says_who_asks_is_given_once() -> None:
    """Of two, the next reader may take the other."""
    for name, ours, other in (
        (b"origin", b"http://localhost", b"http://evil.example"),
        (b"sec-fetch-site", b"same-origin", b"cross-site"),
    ):
        assert status(host="localhost", more=((name, ours),)) == 200
        assert status(host="localhost", more=((name, ours), (name, other))) == 400
        assert status(host="localhost", more=((name, other), (name, ours))) == 400


def test_pages_of_allowed_origins_may_ask_and_read() -> None:
    page = {"host": "localhost:8000", "origin": "https://ours:1", "origins": ("https://ours:1",)}
    wanted = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type"}
    assert status("OPTIONS", **page, **wanted, access_control_request_private_network="true") == 204
    assert HEADERS["access-control-allow-origin"] == "https://ours:1"
    assert HEADERS["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in HEADERS["access-control-allow-methods"]
    assert HEADERS["access-control-allow-private-network"] == "true"
    assert status(**page, sec_fetch_site="cross-site") == status("GET", **page) == 200
    assert (HEADERS["access-control-allow-origin"], HEADERS["vary"]) == ("https://ours:1", "Origin")
    assert status("OPTIONS", **page | {"origin": "http://evil.example"}, **wanted) == 403
    assert status("OPTIONS", **page | {"host": "evil.example"}, **wanted) == 421
    assert not [name for name in HEADERS if name.startswith("access-control")]
    assert status("GET", host="localhost", origins=("https://ours:1",)) == 200 and not HEADERS


def test_shared_memory_is_not_registered_by_a_form() -> None:
    own = {"host": "localhost", "path": REGISTER}
    assert status(**own) == status(**own, content_type="application/json") == 200
    assert status(**own, content_type="text/plain;charset=UTF-8") == 415
    assert status(**own, content_type="application/x-www-form-urlencoded") == 415
    assert status(host="localhost", content_type="text/plain") == 200


@given(st.text(max_size=40))
def test_any_host_is_judged(host: str) -> None:
    is_known(host, {"localhost"})


@given(st.text(st.characters(max_codepoint=255), max_size=40), st.sampled_from(["", "http://", "http://localhost"]))
def test_any_target_is_judged(rest: str, begin: str) -> None:
    assert status("GET", host="localhost", target=begin + rest or "/") in (200, 400, 421)


@given(st.text(st.characters(max_codepoint=255), max_size=40) | st.sampled_from(["http://[", "//]", "http://[::1%25"]))
def test_any_origin_is_judged(origin: str) -> None:
    assert status(host="localhost", more=((b"origin", origin.encode("latin-1")),)) in (200, 403)


@given(st.ip_addresses(), st.none() | st.integers(0, 65535))
def test_addresses_are_known(address: Any, port: int | None) -> None:
    name = f"[{address}]" if address.version == 6 else str(address)
    assert is_known(name if port is None else f"{name}:{port}", set())
