"""What tests of bags ask of a daemon: by stock clients, by many at once, with random payloads, and with lies."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from ragged_models import Feeds
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import veltair
from veltair.errors import RequestError
from veltair.loadgen.client import TensorMetadata
from veltair.loadgen.model_config import build_metadata
from veltair.loadgen.payloads import draw_payloads


def start(folder: Path, names: Sequence[str]) -> veltair.Daemon:
    """One worker: while one query runs, others wait, and share a batch."""
    tenants = [veltair.TenantConfig(name=name, artifact=str(folder / name), qos_ms=60_000.0) for name in names]
    return veltair.serve(tenants, workers=1)


def sent(api: Any, feeds: Feeds) -> list[Any]:
    """The inputs for a stock client."""
    found = []
    for name, value in feeds.items():
        found.append(api.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
        found[-1].set_data_from_numpy(value)
    return found


def ask_at_once(daemon: veltair.Daemon, name: str, queries: Sequence[Feeds]) -> list[Any]:
    """The answers `y`, or what is said of a wrong query."""

    def ask(feeds: Feeds) -> Any:
        try:
            return client.infer(name, feeds).outputs["y"]
        except RequestError as error:
            return str(error)

    with veltair.Client(f"grpc://{daemon.grpc}") as client, ThreadPoolExecutor(16) as pool:
        return list(pool.map(ask, queries))


def check_that_batches_were_shared(daemon: veltair.Daemon, name: str, queries: Sequence[Feeds]) -> None:
    """Some queries have run together. Those that wait do, so slow clients may have to ask more than once."""
    for _ in range(10):
        stats = _told(daemon, f"{name}/stats")["model_stats"][0]
        if stats["execution_count"] < stats["inference_stats"]["success"]["count"]:
            return
        ask_at_once(daemon, name, queries)
    pytest.fail("no query has shared a batch")


def check_that_both_protocols_refuse(daemon: veltair.Daemon, name: str, feeds: Feeds, message: str) -> None:
    for api, address in ((triton_http, daemon.http), (triton_grpc, daemon.grpc)):
        with api.InferenceServerClient(address) as client:
            with pytest.raises(InferenceServerException, match=message) as refused:
                client.infer(name, sent(api, feeds))
            assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def check_random_payloads(daemon: veltair.Daemon, name: str, batches: Sequence[int]) -> None:
    inputs = [TensorMetadata(i["name"], i["datatype"], tuple(i["shape"])) for i in _told(daemon, name)["inputs"]]
    config = _told(daemon, f"{name}/config")
    meta = build_metadata(name, inputs, {key: value["string_value"] for key, value in config["parameters"].items()})
    assert meta.bags
    with veltair.Client(f"grpc://{daemon.grpc}") as client:
        for payload in draw_payloads(meta, batches, np.random.default_rng(0)):
            assert np.isfinite(client.infer(name, payload).outputs["y"]).all()


def _told(daemon: veltair.Daemon, path: str) -> Any:
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/{path}") as answer:
        return json.load(answer)
