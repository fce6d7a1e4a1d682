"""Artifacts that change on disk under a daemon that serves them: what was checked is what runs."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from example_models import spin_state
from model_versions import LAYERS, broken, scaled_mlp
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from running_engine import living
from tritonclient.utils import InferenceServerException

from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS

pytestmark = pytest.mark.slow

WORKER, ENGINE, LOADER = (
    f"veltair.server.{name}" for name in ("worker.worker", "engine.engine_main", "repository.artifact_loader")
)
FORK_SERVER = "veltair.server.fork_server_main"
BAD = ("flipped byte", "no symbol", "other instructions", "no library")


@pytest.fixture
def model(artifacts: Path, tmp_path: Path) -> Path:
    """The folder of mlp in a repository."""
    folder = tmp_path / "models" / "mlp"
    shutil.copytree(artifacts / "mlp", folder)
    return folder


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[Daemon, Any]]:
    options = {"repository": str(tmp_path / "models"), "model_control": True, "queue_slots": 64, "spare_workers": 0}
    with running(tmp_path, configuration(tmp_path, **options)) as daemon:
        client = triton_grpc.InferenceServerClient(daemon.grpc)
        yield daemon, client
        client.close()


def answer(client: Any, name: str = "mlp") -> bytes:
    values: bytes = client.infer(name, [tensor(triton_grpc, "x", X, "FP32")]).as_numpy("y").tobytes()
    return values


def processes(daemon: Daemon, module: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(daemon.process.pid).children(recursive=True):
        try:
            if module in process.cmdline():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def kill(daemon: Daemon, module: str) -> None:
    """Kill all processes of a kind and wait until others have taken their places and serve."""
    before = processes(daemon, module)
    for process in before:
        process.kill()

    def again() -> bool:
        return len(set(processes(daemon, module)) - set(before)) == len(before)

    until(f"others in the places of {module}", again)
    until("a server that is ready", lambda: daemon.status("/v2/health/ready") == 200)


def load(daemon: Daemon, name: str = "mlp", change: str = "load") -> tuple[int, str]:
    """Status and error."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/repository/models/{name}/{change}", data=b"{}") as done:
            return done.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def overwrite(path: Path, content: bytes) -> None:
    """In place: the file stays the same one, for whoever has it open or mapped."""
    with path.open("r+b") as file:
        file.write(content)


def overwrite_library(folder: Path) -> None:
    overwrite(folder / KERNELS, b"\xcc" * (folder / KERNELS).stat().st_size)


def truncate_library(folder: Path) -> None:
    os.truncate(folder / KERNELS, 0)


def overwrite_weights(folder: Path) -> None:
    overwrite(folder / WEIGHTS, (np.fromfile(folder / WEIGHTS, np.float32) * 2).tobytes())


def truncate_weights(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, 0)


def swap_weights(folder: Path) -> None:
    (np.fromfile(folder / WEIGHTS, np.float32) * 2).tofile(folder / "new")
    (folder / "new").rename(folder / WEIGHTS)


def overwrite_manifest(folder: Path) -> None:
    overwrite(folder / MANIFEST, b"{}")


ALTERATIONS = (
    *(overwrite_library, truncate_library, overwrite_weights, truncate_weights, swap_weights),
    *(overwrite_manifest, shutil.rmtree),
)


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
def test_what_was_checked_is_served_by_every_process_that_comes(
    model: Path, tmp_path: Path, alter: Callable[[Path], None]
) -> None:
    with serving(tmp_path) as (daemon, client):
        before = answer(client)
        alter(model)
        assert answer(client) == before
        status, error = load(daemon)
        assert status in (400, 404)
        assert "mlp" in error and str(tmp_path) not in error
        for module in (WORKER, LOADER, ENGINE, WORKER):
            if module == LOADER:
                [loader] = processes(daemon, LOADER)
                loader.kill()  # another takes its place with the next load
                assert load(daemon)[0] in (400, 404)
            else:
                kill(daemon, module)
            assert {answer(client) for _ in range(8)} == {before}
            until("its files in every process, and no more than before", lambda: all_hold(daemon, 3))
        assert load(daemon)[0] in (400, 404)


def test_a_folder_is_not_looked_at_again(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as (daemon, client):
        answer(client)
        for process in [psutil.Process(daemon.process.pid), *psutil.Process(daemon.process.pid).children(True)]:
            assert str(model) not in Path(f"/proc/{process.pid}/maps").read_text()
            assert not [link for link in opened(process.pid) if link.startswith(str(model))]


def test_what_others_may_write_is_refused_and_the_old_goes_on(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as (daemon, client):
        before = answer(client)
        for name, mode in ((".", 0o777), (KERNELS, 0o666), (WEIGHTS, 0o646), (MANIFEST, 0o666)):
            kept = (model / name).stat().st_mode
            (model / name).chmod(mode)
            status, error = load(daemon)
            assert status == 400
            assert "anybody may write it" in error and f"{mode:04o}" in error and "expected root" in error
            assert str(tmp_path) not in error
            (model / name).chmod(kept)
            assert answer(client) == before
        assert load(daemon)[0] == 200


def test_descriptors_and_memory_are_given_back(artifacts: Path, model: Path, tmp_path: Path) -> None:
    repository = model.parent
    with serving(tmp_path) as (daemon, client):

        def round_of_loads(number: int) -> None:
            for version in (2 * number, 2 * number + 1):
                name = f"scaled{version}"
                scaled_mlp(artifacts, repository / name, version)
                shutil.copytree(repository / name, repository / f"{name}_twin")
                for each in (name, f"{name}_twin"):
                    client.load_model(each)
                    scale = (
                        np.frombuffer(answer(client, each), np.float32).sum() / np.frombuffer(first, np.float32).sum()
                    )
                    assert np.isclose(scale, version**LAYERS, rtol=1e-3)
                client.unload_model(name)
                assert answer(client, f"{name}_twin") != first
                client.unload_model(f"{name}_twin")
                client.load_model("spin")  # with another library, whose descriptor has the same number
                result = client.infer("spin", spin(triton_grpc, version, 5)).as_numpy("state")
                assert result.tolist() == [spin_state(version, 5)]
                client.unload_model("spin")
            for how in BAD:
                with pytest.raises(InferenceServerException):
                    client.load_model(how.replace(" ", "_"))
            until("nothing of what failed", lambda: no_more_than(daemon, 1))

        shutil.copytree(artifacts / "spin", repository / "spin")
        for how in BAD:
            broken(artifacts, repository / how.replace(" ", "_"), how)
        first = answer(client)
        round_of_loads(1)
        counts = [sealed(daemon)]
        for number in range(2, 5):
            round_of_loads(number)
            counts.append(sealed(daemon))
        assert all(count == counts[0] for count in counts), counts
        assert daemon.metric("veltair_worker_deaths_total") == 0
        client.unload_model("mlp")
        until("nothing of any model", lambda: no_more_than(daemon, 0))


def opened(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def sealed(daemon: Daemon) -> dict[int, tuple[int, int]]:
    """By process: how many descriptors of sealed files it has open, and how many it maps."""
    found = {}
    parent = psutil.Process(daemon.process.pid)
    for pid in filter(living, [parent.pid, *(child.pid for child in parent.children(recursive=True))]):
        links = [link for link in opened(pid) if is_sealed(link)]
        maps = {line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if is_sealed(line)}
        found[pid] = len(links), len(maps)
    return found


def all_hold(daemon: Daemon, files: int) -> bool:
    """Whether each process has so many descriptors, but fork servers, which hold no artifact."""
    forks = {process.pid for process in processes(daemon, FORK_SERVER)}
    return all(count == files for pid, (count, _) in sealed(daemon).items() if pid not in forks)


def is_sealed(text: str) -> bool:
    return any(f"memfd:veltair-{name}" in text for name in (MANIFEST, KERNELS, WEIGHTS))


def no_more_than(daemon: Daemon, models: int) -> bool:
    return all(files <= 3 * models and maps <= 2 * models for files, maps in sealed(daemon).values())
