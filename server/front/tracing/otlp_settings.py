"""`OtlpSettings`: where traces go and how many queries have one, by the configuration and by OpenTelemetry's standard
variables (OpenTelemetry 1.x, "Environment Variable Specification" and "OTLP Exporter Configuration").

The configuration comes first. A variable that asks for what the daemon does not do is an error with its name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from veltair.config import ServerConfig
from veltair.errors import ConfigError, quoted

OtlpProtocol = Literal["grpc", "http/protobuf"]
_OWN, _ALL = "OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"  # the variables of traces come before those of all
_PROTOCOLS = {"grpc": 4317, "http/protobuf": 4318}  # and the port of a collector on this machine
_PATH = "/v1/traces"  # over HTTP, below the address that is for all signals
_SAMPLERS: dict[str, Callable[[float], float]] = {
    "parentbased_always_on": lambda argument: 1.0,
    "parentbased_always_off": lambda argument: 0.0,
    "parentbased_traceidratio": lambda argument: argument,
}
_HEADER = re.compile(r"\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*=\s*[\x21-\x2b\x2d-\x7e]*\s*")
_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_MOST_MS = 1e7

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """A collector, and the queries whose traces it gets.

    >>> OtlpSettings("http://127.0.0.1:4318/v1/traces", "http/protobuf").ratio
    0.0
    """

    endpoint: str  # over HTTP with the path
    protocol: OtlpProtocol = "grpc"
    ratio: float = 0.0  # of the queries whose clients say nothing about it
    timeout_s: float = 10.0  # that the collector may take for a batch, with all repetitions


def read_settings(server: ServerConfig, environment: Mapping[str, str] = os.environ) -> OtlpSettings | None:
    """None: there is no tracing. An empty variable is one that is not set. Raises ConfigError with the name.

    >>> read_settings(ServerConfig(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4317"}).endpoint
    'http://otel:4317'
    >>> read_settings(ServerConfig(), {}) is None
    True
    """
    exporter = _choice(environment, "OTEL_TRACES_EXPORTER", "", ("otlp", "none"))
    endpoint = _of_traces(environment, "ENDPOINT")
    if server.otel is None and not endpoint[1] and exporter != "otlp":
        return None
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environment.get(name, "").strip().lower() == value:
            _log.warning("there are no traces: %s is %s", name, value)
            return None
    protocol = _choice(environment, *_of_traces(environment, "PROTOCOL", "grpc"), tuple(_PROTOCOLS))
    propagators = environment.get("OTEL_PROPAGATORS", "").strip()
    if propagators and "tracecontext" not in [each.strip() for each in propagators.split(",")]:
        raise ConfigError(f"OTEL_PROPAGATORS: expected tracecontext among them, found {quoted(propagators)}")
    _check_headers(*_of_traces(environment, "HEADERS"))
    _choice(environment, *_of_traces(environment, "COMPRESSION", "none"), ("none", "gzip"))
    for kind in _FILES:
        _check_file(*_of_traces(environment, kind))
    return OtlpSettings(
        _endpoint(server.otel, *endpoint, protocol),
        cast("OtlpProtocol", protocol),
        _ratio(environment) if server.otel_ratio is None else server.otel_ratio,
        _number(*_of_traces(environment, "TIMEOUT", "10000"), 1, _MOST_MS) / 1e3,
    )


def _of_traces(environment: Mapping[str, str], kind: str, default: str = "") -> tuple[str, str]:
    """The variable that counts, and its value."""
    for name in (_OWN + kind, _ALL + kind):
        if value := environment.get(name, "").strip():
            return name, value
    return _ALL + kind, default


def _choice(environment: Mapping[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    value = environment.get(name, "").strip() or default
    if value and value not in known:
        raise ConfigError(f"{name}: expected {' or '.join(known)}, found {quoted(value)}")
    return value


def _endpoint(configured: str | None, name: str, value: str, protocol: str) -> str:
    """Over HTTP an address of traces alone is whole; below one of all signals lies the path of traces."""
    if configured is not None:
        name, value = "server.otel", configured
    value = value or f"http://localhost:{_PROTOCOLS[protocol]}"
    over_http = protocol != "grpc"
    try:
        parts = urlsplit(value)
        sound = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        sound = sound and not re.search(r"[\s\x00-\x1f]", value) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if sound and not over_http:
        sound = parts.port is not None and parts.path in ("", "/") and not (parts.query or parts.fragment)
    if not sound:
        expected = "http://HOST:PORT/PATH or https://HOST:PORT/PATH" if over_http else "http://HOST:PORT or https:…"
        raise ConfigError(f"{name}: expected {expected} for {protocol}, found {quoted(value, 200)}")
    return value.rstrip("/") + _PATH if over_http and not name.startswith(_OWN) else value


def _ratio(environment: Mapping[str, str]) -> float:
    """Clients that say whether their queries are traced decide it: there is no sampler that does not ask them."""
    sampler = _choice(environment, "OTEL_TRACES_SAMPLER", "parentbased_always_off", tuple(_SAMPLERS))
    name = "OTEL_TRACES_SAMPLER_ARG"
    argument = environment.get(name, "").strip() or "1"
    return _SAMPLERS[sampler](_number(name, argument, 0, 1) if sampler == "parentbased_traceidratio" else 1.0)


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ConfigError(f"{name}: expected a number from {least:g} to {most:,.0f}, found {quoted(text)}")
    return value


def _check_headers(name: str, text: str) -> None:
    """Says which header is none by its number: they may be secrets."""
    for number, header in enumerate(text.split(",") if text else (), start=1):
        if header.strip() and not _HEADER.fullmatch(header):
            raise ConfigError(f"{name}: expected KEY=VALUE,KEY=VALUE with values as in a URL, see number {number}")


def _check_file(name: str, text: str) -> None:
    """An exporter would go on without a file that it cannot read."""
    if text:
        try:
            Path(text).open("rb").close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{name}: expected a file that can be read, found {quoted(text, 200)} ({reason})"
            ) from None
