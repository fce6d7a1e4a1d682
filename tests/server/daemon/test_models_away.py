"""What operators and accidents do to models that have left memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from large_models import large_mlp
from resident_models import LOAD_S, NAMES, loader_of, make_models, post, refused, serving, stopped, waiting
from running_daemon import reload, until
from tritonclient.utils import InferenceServerException

from veltair.errors import RefusalReason

pytestmark = pytest.mark.slow


@pytest.fixture
def models(artifacts: Path, tmp_path: Path) -> Path:
    return make_models(artifacts, tmp_path)


def test_models_that_are_away_follow_the_operator(artifacts: Path, models: Path) -> None:
    with serving(models, *NAMES) as clients:
        assert clients.away() == ["three"]
        clients.http.load_model("three")
        assert "three" not in clients.away()
        [gone] = clients.away()
        assert reload(clients.daemon)[1] == {"done": []}
        assert clients.away() == [gone]  # a reload brings nothing back
        clients.rpc.unload_model(gone)
        for module in (triton_http, triton_grpc):
            with pytest.raises(InferenceServerException, match="unknown model"):
                clients.ask(module, gone)
        clients.rpc.load_model(gone)
        assert clients.right(gone)
        path = models / "serve.toml"
        [gone] = clients.away()
        path.write_text(path.read_text().replace(f'name = "{gone}"', f'name = "{gone}"\npriority = 2'))
        assert reload(clients.daemon)[1] == {"done": [f"loaded {gone} 1"]}
        assert clients.away() == [gone]
        assert clients.right(gone)


def test_a_folder_that_changes_meanwhile(artifacts: Path, models: Path) -> None:
    with serving(models, *NAMES) as clients:
        other = models / "other"
        (models / "three").rename(other)
        until("a refusal", lambda: refused(clients, "three"))
        rows = {row["name"]: row for row in clients.http.get_model_repository_index()}
        assert rows["three"]["state"] == "UNAVAILABLE"
        assert "no model artifact" in rows["three"]["reason"]
        assert str(models) not in rows["three"]["reason"]
        other.rename(models / "three")
        (models / "one").rename(models / "kept")  # what is in memory would be lost, so it stays there
        until("its time to try again", lambda: not refused(clients, "three"))
        assert clients.away() == ["two"]
        assert clients.right("one")
        large_mlp(artifacts, models / "two", 5)
        until("a refusal", lambda: refused(clients, "two"))
        rows = {row["name"]: row for row in clients.http.get_model_repository_index()}
        assert "not what it was" in rows["two"]["reason"]
        clients.http.load_model("two")
        assert not refused(clients, "two")


def test_an_engine_that_was_killed_comes_back_with_what_was_in_memory(models: Path) -> None:
    with serving(models, *NAMES) as clients:
        engine = next(p for p in psutil.Process(clients.pid).children() if "engine_main" in " ".join(p.cmdline()))
        engine.kill()
        until("its end", lambda: not clients.http.is_server_ready())
        until("another", clients.http.is_server_ready)
        assert clients.away() == ["three"]
        assert all(clients.right(name) for name in NAMES)


def test_a_drain_refuses_who_waits_for_a_model(models: Path) -> None:
    with serving(models, *NAMES) as clients, ThreadPoolExecutor(2) as pool, stopped(loader_of(clients.pid)):
        asked = pool.submit(post, clients, "three")
        until("it waits", lambda: waiting(clients) == 1)
        clients.daemon.process.terminate()
        status, _, document = asked.result()
        assert (status, document) == (503, {"error": RefusalReason.DRAINING.text})
        assert clients.daemon.process.wait(LOAD_S) == 0
