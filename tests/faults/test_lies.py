"""Lies about shapes, types and sizes: each is refused with a text that says what was expected, and changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from lies import PATH, grpc_lies, grpc_request, http_lies, json_request
from native_http import post
from running_daemon import Daemon, X, configuration, running
from traffic import connect, first_answer, processes, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
LONGEST_TEXT = 2000  # characters of an error


def ask(daemon: Daemon, data: bytes) -> tuple[int, bytes]:
    """Status and body of one request as bytes."""
    with connect(daemon.http) as client:
        client.sendall(data)
        stream = client.makefile("rb")
        status = int(stream.readline().split()[1])
        size = 0
        while (line := stream.readline()) != b"\r\n":
            if found := re.match(rb"content-length: (\d+)", line, re.IGNORECASE):
                size = int(found[1])
        return status, stream.read(size)


def test_lies_over_http_are_refused(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """A hundred lies in JSON and in the binary extension, one after the other: 400 each, and the answer behind is the
    same."""
    with running(tmp_path, configuration(artifacts, "mlp", shared_memory=True)) as daemon:
        before = processes(daemon)
        good = post(json.dumps(json_request()).encode(), None, path=PATH)
        for _ in rounds(quick=1, full=20):
            status, right = ask(daemon, good)
            assert status == 200
            wrong = {}
            for name, data, says in http_lies():
                status, answer = ask(daemon, data)
                text = json.loads(answer).get("error", "") if answer.startswith(b"{") else ""
                if status != 400 or says not in text or not 0 < len(text) < LONGEST_TEXT:
                    wrong[name] = f"{status}, not {says!r}: {text[:300]}"
                assert ask(daemon, good) == (200, right), name
            assert wrong == {}, "\n".join(f"{name}: {found}" for name, found in wrong.items())
        assert processes(daemon) == before


def test_lies_over_grpc_are_refused(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """As many in raw and in typed contents: INVALID_ARGUMENT each, and the answer behind is the same bit by bit."""
    with running(tmp_path, configuration(artifacts, "mlp", shared_memory=True)) as daemon:
        before = processes(daemon)
        expected = first_answer(daemon)
        with grpc.insecure_channel(daemon.grpc) as channel:
            stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in rounds(quick=1, full=20):
                wrong = {}
                for name, request, says in grpc_lies():
                    with pytest.raises(grpc.RpcError) as caught:
                        stub.ModelInfer(request)
                    code, text = caught.value.code(), caught.value.details()
                    if code != grpc.StatusCode.INVALID_ARGUMENT or says not in text or len(text) > LONGEST_TEXT:
                        wrong[name] = f"{code}, not {says!r}: {text[:300]}"
                    answer = stub.ModelInfer(grpc_request(typed=False)).raw_output_contents[0]
                    assert answer == expected.tobytes(), name
                assert wrong == {}, "\n".join(f"{name}: {found}" for name, found in wrong.items())
        assert processes(daemon) == before


def test_what_looks_like_a_lie_is_answered(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """Minus zero, integers for floats, denormals and unknown members are no lies, and harm nobody."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon, traffic(daemon) as asking:
        for _ in rounds(quick=1, full=20):
            for value in ("-0.0", "0", "-0", "1", "1e-999", "1e-45", "1E+2", "3.4028235e38"):
                request = json_request()
                request["inputs"][0]["data"] = [0.0] * X.size
                data = json.dumps(request).replace("0.0", value, 1).replace("{", '{"unknown": [], ', 1).encode()
                status, answer = ask(daemon, post(data, None, path=PATH))
                assert status == 200, (value, answer)
                assert np.shape(json.loads(answer)["outputs"][0]["data"]) == (40,)
        asking.served(50)
    assert set(asking.outcomes) == {"right"}, asking.outcomes
