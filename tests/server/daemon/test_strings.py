"""A model that takes strings in the whole daemon, asked by the stock tritonclient and by raw bodies."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import digests
from running_daemon import Daemon, configuration, running, tensor
from running_engine import WAIT_S
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

NAMES = [b"a", b"", b"a\0b", b"\xff\xfe"]
TEXTS = ["Größe".encode(), b"", b"i77;i3", b"x" * 70_000]
IDS = [1, -1, 1 << 40, -(1 << 63)]


@pytest.fixture(scope="module")
def daemon(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("daemon"), configuration(artifacts, "words", body_limit_mb=80)) as started:
        yield started


def column(items: list[Any]) -> np.ndarray[Any, Any]:
    values = np.empty((len(items), 1), object)
    values[:, 0] = items
    return values


def query(module: Any, names: list[Any], texts: list[Any], ids: list[int], **how: Any) -> list[Any]:
    return [
        tensor(module, "name", column(names), "BYTES", **how),
        tensor(module, "text", column(texts), "BYTES", **how),
        tensor(module, "id", np.array(ids, np.int64).reshape(-1, 1), "INT64", **how),
    ]


def test_metadata(http: Any, rpc: Any) -> None:
    inputs = [("name", "BYTES", [-1, 1]), ("text", "BYTES", [-1, 1]), ("id", "INT64", [-1, 1])]
    assert [(i["name"], i["datatype"], i["shape"]) for i in http.get_model_metadata("words")["inputs"]] == inputs
    described = rpc.get_model_metadata("words")
    assert [(i.name, i.datatype, list(i.shape)) for i in described.inputs] == inputs
    config = http.get_model_config("words")
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]][:2] == [
        ("name", "TYPE_STRING", [1]),
        ("text", "TYPE_STRING", [1]),
    ]
    features = json.loads(config["parameters"]["features"]["string_value"])
    assert features == {"name": {"max_bytes": 8}, "text": {"max_bytes": 1 << 24}, "id": {}}
    assert rpc.get_model_config("words").config.parameters["features"].string_value == json.dumps(
        features, separators=(",", ":")
    )


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_infer(http: Any, rpc: Any, rows: int) -> None:
    given = NAMES[:rows], TEXTS[:rows], IDS[:rows]
    for client, module in ((http, triton_http), (rpc, triton_grpc)):
        answer = client.infer("words", query(module, *given))
        assert answer.as_numpy("digest").tolist() == digests(*given)


def test_infer_in_json(http: Any) -> None:
    names, texts = ["a", "ß", "", "\0"], ["x;y", "", "Größe", "z" * 400_000]  # too long to be parsed in the front
    answer = http.infer("words", query(triton_http, names, texts, IDS, binary_data=False))
    expected = digests([n.encode() for n in names], [t.encode() for t in texts], IDS)
    assert answer.as_numpy("digest").tolist() == expected


def test_typed_contents_over_grpc(daemon: Daemon) -> None:
    import grpc

    request = pb.ModelInferRequest(model_name="words")
    for name, datatype, field, values in (
        ("name", "BYTES", "bytes_contents", NAMES),
        ("text", "BYTES", "bytes_contents", TEXTS),
        ("id", "INT64", "int64_contents", IDS),
    ):
        entry = request.inputs.add(name=name, datatype=datatype, shape=[4, 1])
        getattr(entry.contents, field).extend(values)
    with grpc.insecure_channel(daemon.grpc) as channel:
        answer = pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=WAIT_S)
    found = np.frombuffer(answer.raw_output_contents[0], np.int32).reshape(4, 5)
    assert found.tolist() == digests(NAMES, TEXTS, IDS)


def test_ten_megabytes_in_one_string(http: Any, rpc: Any) -> None:
    given = [b""], [bytes(range(256)) * 40_000], [0]
    for client, module in ((http, triton_http), (rpc, triton_grpc)):
        assert client.infer("words", query(module, *given)).as_numpy("digest").tolist() == digests(*given)


REFUSED = {
    "too much text": (([b"123456789"], [b""], [0]), "'name': 9 bytes of text in 1 rows; at most 8 a row"),
    "10 MB where 8 bytes are meant": (([b"x" * 10_000_000], [b""], [0]), "'name': 10000000 bytes of text in 1 rows"),
    "a million strings": (([b""] * 1_000_000, [b""], [0]), r"'name' has shape [1…4, 1], got [1000000, 1]"),
    "two batches": (([b"", b""], [b""], [0]), "'text' has batch 1, 'name' has 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_and_then_a_good_one(http: Any, rpc: Any, case: str) -> None:
    given, message = REFUSED[case]
    for client, module in ((http, triton_http), (rpc, triton_grpc)):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("words", query(module, *given))
        assert message in str(caught.value)
        good = [b"a"], [b"b"], [3]
        assert client.infer("words", query(module, *good)).as_numpy("digest").tolist() == digests(*good)


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"\x09\0\0\0a", "a string of 9 bytes runs past the end"),
        (b"\xff\xff\xff\xff", "a string of 4294967295 bytes runs past the end"),
        (b"\0\0\0\x80", "a string of 2147483648 bytes runs past the end"),
        (b"\0\0", "1 strings take at least 4 bytes, got 2"),
        (b"\0\0\0\0" * 2, "expected 1 strings, got 2"),
        (b"\1\0\0\0a\1\0", "2 bytes left where a 4-byte string length was expected"),
    ],
)
def test_lengths_that_lie(daemon: Daemon, tail: bytes, says: str) -> None:
    parts = [("name", "BYTES", tail), ("text", "BYTES", b"\0\0\0\0"), ("id", "INT64", bytes(8))]
    entries = [
        {"name": n, "datatype": d, "shape": [1, 1], "parameters": {"binary_data_size": len(data)}}
        for n, d, data in parts
    ]
    header = json.dumps({"inputs": entries}).encode()
    body = header + b"".join(data for *_, data in parts)
    headers = {"Inference-Header-Content-Length": str(len(header))}
    request = urllib.request.Request(f"http://{daemon.http}/v2/models/words/infer", body, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=WAIT_S)
    with caught.value as answer:
        assert answer.code == 400
        assert json.load(answer)["error"].startswith(f"input 'name': {says}")
