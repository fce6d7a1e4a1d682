"""`bench.run` measures every committed result, with commands that exist."""

from __future__ import annotations

import ast
import importlib.util
from fnmatch import fnmatch
from pathlib import Path

import pytest

from bench.parts import PARTS, Settings
from bench.paths import RESULTS, ROOT

SETTINGS = Settings(RESULTS, Path("work"), "triton-python", "tensorflow-python", "torch-python", "export-python")
COMMANDS = [(name, command) for name, part in PARTS.items() for command in part.commands(SETTINGS)]
PINS = {"PinnedThreads", "KernelTimer", "get_global_func", "Comparison"}  # narrow the cores of the calling thread


def test_each_result_is_written_by_one_part() -> None:
    for path in RESULTS.rglob("*.json"):
        name = str(path.relative_to(RESULTS))
        machine, _, rest = name.partition("/")  # other machines have a folder each, and the same files in it
        name = rest if machine.startswith(("epyc", "xeon")) else name
        writers = [part for part, facts in PARTS.items() if any(fnmatch(name, one) for one in facts.writes)]
        assert len(writers) == 1, f"{path}: written by {writers}"


@pytest.mark.parametrize(("part", "command"), COMMANDS)
def test_a_command_names_a_bench_and_options_that_it_has(part: str, command: tuple[str, ...]) -> None:
    spec = importlib.util.find_spec(command[0])
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin)
    main = folder.with_name("__main__.py") if folder.name == "__init__.py" else folder
    text = main.read_text("utf-8") + (ROOT / "bench/serving/triton.py").read_text("utf-8")
    assert [option for option in command if option.startswith("--") and f'"{option}"' not in text] == []


@pytest.mark.parametrize("module", ["recsys/atrec/__main__", "recsys/columns", "recsys/ember", "kernels/stitching"])
def test_the_cores_are_counted_before_a_pool_pins_the_thread(module: str) -> None:
    tree = ast.parse((ROOT / "bench" / f"{module}.py").read_text("utf-8"))
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    lines: dict[str, int] = {}
    for node in ast.walk(main):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            lines[name] = min(lines.get(name, node.lineno), node.lineno)
    assert lines["describe_environment"] < min(lines[name] for name in PINS & lines.keys())
