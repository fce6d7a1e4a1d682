"""The files of deploy/ against published schemas, and against the daemon that they start."""

import argparse
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kserve_definitions
import kubernetes_validate
import pytest
import yaml

from veltair.commands import compile as compile_command
from veltair.commands import serve as serve_command
from veltair.config import ServeConfig, ServerConfig, read_config

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
KUBERNETES = "1.30"  # the oldest that we look at
WRONG_RUNTIMES = [  # where, and what
    ("spec supportedModelFormats 0 version", 1),
    ("spec supportedModelFormats 0 autoselect", True),
    ("spec protocolVersions", "v2"),
    ("spec multiModel", "no"),
    ("spec containers 0 readinesProbe", {}),
    ("spec containers 0 ports 0 containerPort", "http1"),
    ("spec containers 0 securityContext runAsUser", "root"),
    ("spec volume", []),
]
WRONG_SERVICES = [
    ("spec predictor minReplicas", "1"),
    ("spec predictor model modelFormat", "veltair"),
    ("spec predictor model modelFormat name", None),
    ("spec predictor model storageURI", "s3://models/x"),
    ("spec predictor model resources limits", ["cpu"]),
    ("spec predictors", {}),
]


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text("utf-8")) if each]


def validate(document: dict[str, Any]) -> None:
    for version in (KUBERNETES, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(document, version, strict=True)


def containers() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name in ("kubernetes/veltair.yaml", "kubernetes/compile-job.yaml", "kserve/runtime.yaml"):
        for document in documents(name):
            spec = document.get("spec", {})
            spec = spec.get("template", {}).get("spec", spec)
            found += [(name, container) for container in spec.get("containers", [])]
    return found


@pytest.mark.parametrize("name", ["kubernetes/veltair.yaml", "kubernetes/compile-job.yaml"])
def test_kubernetes_takes_the_manifests(name: str) -> None:
    found = documents(name)
    for document in found:
        validate(document)
    wrong = documents(name)[-1]
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)


def validate_for_kserve(document: dict[str, Any]) -> None:
    kserve_definitions.validators()[f"{document['apiVersion']} {document['kind']}"].validate(document)


def test_kserve_takes_the_runtime() -> None:
    (runtime,) = documents("kserve/runtime.yaml")
    validate_for_kserve(runtime)
    spec = runtime["spec"]
    assert spec["protocolVersions"] == ["v2", "grpc-v2"]
    assert [container["name"] for container in spec["containers"]] == ["kserve-container"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    validate(pod | {"spec": {key: spec[key] for key in ("containers", "volumes")}})


def test_kserve_takes_the_inference_service_and_it_fits_the_runtime() -> None:
    (service,) = documents("kserve/inference-service.yaml")
    validate_for_kserve(service)
    predictor = service["spec"]["predictor"]
    model = predictor["model"]
    (runtime,) = documents("kserve/runtime.yaml")
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    pod = {key: predictor[key] for key in predictor if key not in ("model", "minReplicas", "maxReplicas")}
    container = {"name": "kserve-container", "image": "x", "resources": model["resources"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod | {"containers": [container]}})


@pytest.mark.parametrize(
    ("name", "where", "what"),
    [("kserve/runtime.yaml", *wrong) for wrong in WRONG_RUNTIMES]
    + [("kserve/inference-service.yaml", *wrong) for wrong in WRONG_SERVICES],
)
def test_kserve_refuses_what_is_wrong(name: str, where: str, what: object) -> None:
    (document,) = documents(name)
    place: Any = document
    *path, last = where.split()
    for step in path:
        place = place[int(step) if step.isdigit() else step]
    place[last] = what
    with pytest.raises(jsonschema.ValidationError):
        validate_for_kserve(document)


def test_containers_have_whole_cores_and_no_rights() -> None:
    assert len(containers()) == 3
    for name, container in containers():
        resources = container["resources"]
        assert resources["requests"] == resources["limits"], name  # of the class Guaranteed
        assert resources["limits"]["cpu"].isdigit(), name
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], name
        assert context["capabilities"] == {"drop": ["ALL"]}, name


def in_map() -> str:
    text: str = documents("kubernetes/veltair.yaml")[0]["data"]["serve.toml"]
    return text


def config_of(text: str, folder: Path) -> ServeConfig:
    path = folder / "serve.toml"
    path.write_text(text)
    return read_config(path)


def test_the_end_of_a_pod_leaves_time_for_the_drain(tmp_path: Path) -> None:
    pod = next(d for d in documents("kubernetes/veltair.yaml") if d["kind"] == "Deployment")["spec"]["template"]["spec"]
    server = config_of(in_map(), tmp_path).server
    (slept,) = re.findall(r"sleep\((\d+)\)", str(pod["containers"][0]["lifecycle"]["preStop"]))
    need_s = int(slept) + server.lame_duck_s + server.drain_timeout_s
    assert pod["terminationGracePeriodSeconds"] > need_s
    unit = (DEPLOY / "systemd" / "veltair.service").read_text("utf-8")
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    default = ServerConfig()
    assert int(stop_s) > default.lame_duck_s + default.drain_timeout_s


def test_ports_are_those_of_the_configurations(tmp_path: Path) -> None:
    for text in (in_map(), (DEPLOY / "serve.toml").read_text("utf-8")):
        server = config_of(text, tmp_path).server
        assert [server.http, server.grpc, server.admin] == [f"0.0.0.0:{port}" for port in (8000, 8001, 8002)]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": ["veltair:8002"]}] and scraped["job_name"] == "veltair"


def test_commands_of_the_manifests_are_ours() -> None:
    """Each is one that the parsers take."""
    (job,) = documents("kubernetes/compile-job.yaml")
    (name, *arguments) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    compile_command.add_arguments(parser)
    assert name == "compile" and parser.parse_args(arguments).qos_ms == 40
    unit = (DEPLOY / "systemd" / "veltair.service").read_text("utf-8")
    (started,) = re.findall(r"^ExecStart=/opt/veltair/bin/veltair serve (.*)$", unit, re.MULTILINE)
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve_command.add_arguments(parser)
    assert parser.parse_args(started.split()).log_format == "json"


def test_compose_mounts_files_that_are_there() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert services["veltair"]["read_only"] is True
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), volume
        for needed in service.get("depends_on", []):
            assert needed in services
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/veltair.yaml").read_text("utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    assert any(f":{folder}:" in volume for volume in services["grafana"]["volumes"])


def test_images_are_of_two_stages_and_not_of_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert [stage.split()[2] for stage in stages] == ["build", "serve", "compile"]
    for stage in stages[1:]:
        assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "10001:10001"
    (compose,) = documents("compose.yaml")
    assert compose["services"]["veltair"]["build"]["target"] == "serve"
    pod = documents("kubernetes/compile-job.yaml")[0]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 10001
    pins = re.findall(r"setuptools==([\d.]+)", text + (DEPLOY.parent / "pyproject.toml").read_text("utf-8"))
    assert len(pins) == 2 and len(set(pins)) == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "veltair.service").read_text("utf-8")
    unit = tmp_path / "veltair.service"
    unit.write_text(text.replace("/opt/veltair/bin/veltair", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Type=notify" in text and "WatchdogSec=" in text
