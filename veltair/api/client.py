"""`Client` and `AsyncClient`: ask a daemon over gRPC or HTTP, with numpy arrays in and out.

Both are thin layers over `tritonclient`, so they speak to any server of the Open Inference Protocol v2.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypedDict, Unpack
from urllib.parse import urlsplit

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as async_triton_grpc
from numpy.typing import ArrayLike, NDArray
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from veltair.api.answer_errors import server_errors
from veltair.api.served_models import ModelPort, ServedModel, served_model
from veltair.api.tensors import Inputs, as_array, named_inputs
from veltair.errors import ConfigError, RequestError

Arrays: TypeAlias = dict[str, NDArray[Any]]
SCHEMES = {"grpc": False, "grpcs": True, "http": False, "https": True}  # with TLS?


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of a query, by name; also an array by itself where there is one output.

    >>> answer = Answer({"y": np.ones((1, 2), np.float32)})
    >>> answer["y"].shape, answer.array.shape
    ((1, 2), (1, 2))
    """

    outputs: Arrays
    parameters: Mapping[str, Any] = field(default_factory=dict)  # where the query went, if its `trace` was asked for

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.outputs[name]

    @property
    def array(self) -> NDArray[Any]:
        """The only output. Raises ValueError where there are several."""
        [array] = self.outputs.values()
        return array


class QueryOptions(TypedDict, total=False):
    """What may be said of a query besides its inputs: `client.infer("m", x, deadline_ms=50, trace=True)`."""

    version: str  # of the model; the newest by default
    deadline_ms: float  # the query is refused at once, or given up, where it cannot be answered by then
    priority: int  # its place among those of its tenant that wait: 1 goes first; 0 is the default
    request_id: str  # comes back with the answer, and stands in the server's log where the query fails
    trace: bool  # have `Answer.parameters` say how the query was served


class _Connection:
    """What both clients share: addresses, and the way from arrays to requests and from responses to arrays."""

    def __init__(self, address: str, token: str | None, timeout_s: float, ca: Path | None, *, asynchronous: bool):
        text = address if "://" in address else f"grpc://{address}"
        url = urlsplit(text)
        try:
            fits = url.scheme in SCHEMES and url.hostname and url.port
        except ValueError:  # a port out of range
            fits = False
        if not fits:
            raise ConfigError(f"expected grpc://HOST:PORT or http://HOST:PORT (grpcs, https for TLS), got {address!r}")
        self.address = text
        self._is_grpc = url.scheme.startswith("grpc")
        self._timeout_s = timeout_s
        self._headers = {"authorization": f"Bearer {token}"} if token else None
        self._known: dict[str, ServedModel] = {}  # by model
        self._kind = _client_module(self._is_grpc, asynchronous)
        self._client = self._kind.InferenceServerClient(url.netloc, **self._settings(url.scheme, ca, asynchronous))

    def _settings(self, scheme: str, ca: Path | None, asynchronous: bool) -> dict[str, Any]:
        if self._is_grpc:
            return {"ssl": True, "root_certificates": None if ca is None else str(ca)} if SCHEMES[scheme] else {}
        waits = {"conn_timeout": self._timeout_s} if asynchronous else {"network_timeout": self._timeout_s}
        if not SCHEMES[scheme]:
            return waits
        if asynchronous:
            return waits | {"ssl": True, "ssl_context": ssl.create_default_context(cafile=ca)}
        return waits | {"ssl": True, "ssl_context_factory": lambda: ssl.create_default_context(cafile=ca)}

    def _call_settings(self) -> dict[str, Any]:
        own = {"headers": self._headers}
        return own | {"client_timeout": self._timeout_s} if self._is_grpc else own

    def _request(
        self,
        model: ServedModel,
        inputs: Inputs,
        options: QueryOptions,
    ) -> dict[str, Any]:
        """The arguments of tritonclient's `infer`."""
        ports = {port.name: port for port in model.inputs}
        named = named_inputs(inputs, list(ports))
        if unknown := [name for name in named if name not in ports]:
            raise RequestError(f"{model.name}: no input {unknown[0]!r}; it takes {', '.join(ports)}")
        tensors = [self._tensor(ports[name], values) for name, values in named.items()]
        deadline_ms = options.get("deadline_ms")
        found = {
            "model_name": model.name,
            "inputs": tensors,
            "model_version": options.get("version", ""),
            "priority": options.get("priority", 0),
            "request_id": options.get("request_id", ""),
            "timeout": None if deadline_ms is None else max(1, round(deadline_ms * 1e3)),
            "parameters": {"veltair_trace": True} if options.get("trace") else None,
        }
        return found | self._call_settings()

    def _tensor(self, port: ModelPort, values: ArrayLike) -> Any:
        array = as_array(values, np.dtype(triton_to_np_dtype(port.datatype) or object))
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise RequestError(f"input {port.name!r} is {port.datatype}, got an array of {array.dtype}")
        tensor = self._kind.InferInput(port.name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def _answer(self, result: Any) -> Answer:
        response = result.get_response()
        if self._is_grpc:
            names = [output.name for output in response.outputs]
            parameters = {
                key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in response.parameters.items()
            }
        else:
            names = [output["name"] for output in response["outputs"]]
            parameters = response.get("parameters", {})
        parameters.pop("binary_data_size", None)
        return Answer({name: result.as_numpy(name) for name in names}, parameters)

    def _description_settings(self) -> dict[str, Any]:
        return self._call_settings() | ({"as_json": True} if self._is_grpc else {})


class Client(_Connection):
    """Asks a daemon, one query after the other. Use one client for each thread.

    ::

        with veltair.Client("grpc://127.0.0.1:8001") as client:
            answer = client.infer("resnet50", image, deadline_ms=50)
            answer["logits"].argmax()

    Errors are those of `veltair.errors`: a RequestError for a wrong request, an OverloadedError or a DeadlineError for
    a refused query, whose `reason` tells why; ConnectionError where no server answers.
    """

    def __init__(
        self, address: str, *, token: str | None = None, timeout_s: float = 60.0, ca: Path | None = None
    ) -> None:
        """`address`: grpc://HOST:PORT, http://HOST:PORT, or either with TLS as grpcs, https; without a scheme, gRPC.

        Args:
            token: a bearer token, for servers that know their clients.
            timeout_s: for each call.
            ca: a file of root certificates; the system's by default.
        """
        super().__init__(address, token, timeout_s, ca, asynchronous=False)

    def infer(
        self,
        model: str,
        inputs: Inputs,
        **options: Unpack[QueryOptions],
    ) -> Answer:
        """Ask once, and wait for the answer.

        `inputs`: arrays by the names of the model's inputs; the array alone where there is one input.
        """
        request = self._request(self.describe(model), inputs, options)
        with server_errors(self.address):
            return self._answer(self._client.infer(**request))

    def describe(self, model: str) -> ServedModel:
        """Inputs, outputs and versions of a model, as they were when it was first asked for."""
        if model not in self._known:
            with server_errors(self.address):
                told = self._client.get_model_metadata(model, **self._description_settings())
                more = self._client.get_model_config(model, **self._description_settings())
            self._known[model] = served_model(told, more)
        return self._known[model]

    def is_ready(self) -> bool:
        """Whether the server answers queries."""
        with server_errors(self.address):
            return bool(self._client.is_server_ready(**self._call_settings()))

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Connection):
    """Asks a daemon, with many queries under way at once.

    ::

        async with veltair.AsyncClient("grpc://127.0.0.1:8001") as client:
            answers = await asyncio.gather(*(client.infer("resnet50", image) for image in images))

    Errors and arguments are those of `Client`.
    """

    def __init__(
        self, address: str, *, token: str | None = None, timeout_s: float = 60.0, ca: Path | None = None
    ) -> None:
        """Create it inside a running event loop. Arguments: see `Client`."""
        super().__init__(address, token, timeout_s, ca, asynchronous=True)

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        **options: Unpack[QueryOptions],
    ) -> Answer:
        """Ask once. Cancelling the task cancels the query. See `Client.infer`."""
        request = self._request(await self.describe(model), inputs, options)
        with server_errors(self.address):
            return self._answer(await self._client.infer(**request))

    async def describe(self, model: str) -> ServedModel:
        """Inputs, outputs and versions of a model, as they were when it was first asked for."""
        if model not in self._known:
            with server_errors(self.address):
                told = await self._client.get_model_metadata(model, **self._description_settings())
                more = await self._client.get_model_config(model, **self._description_settings())
            self._known[model] = served_model(told, more)
        return self._known[model]

    async def is_ready(self) -> bool:
        """Whether the server answers queries."""
        with server_errors(self.address):
            return bool(await self._client.is_server_ready(**self._call_settings()))

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _client_module(is_grpc: bool, asynchronous: bool) -> Any:
    """The module of `tritonclient`. That for HTTP brings an event loop of its own, so it is loaded where it is used."""
    if is_grpc:
        return async_triton_grpc if asynchronous else triton_grpc
    import tritonclient.http as triton_http
    import tritonclient.http.aio as async_triton_http

    return async_triton_http if asynchronous else triton_http
