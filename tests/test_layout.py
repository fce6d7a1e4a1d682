"""The rules of the layout, read from the source: which package may import which, and what is packaged."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "veltair.compiler": "compiler",
    "veltair.profiles": "profiles",
    "veltair.scheduler": "scheduler",
    "veltair.server": "server",
    "veltair.loadgen": "loadgen",
}
BASE = {"veltair.types", "veltair.errors", "veltair.machine"}
# What each package may import of this project, besides itself. Data flows compiler -> profiles -> scheduler -> server.
MAY_IMPORT = {
    "veltair.machine": {"veltair.types", "veltair.errors"},
    "veltair.grpc": {"veltair.errors"},
    "veltair.profiles": BASE,
    "veltair.compiler": BASE | {"veltair.profiles"},
    "veltair.scheduler": {"veltair.types", "veltair.errors"},
    "veltair.server": BASE | {"veltair.config", "veltair.grpc", "veltair.profiles", "veltair.scheduler"},
    "veltair.loadgen": BASE | {"veltair.grpc"},
}
# What serves never loads the compiler of TVM, and the scheduler loads nothing that knows of time or chance.
MAY_NOT_LOAD = {
    "veltair.server": {"tvm.relax", "tvm.tirx", "tvm.s_tir", "tvm.script", "onnx", "onnxruntime", "pickle"},
    "veltair.profiles": {"tvm.relax", "tvm.tirx", "tvm.s_tir", "tvm.script", "onnx", "onnxruntime", "pickle"},
    "veltair.scheduler": {"tvm", "asyncio", "time", "random", "datetime", "os", "pickle"},
    "veltair.loadgen": {"tvm", "pickle"},
    "veltair.grpc.http2": {"asyncio", "socket", "grpc"},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / FOLDERS.get(package, package.replace(".", "/"))).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below(name: str, prefixes: set[str]) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in prefixes)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_down(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(package)
        for name in imports(path)
        if name.startswith("veltair.") and not below(name, MAY_IMPORT[package] | {package})
    ]
    assert not wrong


@pytest.mark.parametrize("package", sorted(MAY_NOT_LOAD))
def test_what_a_package_must_never_load(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(package)
        for name in imports(path)
        if below(name, MAY_NOT_LOAD[package])
    ]
    assert not wrong


def test_every_folder_with_code_is_packaged() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert tool["package-dir"] == {"veltair": "veltair", **FOLDERS}
    found = {
        ".".join([package, *path.relative_to(ROOT / folder).parent.parts])
        for package, folder in tool["package-dir"].items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert found == set(tool["packages"])


def test_modules_stay_small() -> None:
    tracked = [p for top in (*FOLDERS.values(), "veltair", "bench") for p in (ROOT / top).rglob("*.py")]
    long = {str(p.relative_to(ROOT)): n for p in tracked if (n := len(p.read_text("utf-8").splitlines())) > 500}
    assert not long
