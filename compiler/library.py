"""From generated functions to machine code: one object file each, linked to one shared library.

An object of its own keeps a candidate that does not compile from spoiling the others, and lets the final library be
linked from what was measured without compiling again.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from veltair.errors import UserError, VeltairError
from veltair.machine import machine


class BuildError(VeltairError):
    """A candidate did not compile."""


def compile_object(function: Any, symbol: str, target: Mapping[str, Any], path: Path) -> None:
    """Machine code of one PrimFunc, to be called as `symbol`. Raises BuildError with the compiler's last words."""
    try:
        module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
        tvm.compile(module, target=tvm.target.Target(dict(target))).mod.write_to_file(str(path))
    except Exception as error:  # TVM raises whatever its passes raise
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise BuildError(f"{symbol}: {words[-1]}") from error


@dataclass(frozen=True, slots=True)
class Source:
    """A generated function on its way to machine code."""

    function: Any  # tvm.tirx.PrimFunc
    symbol: str
    path: Path  # of the object file


def compile_objects(sources: Sequence[Source], target: Mapping[str, Any]) -> list[str]:
    """Compile all of them, on all cores; for each what went wrong, or an empty text."""

    def attempt(source: Source) -> str:
        try:
            compile_object(source.function, source.symbol, target, source.path)
        except BuildError as error:
            return str(error)
        return ""

    # LLVM works outside of the interpreter lock, each module in a context of its own.
    with ThreadPoolExecutor(len(machine().cores)) as pool:
        return list(pool.map(attempt, sources))


def link(objects: Iterable[Path], library: Path) -> None:
    """One shared library of many objects. Raises UserError where there is no C compiler to link with."""
    linker = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if linker is None:
        raise UserError("no linker: expected gcc, cc or clang on the PATH")
    command = [linker, "-shared", "-s", "-o", str(library), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VeltairError(f"{linker} could not link {library.name}: {done.stderr.strip()[-500:]}")
