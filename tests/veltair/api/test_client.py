"""`Client` and `AsyncClient` against a real daemon, over both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from example_models import digests, mlp_outputs

import veltair
from veltair.api.answer_errors import error_of
from veltair.errors import (
    ConfigError,
    DeadlineError,
    OverloadedError,
    RefusalReason,
    RefusedError,
    RequestError,
    TooLargeError,
    UnauthenticatedError,
    UnknownModelError,
)

X = np.random.default_rng(3).standard_normal((5, 16), dtype=np.float32)


@pytest.fixture(params=[False, True], ids=["grpc", "http"])
def client(daemon: veltair.Daemon, request: pytest.FixtureRequest) -> Iterator[veltair.Client]:
    return daemon.client(http=request.param)


@pytest.mark.slow
def test_arrays_in_and_out(client: veltair.Client) -> None:
    answer = client.infer("mlp", {"x": X})
    np.testing.assert_allclose(answer["y"], mlp_outputs(X), rtol=1e-4, atol=1e-4)
    assert np.array_equal(client.infer("mlp", X).array, answer.array)
    assert np.array_equal(client.infer("mlp", X.tolist()).array, answer.array)
    assert np.array_equal(client.infer("mlp", np.asfortranarray(X)).array, answer.array)


@pytest.mark.slow
def test_strings(client: veltair.Client) -> None:
    names, texts, ids = ["ann", "böb"], [b"x;y", b""], [7, 1 << 30]
    inputs = {"name": np.array([names]).T, "text": [[text] for text in texts], "id": [[i] for i in ids]}
    assert client.infer("words", inputs)["digest"].tolist() == digests([n.encode() for n in names], texts, ids)


@pytest.mark.slow
def test_what_the_server_says_of_a_model(client: veltair.Client, daemon: veltair.Daemon) -> None:
    model = client.describe("mlp")
    assert (model.name, model.versions) == ("mlp", ("1",))
    [x], [y] = model.inputs, model.outputs
    assert (x.name, x.datatype, x.shape, y.name, y.shape) == ("x", "FP32", (-1, 16), "y", (-1, 8))
    assert model.target is not None and model.target.percentile == 0.95
    assert client.is_ready()


@pytest.mark.slow
def test_options_reach_the_server(client: veltair.Client) -> None:
    answer = client.infer("mlp", X, trace=True, priority=1, request_id="seven", version="1", deadline_ms=10_000)
    assert answer.parameters["priority"] == 1 and "blocks" in answer.parameters
    with pytest.raises(RequestError, match="no version '9'"):
        client.infer("mlp", X, version="9")
    with pytest.raises(RefusedError) as refused:
        client.infer("spin", {"turns": [1 << 30], "seed": [1]}, deadline_ms=5)
    assert refused.value.reason in (RefusalReason.NO_TIME, RefusalReason.DEADLINE, RefusalReason.OVERDUE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"z": X}, "mlp: no input 'z'; it takes x"),
        (X[:, :3], r"input 'x' has shape \[1…8, 16\], got \[5, 3\]"),
        (X.astype(np.float64), "input 'x' is FP32, got 'FP64'"),
        (X.astype(np.complex64), "input 'x' is FP32, got an array of complex64"),
    ],
)
def test_wrong_inputs_are_named(client: veltair.Client, inputs: object, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        client.infer("mlp", inputs)  # type: ignore[arg-type]


@pytest.mark.slow
def test_models_that_are_not_there_and_inputs_without_a_name(client: veltair.Client) -> None:
    with pytest.raises(UnknownModelError, match="unknown model 'nope'"):
        client.infer("nope", X)
    with pytest.raises(RequestError, match="the model has 2 inputs: give a dict of turns, seed"):
        client.infer("spin", [1])


@pytest.mark.slow
@pytest.mark.parametrize("http", [False, True])
def test_many_queries_at_once(daemon: veltair.Daemon, http: bool) -> None:
    async def ask() -> list[veltair.Answer]:
        async with daemon.async_client(http=http) as client:
            assert await client.is_ready()
            return await asyncio.gather(*(client.infer("mlp", X[: 1 + n % 5]) for n in range(40)))

    whole = mlp_outputs(X)
    for number, answer in enumerate(asyncio.run(ask())):
        np.testing.assert_allclose(answer.array, whole[: 1 + number % 5], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_nobody_there(scheme: str) -> None:
    with veltair.Client(f"{scheme}://127.0.0.1:1") as client, pytest.raises(ConnectionError, match=f"{scheme}://127.0"):
        client.infer("mlp", X)


@pytest.mark.parametrize("address", ["ftp://a:1", "grpc://host", "http://:8000", "grpc://a:99999999", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="expected grpc://HOST:PORT or http://HOST:PORT"):
        veltair.Client(address)


def test_every_refusal_is_told_by_its_text_whatever_stands_before_it() -> None:
    for reason in RefusalReason:
        for status in (str(reason.http_status), f"StatusCode.{reason.grpc_code}"):
            error = error_of(status, f"query 7: {reason.text}", "")
            assert isinstance(error, OverloadedError | DeadlineError) and error.reason is reason


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("401", UnauthenticatedError),
        ("StatusCode.UNAUTHENTICATED", UnauthenticatedError),
        ("413", TooLargeError),
        ("400", RequestError),
        ("StatusCode.INVALID_ARGUMENT", RequestError),
        ("StatusCode.UNAVAILABLE", ConnectionError),
        ("StatusCode.DEADLINE_EXCEEDED", DeadlineError),
    ],
)
def test_statuses_are_the_servers_own_classes(status: str, kind: type[Exception]) -> None:
    assert type(error_of(status, "why", "grpc://[::1]:1")) is kind
