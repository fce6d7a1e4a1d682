"""What the container of deploy/kserve runs, on a folder as KServe's initializer leaves it."""

import os
import shutil
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard_queries import DEPLOY
from free_ports import free_ports
from running_daemon import until

MOUNT = "/mnt/models"


def container() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "kserve" / "runtime.yaml").read_text("utf-8"))
    found: dict[str, Any] = document["spec"]["containers"][0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("versions", [False, True])
def test_what_the_initializer_has_fetched_is_served(artifacts: Path, tmp_path: Path, *, versions: bool) -> None:
    """The folder itself is one that anybody may write, as volumes of Kubernetes are; twice, as after a restart."""
    mounted, models = tmp_path / "mounted", tmp_path / "models"
    shutil.copytree(artifacts / "mlp", mounted / "3" if versions else mounted)
    mounted.chmod(0o777)
    http, grpc = free_ports(2)
    (script, _), name = container()["args"], "rank"
    for old, new in {
        MOUNT: str(mounted),
        "/tmp/models": str(models),
        "0.0.0.0:8080": f"127.0.0.1:{http}",
        "0.0.0.0:9000": f"127.0.0.1:{grpc}",
    }.items():
        assert old in script
        script = script.replace(old, new)
    probe = container()["readinessProbe"]["httpGet"]
    path = probe["path"].replace("{{.Name}}", name)
    assert probe["port"] == 8080
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for _ in range(2):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([sys.executable, "-c", script, name], env=environment, stdout=log, stderr=log)
        try:
            until("the model is ready", partial(is_ready, process, f"http://127.0.0.1:{http}{path}"))
        finally:
            process.terminate()
            assert process.wait() == 0, (tmp_path / "log").read_text()


def is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None
    try:
        with urllib.request.urlopen(url) as answer:
            return bool(answer.status == 200)
    except OSError:  # it does not listen yet, or the model is not there
        return False


def test_the_container_runs_as_the_user_of_the_initializer() -> None:
    """`USER 1000` in KServe's storage-initializer.Dockerfile (commit 005226dc9): files of others are not served."""
    context = container()["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (1000, 1000)
