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
    "veltair.scenarios": "scenarios",
}
BASE = {
    *("veltair.types", "veltair.errors", "veltair.address", "veltair.machine"),
    *("veltair.schema_errors", "veltair.terminal", "veltair.toml_file"),
}
# What each package may import of this project, besides itself. Data flows compiler -> profiles -> scheduler -> server.
MAY_IMPORT = {
    "veltair.machine": {"veltair.types", "veltair.errors"},
    "veltair.grpc": {"veltair.errors"},
    "veltair.profiles": BASE,
    "veltair.compiler": BASE | {"veltair.profiles"},
    "veltair.scheduler": {"veltair.types", "veltair.errors"},
    "veltair.server": BASE
    | {"veltair.config", "veltair.access_config", "veltair.grpc", "veltair.profiles", "veltair.scheduler"},
    "veltair.loadgen": BASE | {"veltair.grpc"},
    "veltair.scenarios": {"veltair.errors"},
}
# The floors inside a package, the ground first: a folder imports from those before it. Modules beside the folders stand
# above all of them.
FLOORS = {
    "veltair.compiler": (
        *("onnx", "quantisation", "graph", "codegen", "embedding", "kernels", "stitch", "features", "patterns"),
        *("locality", "references", "timing", "tuning"),
    ),
    "veltair.profiles": ("artifact", "cache", "records", "runtime"),
    "veltair.server": ("ipc", "protocol", "access", "worker", "engine", "front"),
    "veltair": ("machine", "grpc", "training", "zoo", "simulation", "api", "ray", "commands"),
}
# Arrows upward that are left, each with its reason.
UPWARD = {
    # a file's own operators say which columns and stored tables it has: found while it is read, before it is simplified
    ("veltair.compiler.onnx.onnx_model", "veltair.compiler.features.from_onnx.column_extraction"),
    ("veltair.compiler.onnx.onnx_model", "veltair.compiler.features.from_onnx.column_reader"),
    ("veltair.compiler.onnx.quantised.tables", "veltair.compiler.features.from_onnx.onnx_graph_index"),
    ("veltair.compiler.onnx.quantised.tables", "veltair.compiler.features.from_onnx.safety_steps"),
    ("veltair.compiler.onnx.quantised.tables", "veltair.compiler.embedding.row_storage"),
    # patterns ask the builder how the rows of a table are stored
    ("veltair.compiler.graph.graph_builder", "veltair.compiler.embedding.table_storage"),
}
PROCESSES = {"veltair.server.front", "veltair.server.engine", "veltair.server.worker"}  # speak by messages alone
LONGEST_MODULE, MOST_MODULES = 300, 17
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


# Loaded by whoever runs an artifact that has a layer for it, and by nobody else.
MAY_LOAD = {"profiles/runtime/onnx_layers.py": {"onnxruntime"}}


@pytest.mark.parametrize("package", sorted(MAY_NOT_LOAD))
def test_what_a_package_must_never_load(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(package)
        for name in imports(path)
        if below(name, MAY_NOT_LOAD[package] - MAY_LOAD.get(str(path.relative_to(ROOT)), set()))
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


def arrows(package: str) -> Iterator[tuple[str, str]]:
    """(module, module that it imports a name of) for the modules of a package, both as dotted names."""
    folder = ROOT / FOLDERS.get(package, package.replace(".", "/"))
    for path in sources(package):
        module = ".".join([package, *path.relative_to(folder).with_suffix("").parts])
        for name in imports(path):
            if name.startswith("veltair."):
                yield module, name


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_folders_import_from_the_floors_below(package: str) -> None:
    floors = FLOORS[package]
    wrong = set()
    for module, name in arrows(package):
        here = module.removeprefix(f"{package}.").split(".")[0]
        there = name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""
        climbs = here in floors and there in floors and floors.index(there) > floors.index(here)
        if climbs and not any(module == low and below(name, {high}) for low, high in UPWARD):
            wrong.add(f"{module}: {name}")
    assert not wrong


def test_every_arrow_that_is_excused_is_there() -> None:
    found = set(arrows("veltair.compiler"))
    assert [pair for pair in UPWARD if not any(low == pair[0] and below(name, {pair[1]}) for low, name in found)] == []


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_processes_of_the_daemon_speak_by_messages_alone(process: str) -> None:
    others = PROCESSES - {process}
    wrong = [(m, name) for m, name in arrows("veltair.server") if below(m, {process}) and below(name, others)]
    assert wrong == []


def python_files() -> list[Path]:
    tops = (*FOLDERS.values(), "veltair", "bench", "tests")
    return [path for top in tops for path in (ROOT / top).rglob("*.py")]


def test_modules_stay_small() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in python_files()}
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}


def test_folders_stay_small_and_say_what_is_in_them() -> None:
    shelves = [path for top in (*FOLDERS.values(), "veltair", "bench") for path in (ROOT / top).rglob("__init__.py")]
    assert len(shelves) > 40
    for shelf in shelves:
        modules = [path for path in shelf.parent.glob("*.py") if path != shelf]
        assert len(modules) <= MOST_MODULES, shelf
        assert len(ast.get_docstring(ast.parse(shelf.read_text("utf-8"))) or "") > 40, shelf


def test_nothing_fights_the_formatter() -> None:
    marks = ("fmt: " + "skip", "fmt: " + "off")
    assert [path for path in python_files() if any(mark in path.read_text("utf-8") for mark in marks)] == []
