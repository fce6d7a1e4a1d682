"""Where traces go by the configuration and by OpenTelemetry's variables, and what is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.config import ServerConfig
from veltair.errors import ConfigError
from veltair.server.front.tracing.otlp_settings import OtlpSettings, read_settings

ALL, OWN = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"
CONFIGURED = ServerConfig(otel="http://otel:4317")
HTTP = "http/protobuf"
ANY_TEXT = st.text(max_size=30)
NAMES = ["OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"]
NAMES += ["OTEL_PROPAGATORS"]
KINDS = ["ENDPOINT", "PROTOCOL", "HEADERS", "COMPRESSION", "TIMEOUT", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"]
NAMES += [begin + kind for begin in (ALL, OWN) for kind in KINDS]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({f"{ALL}ENDPOINT": " "}, None),
        ({f"{ALL}PROTOCOL": HTTP}, None),
        ({f"{ALL}ENDPOINT": "http://o:1"}, OtlpSettings("http://o:1")),
        ({f"{ALL}ENDPOINT": "http://o:1", f"{OWN}ENDPOINT": "https://p:2"}, OtlpSettings("https://p:2")),
        ({f"{ALL}ENDPOINT": "http://o:1/", f"{ALL}PROTOCOL": HTTP}, OtlpSettings("http://o:1/v1/traces", HTTP)),
        ({f"{ALL}ENDPOINT": "https://o/x", f"{OWN}PROTOCOL": HTTP}, OtlpSettings("https://o/x/v1/traces", HTTP)),
        ({f"{OWN}ENDPOINT": "https://o/x", f"{ALL}PROTOCOL": HTTP}, OtlpSettings("https://o/x", HTTP)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, OtlpSettings("http://localhost:4317")),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", f"{ALL}PROTOCOL": HTTP},
            OtlpSettings("http://localhost:4318/v1/traces", HTTP),
        ),
        ({"OTEL_TRACES_EXPORTER": "none", f"{ALL}ENDPOINT": "http://o:1"}, None),
        ({"OTEL_SDK_DISABLED": "True", f"{ALL}ENDPOINT": "http://o:1"}, None),
    ],
)
def test_the_variables_alone(environment: dict[str, str], expected: OtlpSettings | None) -> None:
    assert read_settings(ServerConfig(), environment) == expected


def test_the_configuration_comes_first() -> None:
    elsewhere = {f"{OWN}ENDPOINT": "http://p:2", f"{ALL}PROTOCOL": HTTP, "OTEL_TRACES_SAMPLER": "parentbased_always_on"}
    own = ServerConfig(otel="http://o:1", otel_ratio=0.25)
    assert read_settings(own, elsewhere) == OtlpSettings("http://o:1/v1/traces", HTTP, ratio=0.25)


@pytest.mark.parametrize(
    ("environment", "ratio"),
    [
        ({}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
    ],
)
def test_the_sampler(environment: dict[str, str], ratio: float) -> None:
    settings = read_settings(CONFIGURED, environment)
    assert settings is not None and settings.ratio == ratio


def test_the_time_is_in_milliseconds_and_that_of_traces_counts() -> None:
    settings = read_settings(CONFIGURED, {f"{ALL}TIMEOUT": "20000", f"{OWN}TIMEOUT": "1500"})
    assert settings is not None and settings.timeout_s == 1.5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (f"{ALL}PROTOCOL", "http/json", "expected grpc or http/protobuf, found 'http/json'"),
        (f"{OWN}PROTOCOL", "thrift", "expected grpc or http/protobuf"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "expected otlp or none, found 'zipkin'"),
        ("OTEL_TRACES_SAMPLER", "always_on", "expected parentbased_always_on or parentbased_always_off or"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "expected parentbased_always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "expected a number from 0 to 1, found '2'"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "expected a number from 0 to 1, found 'half'"),
        ("OTEL_PROPAGATORS", "b3,baggage", "expected tracecontext among them"),
        (f"{ALL}TIMEOUT", "0", "expected a number from 1 to 10,000,000, found '0'"),
        (f"{ALL}TIMEOUT", "nan", "expected a number"),
        (f"{OWN}COMPRESSION", "zstd", "expected none or gzip, found 'zstd'"),
        (f"{ALL}HEADERS", "a=b, secret", "expected KEY=VALUE,KEY=VALUE with values as in a URL, see number 2"),
        (f"{ALL}CERTIFICATE", "/nowhere.pem", "expected a file that can be read, found '/nowhere.pem' (No such file"),
        (f"{OWN}CLIENT_KEY", "/", "expected a file that can be read"),
    ],
)
def test_what_is_not_done_is_refused_by_its_name(name: str, value: str, expected: str) -> None:
    ratio = {} if name == "OTEL_TRACES_SAMPLER" else {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    with pytest.raises(ConfigError) as error:
        read_settings(CONFIGURED, {name: value} | ratio)
    assert str(error.value).startswith(f"{name}: {expected}") and "secret" not in str(error.value)


@pytest.mark.parametrize("protocol", ["grpc", HTTP])
@pytest.mark.parametrize(
    "value", ["otel:4317", "ftp://o:1", "http://", "http://o:99999", "http://u:p@o:1", "http://o\n:1"]
)
def test_addresses_that_are_none(protocol: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{OWN}ENDPOINT: expected http"):
        read_settings(ServerConfig(), {f"{OWN}ENDPOINT": value, f"{ALL}PROTOCOL": protocol})


@pytest.mark.parametrize("value", ["http://o", "http://o:1/v1/traces"])
def test_over_grpc_an_address_has_a_port_and_no_path(value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{ALL}ENDPOINT: expected http://HOST:PORT"):
        read_settings(ServerConfig(), {f"{ALL}ENDPOINT": value})


@given(st.dictionaries(st.sampled_from(NAMES), ANY_TEXT))
def test_whatever_they_say_there_are_settings_or_one_line(environment: dict[str, str]) -> None:
    try:
        settings = read_settings(CONFIGURED, environment)
    except ConfigError as error:
        assert "\n" not in str(error) and str(error).startswith(("OTEL_", "server.otel"))
    else:
        assert settings is None or (0 <= settings.ratio <= 1 and settings.timeout_s > 0)


def test_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    assert read_settings(CONFIGURED, {f"{ALL}CERTIFICATE": str(tmp_path / "ca.pem")}) == OtlpSettings(
        "http://otel:4317"
    )
