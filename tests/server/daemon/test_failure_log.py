"""An operator finds a client's failed request in the log: by its id, and by the query's number what happened."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from running_daemon import configuration, running, spin, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

FRONT = r"query (\d+) of brittle failed: a kernel of the model failed; request id '%s'$"
ENGINE = r"query %s of brittle: .*too much for a brittle layer"


def test_a_failed_kernel_is_logged_with_its_request(artifacts: Path, tmp_path: Path, fronts: int) -> None:
    with running(tmp_path, configuration(artifacts, "brittle", fronts=fronts)) as daemon:
        log: Callable[[], str] = (tmp_path / "log").read_text
        ways: list[tuple[Any, str]] = [(triton_grpc, daemon.grpc), (triton_http, daemon.http)]
        for module, address in ways:
            name = module.__name__.rpartition(".")[2]
            with module.InferenceServerClient(address) as client:

                def ask(turns: int, request_id: str, module: Any = module, client: Any = client) -> None:
                    client.infer("brittle", spin(module, turns, 50), request_id=request_id)

                with pytest.raises(InferenceServerException, match="a kernel of the model failed"):
                    ask(1, f"{name} by Python")
                ask(0, "any")  # from here on an I/O thread has a plan
                with pytest.raises(InferenceServerException, match="a kernel of the model failed"):
                    ask(1, f"{name} by a plan")
            for how in ("by Python", "by a plan"):
                told = re.compile(FRONT % f"{name} {how}", re.MULTILINE)
                until("the front to log it", lambda told=told: told.search(log()) is not None)
                found = told.search(log())
                assert found is not None
                happened = re.compile(ENGINE % found[1])
                until("the engine to log it", lambda happened=happened: happened.search(log()) is not None)
