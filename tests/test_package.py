"""What pyproject.toml says of the package, and the scripts that `make wheel` and `make sbom` run."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_metadata_names_what_is_shipped() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = tool["project"]
    assert [file for file in project["license-files"] if not (ROOT / file).is_file()] == []
    libraries = {path.name.split(".")[0] for path in (ROOT / "server" / "static").glob("*.min.js")}
    assert libraries == {Path(file).name.split(".")[0] for file in project["license-files"]} - {"LICENSE"}
    assert (ROOT / "veltair" / "py.typed").exists() and "py.typed" in tool["tool"]["setuptools"]["package-data"][
        "veltair"
    ]
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in project["classifiers"]
    assert tool["tool"]["distutils"]["bdist_wheel"]["py_limited_api"] == f"cp{oldest.replace('.', '')}"


def test_the_bill_of_materials_has_what_the_wheel_bundles() -> None:
    sbom = script("sbom")
    [uplot] = sbom.bundled_components()
    assert uplot["version"].count(".") == 2 and uplot["purl"] == f"pkg:npm/uplot@{uplot['version']}"
    environment = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "root", "name": "veltair"}},
        "components": [
            {"type": "library", "bom-ref": "veltair==0.1.0", "name": "veltair"},
            {"type": "library", "bom-ref": "numpy==2.4.6", "name": "numpy"},
        ],
        "dependencies": [{"ref": "root", "dependsOn": ["numpy==2.4.6"]}],
    }
    bill = sbom.complete(environment)
    sbom.check(json.dumps(bill))
    assert [each["name"] for each in bill["components"]] == ["numpy", "uplot"]
    assert bill["dependencies"][0]["dependsOn"] == ["numpy==2.4.6", uplot["purl"]]
    with pytest.raises(SystemExit, match=r"does not fit CycloneDX 1\.6"):
        sbom.check(json.dumps(bill | {"components": [{"name": "no type"}]}))


def test_two_wheels_are_compared_by_their_files(tmp_path: Path) -> None:
    for name, files in {"a.whl": ("x.py", "y.so"), "b.whl": ("x.py", "z.toml")}.items():
        with ZipFile(tmp_path / name, "w") as wheel:
            for file in files:
                wheel.writestr(file, "")
    only_in_one = script("same_files").only_in_one
    assert only_in_one(tmp_path / "a.whl", tmp_path / "b.whl") == {"y.so", "z.toml"}
    assert only_in_one(tmp_path / "a.whl", tmp_path / "a.whl") == set()
