"""The examples run as their headers say, and the manifest is what Kubernetes and the server take."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from veltair.config import ServeConfig, parse_config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNS = {  # arguments that make it quick, and what it prints
    "vision_model": (["--trials", "0"], "off from ONNX Runtime by at most"),
    "bert_with_neighbour": (["--trials", "0", "--seconds", "1"], "vision "),
    "dlrm_from_raw_features": (["--trials", "0"], "scores 0."),
    "train_on_raw_features": (["--trials", "0"], "differ by at most"),
    "train_with_own_operators": (["--trials", "0"], "differ by at most"),
    "custom_policy": (["--seeds", "1"], "shortest-first"),
}


def test_all_examples_are_run_and_say_what_they_show() -> None:
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert set(files) == set(RUNS)
    for name, path in files.items():
        header = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        assert f"python examples/{name}.py" in header, name


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example(name: str, tmp_path: Path) -> None:
    arguments, expected = RUNS[name]
    if name == "train_with_own_operators":
        pytest.importorskip("torch", reason="torch is not installed: its example is not run")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | paths)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_policy_has_forty_lines() -> None:
    text = (EXAMPLES / "custom_policy.py").read_text("utf-8")
    code = text.split('"""', 2)[2].strip().splitlines()
    assert sum(bool(line.strip()) for line in code) <= 40


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, Any]]:
    """The documents by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text("utf-8"))}


@pytest.fixture(scope="module")
def config(manifest: dict[str, dict[str, Any]]) -> ServeConfig:
    return parse_config(tomllib.loads(manifest["ConfigMap"]["data"]["serve.toml"]), Path("/config/serve.toml"))


def test_the_manifest_fits_the_schemas_of_kubernetes(manifest: dict[str, dict[str, Any]]) -> None:
    for kind, document in manifest.items():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        assert document["metadata"]["name"] == "veltair", kind
    wrong = manifest["Service"] | {"spec": {"ports": [{"port": "http"}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_manifest_and_its_configuration_agree(manifest: dict[str, dict[str, Any]], config: ServeConfig) -> None:
    pod = manifest["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    server = config.server
    assert {"http": server.http, "grpc": server.grpc, "admin": server.admin} == {
        name: f"0.0.0.0:{number}" for name, number in ports.items()
    }
    assert {port["targetPort"] for port in manifest["Service"]["spec"]["ports"]} == {"http", "grpc"}
    assert pod["terminationGracePeriodSeconds"] > server.lame_duck_s + server.drain_timeout_s
    assert container["resources"]["requests"] == container["resources"]["limits"]
    probe = container["readinessProbe"]
    assert server.lame_duck_s > probe["periodSeconds"] * probe["failureThreshold"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {f"/{tenant.artifact.split('/')[1]}" for tenant in config.tenants} <= mounts
    assert mounts >= {"/config", "/tmp"} and container["command"][-1] == "/config/serve.toml"
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"].items() <= (
        manifest["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    )
